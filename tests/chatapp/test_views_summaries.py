"""A summary as the page reads it, and the change of its words."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from chatapp.models import Message, Summary, User
from chatapp.services.summaries import MAX_CHARS, summary_create
from tests.chatapp.rows import turn
from tests.chatapp.test_views_chat import XSS


@pytest.fixture
def page(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Hints to other tabs."""
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr("chatapp.hints.conversation_changed", lambda *args, **kwargs: told.append(args))
    return told


def summary_of(user: User, text: str, **changes: Any) -> tuple[Summary, Message]:
    reply = turn(user).assistant_message
    made = summary_create(until_id=reply.id, text=text, model_name="tiny", **changes)
    assert made is not None
    return made, reply


def url(name: str, summary: Summary) -> str:
    return reverse(name, args=[summary.conversation_id, summary.id])


def test_it_is_told_what_it_stands_for_and_who_wrote_it(page: Client, alice: User) -> None:
    summary, reply = summary_of(alice, "A *cat*.\n\nTwo.", num_missing=1)
    assert page.get(url("summary", summary)).json() == {
        "id": str(summary.id),
        "until": str(reply.id),
        "messages": 2,
        "missing": 1,
        "model": "tiny",
        "is_edited": False,
        "text": "A *cat*.\n\nTwo.",
        "blocks": ["<p>A <em>cat</em>.</p>", "<p>Two.</p>"],
    }


def test_a_change_is_another_summary_that_other_tabs_hear_of(page: Client, alice: User, told: list[Any]) -> None:
    summary, reply = summary_of(alice, "A cat.")
    answer = page.post(url("summary_edit", summary), {"text": " A **dog**. "}).json()
    assert (answer["text"], answer["is_edited"], answer["until"]) == ("A **dog**.", True, str(reply.id))
    assert answer["blocks"] == ["<p>A <strong>dog</strong>.</p>"]
    assert answer["id"] != str(summary.id)
    assert page.get(url("summary", summary)).json()["text"] == "A cat."  # nothing is overwritten
    assert told == [(alice.pk, summary.conversation_id)]


def test_the_same_words_change_nothing(page: Client, alice: User, told: list[Any]) -> None:
    summary, _ = summary_of(alice, "A cat.")
    assert page.post(url("summary_edit", summary), {"text": "A cat.\n"}).json()["id"] == str(summary.id)
    assert told == []


@pytest.mark.parametrize("text", ["", " \n", "x" * (MAX_CHARS + 1), "a\0b"])
def test_what_is_no_summary_is_refused_in_words(page: Client, alice: User, text: str, told: list[Any]) -> None:
    summary, _ = summary_of(alice, "A cat.")
    answer = page.post(url("summary_edit", summary), {"text": text}, headers={"X-Requested-With": "fetch"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    assert "summary" in answer.json()["message"]
    assert Summary.objects.count() == 1
    assert told == []


@pytest.mark.parametrize("text", XSS)
def test_nothing_in_it_is_markup(page: Client, alice: User, text: str) -> None:
    summary, _ = summary_of(alice, text)
    html = "".join(page.get(url("summary", summary)).json()["blocks"])
    for mark in ("<img", "<iframe", "<svg on", '="javascript:', "<script>"):
        assert mark not in html


def test_a_summary_that_is_not_there(page: Client, alice: User) -> None:
    summary, _ = summary_of(alice, "A cat.")
    nowhere = reverse("summary", args=[summary.conversation_id, uuid.uuid4()])
    assert page.get(nowhere, headers={"X-Requested-With": "fetch"}).status_code == 404
