"""An exception becomes a page that says what happened and what to do; for a script, JSON."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.urls import reverse

from chatapp.errors import StorageUnavailable
from chatapp.models import User

SCRIPT = {"X-Requested-With": "fetch"}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A database that does not answer any statement."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("could not connect to server")

    with connection.execute_wrapper(fail):
        yield


@pytest.fixture
def patient() -> Client:
    """Like a browser: gets the page of a failure, not the exception."""
    return Client(raise_request_exception=False)


def test_an_address_that_leads_nowhere(client: Client, db: Any) -> None:
    response = client.get("/nowhere/")
    assert response.status_code == 404
    html = response.content.decode()
    assert "This does not exist" in html
    assert 'href="/"' in html


def test_a_conversation_that_is_not_there(client: Client, alice: User) -> None:
    client.force_login(alice)
    url = reverse("conversation", args=[uuid.uuid4()])
    assert "This conversation does not exist." in client.get(url).content.decode()
    assert client.get(url, headers=SCRIPT).json() == {
        "code": "not_found",
        "message": "This conversation does not exist.",
    }


def test_a_form_without_its_token(alice: User) -> None:
    client = Client(enforce_csrf_checks=True)
    response = client.post(reverse("login"), {"username": "a", "password": "b"})
    assert response.status_code == 403
    assert "This form is out of date." in response.content.decode()
    client.force_login(alice)
    refused = client.post(reverse("conversation_pin", args=[uuid.uuid4()]), headers=SCRIPT)
    assert refused.json()["code"] == "csrf"


@pytest.mark.parametrize("url", ["/", "/login/", "/setup/", "/settings/", f"/c/{uuid.UUID(int=1)}/"])
def test_a_database_that_is_down(patient: Client, alice: User, broken: None, url: str) -> None:
    patient.cookies["sessionid"] = "x" * 32
    response = patient.get(url)
    assert response.status_code == 503
    assert "The database is not available" in response.content.decode()
    assert patient.get(url, headers=SCRIPT).json()["code"] == "storage_unavailable"


def test_a_database_that_is_away_is_asked_once(patient: Client, db: Any) -> None:
    """Each question may take the whole time-out of the pool."""
    asked: list[str] = []

    def fail(execute: Any, sql: str, *args: Any) -> None:
        asked.append(sql)
        raise OperationalError("couldn't get a connection after 10.00 sec")

    patient.cookies["sessionid"] = "x" * 32
    with connection.execute_wrapper(fail):
        response = patient.get("/")
    assert response.status_code == 503
    assert "The database cannot be reached." in response.content.decode()
    assert len(asked) == 1


def test_a_database_that_is_down_is_no_reason_to_kill_the_process(patient: Client, db: Any, broken: None) -> None:
    assert patient.get(reverse("health_live")).status_code == 200
    response = patient.get(reverse("health_ready"))
    assert (response.status_code, response.json()["database"]) == (503, "unavailable")


def test_pending_migrations(patient: Client, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks_table(*args: Any) -> bool:
        raise StorageUnavailable("The database cannot be used: no such table.", reason="migrations")

    monkeypatch.setattr("chatapp.selectors.is_set_up", lacks_table)
    monkeypatch.setattr("chatapp.checks.pending_migrations", lambda: ["chatapp.0002_more"])
    response = patient.get("/")
    assert response.status_code == 503
    html = response.content.decode()
    assert "The database needs an update" in html
    assert "python manage.py migrate" in html


def test_what_nobody_foresaw(patient: Client, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("chatapp.selectors.is_set_up", fail)
    response = patient.get("/")
    assert response.status_code == 500
    html = response.content.decode()
    assert "Something went wrong" in html
    assert "secret detail" not in html


def test_every_answer_has_the_strict_policy(client: Client, alice: User) -> None:
    client.force_login(alice)
    for url in ("/", "/nowhere/", "/settings/"):
        policy = client.get(url).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
