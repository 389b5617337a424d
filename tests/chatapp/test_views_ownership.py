"""Who gets what at every address. The table of addresses is the product's own: a new one without a row here fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from django.test import Client
from django.urls import URLPattern, reverse

from chatapp.models import Conversation, Message, Summary, User
from chatapp.services.summaries import summary_create
from chatapp.services.turns import TurnRows
from chatapp.urls import urlpatterns
from tests.chatapp.rows import turn
from tests.conftest import DEFAULT_MODEL

LOGIN = "to log in"
OK, MOVED, NOT_FOUND, UNAVAILABLE = 200, 302, 404, 503
ROUTES = sorted(pattern.name or "" for pattern in urlpatterns if isinstance(pattern, URLPattern))


@dataclass(frozen=True)
class Row:
    """What the owner, another person and somebody without a session get. `fields` are posted."""

    owner: int
    other: int
    anonymous: int | str
    method: str = "get"
    fields: Callable[[TurnRows], dict[str, str]] = lambda rows: {}


MATRIX = {
    "conversation_new": Row(OK, OK, LOGIN),
    "conversation": Row(OK, NOT_FOUND, LOGIN),
    "message_window": Row(OK, NOT_FOUND, LOGIN),
    "message_text": Row(OK, NOT_FOUND, LOGIN),
    "summary": Row(OK, NOT_FOUND, LOGIN),
    "summary_edit": Row(OK, NOT_FOUND, LOGIN, "post", lambda rows: {"text": "in other words"}),
    # no engine runs beside the tests, and the conversation was another model's
    "conversation_model": Row(UNAVAILABLE, NOT_FOUND, LOGIN, "post", lambda rows: {"model": DEFAULT_MODEL.stem}),
    "conversation_cold": Row(UNAVAILABLE, NOT_FOUND, LOGIN),
    "conversation_window": Row(OK, NOT_FOUND, LOGIN, "post", lambda rows: {"policy": "recent", "has_recall": "on"}),
    "conversation_branch": Row(OK, NOT_FOUND, LOGIN, "post", lambda rows: {"message": str(rows.assistant_message.id)}),
    "conversation_rename": Row(OK, NOT_FOUND, LOGIN, "post", lambda rows: {"title": "Another"}),
    "conversation_pin": Row(OK, NOT_FOUND, LOGIN, "post", lambda rows: {"is_pinned": "on"}),
    "conversation_archive": Row(OK, NOT_FOUND, LOGIN, "post", lambda rows: {"is_archived": "on"}),
    "conversation_delete": Row(OK, NOT_FOUND, LOGIN, "post"),
    "conversations": Row(OK, OK, LOGIN),
    "login": Row(MOVED, MOVED, OK),
    "logout": Row(MOVED, MOVED, LOGIN, "post"),
    "signup": Row(MOVED, MOVED, NOT_FOUND),
    "setup": Row(MOVED, MOVED, MOVED),
    "settings": Row(OK, OK, LOGIN),
    "password": Row(400, 400, LOGIN, "post"),
    "engine": Row(OK, OK, LOGIN),
    "health_live": Row(OK, OK, OK),
    "health_ready": Row(UNAVAILABLE, UNAVAILABLE, UNAVAILABLE),  # no engine runs beside the tests
    "metrics": Row(NOT_FOUND, NOT_FOUND, NOT_FOUND),  # none of them is staff; see test_metrics.py
    "javascript_catalog": Row(OK, OK, OK),
}


@pytest.fixture
def rows(alice: User, bob: User) -> TurnRows:
    rows = turn(alice)
    summary_create(until_id=rows.assistant_message.id, text="what was said", model_name="m")
    return rows


def _url(name: str, rows: TurnRows) -> str:
    pattern = next(p for p in urlpatterns if isinstance(p, URLPattern) and p.name == name)
    values = {
        "conversation_id": lambda: rows.conversation.id,
        "message_id": lambda: rows.user_message.id,
        "summary_id": lambda: Summary.objects.earliest("created_at").id,
    }
    return reverse(name, kwargs={key: values[key]() for key in pattern.pattern.converters})


def _ask(client: Client, name: str, rows: TurnRows) -> tuple[int, str]:
    row = MATRIX[name]
    response = (
        client.generic(row.method.upper(), _url(name, rows))
        if row.method == "get"
        else client.post(_url(name, rows), row.fields(rows))
    )
    return response.status_code, response.headers.get("Location", "")


def test_every_address_has_its_row() -> None:
    assert sorted(MATRIX) == ROUTES


@pytest.mark.parametrize("name", ROUTES)
def test_the_owner(name: str, client: Client, alice: User, rows: TurnRows) -> None:
    client.force_login(alice)
    assert _ask(client, name, rows)[0] == MATRIX[name].owner


@pytest.mark.parametrize("name", ROUTES)
def test_another_person_is_told_that_it_does_not_exist(name: str, client: Client, bob: User, rows: TurnRows) -> None:
    client.force_login(bob)
    assert _ask(client, name, rows)[0] == MATRIX[name].other
    conversation = Conversation.objects.get(id=rows.conversation.id)
    assert conversation.title == rows.conversation.title
    assert not conversation.is_pinned
    assert not conversation.is_archived
    assert conversation.context_policy == rows.conversation.context_policy
    assert Summary.objects.get().text == "what was said"


@pytest.mark.parametrize("name", ROUTES)
def test_somebody_without_a_session(name: str, client: Client, rows: TurnRows) -> None:
    status, location = _ask(client, name, rows)
    expected = MATRIX[name].anonymous
    if expected == LOGIN:
        assert (status, location.partition("?")[0]) == (302, reverse("login"))
    else:
        assert status == expected
    assert Message.objects.count() == 2


@pytest.mark.parametrize("name", [name for name in ROUTES if MATRIX[name].anonymous == LOGIN and name != "logout"])
def test_a_script_without_a_session_is_told_so(name: str, client: Client, rows: TurnRows) -> None:
    row = MATRIX[name]
    ask = client.get if row.method == "get" else client.post
    response = ask(_url(name, rows), row.fields(rows), headers={"X-Requested-With": "fetch"})
    assert response.status_code == 401
    assert response.json()["code"] == "unauthenticated"


@pytest.mark.parametrize("name", [name for name in ROUTES if MATRIX[name].method == "post"])
def test_what_changes_something_cannot_be_got(name: str, client: Client, alice: User, rows: TurnRows) -> None:
    client.force_login(alice)
    assert client.get(_url(name, rows)).status_code == 405


@pytest.mark.parametrize("name", [name for name in ROUTES if MATRIX[name].method == "post"])
def test_what_changes_something_wants_the_token_of_a_page(name: str, alice: User, rows: TurnRows) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    assert client.post(_url(name, rows), MATRIX[name].fields(rows)).status_code == 403


def test_a_message_is_found_only_in_its_own_conversation(client: Client, alice: User, rows: TurnRows) -> None:
    """The id of a message in the address of another conversation of the same person."""
    elsewhere = turn(alice)
    client.force_login(alice)
    url = reverse("message_text", args=[rows.conversation.id, elsewhere.user_message.id])
    assert client.get(url).status_code == 404
    url = reverse("conversation_branch", args=[rows.conversation.id])
    assert client.post(url, {"message": str(elsewhere.user_message.id)}).status_code == 404
    url = reverse("message_window", args=[rows.conversation.id])
    assert client.get(url, {"before": str(elsewhere.user_message.id)}).status_code == 404
    names = [elsewhere.conversation.id, Summary.objects.get().id]
    assert client.get(reverse("summary", args=names)).status_code == 404
    assert client.post(reverse("summary_edit", args=names), {"text": "mine"}).status_code == 404
