"""Set-up on the first visit, log-in, log-out, sign-up, settings."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from chatapp.models import User
from chatapp.services import accounts

ACCOUNT = {"username": "mira", "password": "correct horse 42", "repeated": "correct horse 42"}


def test_the_first_visitor_is_led_to_the_set_up_and_becomes_the_owner(client: Client, db: Any) -> None:
    assert client.get("/").headers["Location"] == reverse("setup")
    assert client.get(reverse("login")).headers["Location"] == reverse("setup")
    response = client.post(reverse("setup"), ACCOUNT)
    assert (response.status_code, response.headers["Location"]) == (302, "/")
    owner = User.objects.get()
    assert (owner.username, owner.is_superuser, owner.is_staff) == ("mira", True, True)
    assert client.get("/").status_code == 200


def test_there_is_one_set_up(client: Client, alice: User) -> None:
    assert client.post(reverse("setup"), ACCOUNT).headers["Location"] == "/"
    assert list(User.objects.all()) == [alice]


def test_where_others_can_reach_the_server_the_set_up_needs_its_link(client: Client, db: Any, settings: Any) -> None:
    settings.RECOLLECT_IS_EXPOSED = True
    token = accounts.setup_token_create()
    for query in ("", "?token=", "?token=guess"):
        assert client.get(reverse("setup") + query).status_code == 404
    assert client.post(reverse("setup"), ACCOUNT).status_code == 404
    html = client.get(reverse("setup") + f"?token={token}").content.decode()
    assert f'name="token" value="{token}"' in html
    assert client.post(reverse("setup"), ACCOUNT | {"token": token}).status_code == 302
    assert User.objects.get().is_superuser


@pytest.mark.parametrize(
    ("changes", "field", "sentence"),
    [
        ({"repeated": "correct horse 43"}, "repeated", "The two passwords differ."),
        ({"password": "12345678", "repeated": "12345678"}, "password", "entirely numeric"),
        ({"username": "a b"}, "username", "valid username"),
        ({"username": ""}, "username", "required"),
        ({"password": "x" * 2000, "repeated": "x" * 2000}, "password", "at most 1000"),
    ],
)
def test_a_refused_account_says_why_where_it_is(
    client: Client, db: Any, changes: dict[str, str], field: str, sentence: str
) -> None:
    response = client.post(reverse("setup"), ACCOUNT | changes)
    assert response.status_code == 400
    assert sentence in " ".join(response.context["form"].errors[field])
    assert sentence.replace("'", "&#x27;") in response.content.decode()
    assert not User.objects.exists()


def test_after_log_in_one_is_where_one_wanted_to_be(client: Client, alice: User) -> None:
    moved = client.get(reverse("settings")).headers["Location"]
    assert moved == "/login/?next=/settings/"
    response = client.post(moved, {"username": "alice", "password": "correct horse battery", "next": "/settings/"})
    assert response.headers["Location"] == "/settings/"


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", "/\\evil.example"]
)
def test_after_log_in_one_is_still_on_this_server(client: Client, alice: User, target: str) -> None:
    fields = {"username": "alice", "password": "correct horse battery", "next": target}
    assert client.post(reverse("login"), fields).headers["Location"] == "/"


@pytest.mark.parametrize(
    "fields", [{"username": "alice", "password": "wrong"}, {"username": "nobody", "password": "x"}]
)
def test_a_wrong_pair_does_not_tell_which_half_was_wrong(client: Client, alice: User, fields: dict[str, str]) -> None:
    response = client.post(reverse("login"), fields)
    assert response.status_code == 400
    assert "Wrong name or password." in response.content.decode()


def test_guessing_is_slowed_down(client: Client, alice: User) -> None:
    wrong = {"username": "alice", "password": "wrong"}
    statuses = [client.post(reverse("login"), wrong).status_code for _ in range(8)]
    assert statuses[0] == 400
    assert statuses[-1] == 429
    assert "Too many attempts" in client.post(reverse("login"), wrong).content.decode()


def test_log_out_ends_the_session(client: Client, alice: User) -> None:
    client.force_login(alice)
    assert client.post(reverse("logout")).headers["Location"] == reverse("login")
    assert client.get("/").status_code == 302


def test_sign_up_is_closed_unless_the_operator_opens_it(client: Client, alice: User, settings: Any) -> None:
    assert client.post(reverse("signup"), ACCOUNT).status_code == 404
    assert "/signup/" not in client.get(reverse("login")).content.decode()
    settings.RECOLLECT_SIGNUP = True
    assert "/signup/" in client.get(reverse("login")).content.decode()
    assert client.post(reverse("signup"), ACCOUNT).headers["Location"] == "/"
    assert not User.objects.get(username="mira").is_staff


def test_a_taken_name_is_told_on_the_form(client: Client, alice: User, settings: Any) -> None:
    settings.RECOLLECT_SIGNUP = True
    response = client.post(reverse("signup"), ACCOUNT | {"username": "alice"})
    assert response.status_code == 400
    assert "This name is taken." in response.content.decode()


def test_settings_are_kept_and_used(client: Client, alice: User) -> None:
    alice.preferences = {"other": 1}
    alice.save()
    client.force_login(alice)
    response = client.post(reverse("settings"), {"theme": "dark", "language": "zh-hans"})
    assert response.status_code == 302
    alice.refresh_from_db()
    assert (alice.language, alice.preferences) == (
        "zh-hans",
        {"other": 1, "theme": "dark", "shortcuts": False, "drafts": False, "titles": False},
    )
    html = client.get("/").content.decode()
    assert '<html lang="zh-hans" dir="ltr" data-theme="dark">' in html
    assert '"hasShortcuts": false' in html


@pytest.mark.parametrize("fields", [{"theme": "pink", "language": ""}, {"theme": "dark", "language": "tlh"}, {}])
def test_settings_that_do_not_exist_are_refused(client: Client, alice: User, fields: dict[str, str]) -> None:
    client.force_login(alice)
    assert client.post(reverse("settings"), fields | {"x": ""}).status_code == 400
    alice.refresh_from_db()
    assert alice.preferences == {}


def test_another_password_keeps_this_session_and_ends_the_others(client: Client, alice: User) -> None:
    elsewhere = Client()
    elsewhere.force_login(alice)
    client.force_login(alice)
    fields = {
        "old_password": "correct horse battery",
        "new_password1": "staple 4711 x",
        "new_password2": "staple 4711 x",
    }
    assert client.post(reverse("password"), fields).headers["Location"] == reverse("settings")
    assert client.get("/").status_code == 200
    assert elsewhere.get("/").status_code == 302


def test_another_password_needs_the_old_one(client: Client, alice: User) -> None:
    client.force_login(alice)
    fields = {"old_password": "guess", "new_password1": "staple 4711 x", "new_password2": "staple 4711 x"}
    assert client.post(reverse("password"), fields).status_code == 400
    alice.refresh_from_db()
    assert alice.check_password("correct horse battery")
