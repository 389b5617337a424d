"""The list of conversations: groups by day, search by title, pages."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from chatapp.models import Conversation, User
from chatapp.views.sidebar import _group_key, listing
from tests.chatapp.rows import many_conversations, send

TODAY = date(2026, 11, 30)
ORDER = ["pinned", "today", "yesterday", "week", "month", "older"]


def _conversation(age_days: int, *, is_pinned: bool = False) -> Conversation:
    moment = datetime(2026, 11, 30, 12, tzinfo=UTC) - timedelta(days=age_days)
    return Conversation(title="t", is_pinned=is_pinned, updated_at=moment)


@pytest.mark.parametrize(
    ("age_days", "group"),
    [
        (-3, "today"),
        (0, "today"),
        (1, "yesterday"),
        (2, "week"),
        (6, "week"),
        (7, "month"),
        (29, "month"),
        (30, "older"),
    ],
)
def test_the_group_says_how_long_ago_it_was(age_days: int, group: str) -> None:
    assert _group_key(_conversation(age_days), TODAY) == group
    assert _group_key(_conversation(age_days, is_pinned=True), TODAY) == "pinned"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400))))
def test_in_the_order_of_the_list_each_group_appears_once(entries: list[tuple[bool, int]]) -> None:
    conversations = [_conversation(age, is_pinned=pinned) for pinned, age in entries]
    conversations.sort(key=lambda c: (not c.is_pinned, -c.updated_at.timestamp()))
    keys = [_group_key(conversation, TODAY) for conversation in conversations]
    assert [ORDER.index(key) for key in keys] == sorted(ORDER.index(key) for key in keys)


def test_a_search_finds_titles_of_this_person_only(client: Client, alice: User, bob: User) -> None:
    for person, title in ((alice, "番茄炒蛋"), (alice, "Lisbon"), (bob, "番茄汤")):
        Conversation.objects.create(owner=person, title=title, updated_at=datetime.now(UTC))
    client.force_login(alice)
    html = client.get(reverse("conversations"), {"q": "番茄"}).content.decode()
    assert re.findall(r'<span class="title">(.*?)</span>', html) == ["番茄炒蛋"]
    html = client.get(reverse("conversations"), {"q": "<none>"}).content.decode()
    assert "No conversation has “&lt;none&gt;” in it." in html


def test_pages_of_the_list_follow_on_one_another(client: Client, alice: User) -> None:
    expected = [str(conversation.id) for conversation in many_conversations(alice, 120)]
    client.force_login(alice)
    found: list[str] = []
    cursor = ""
    while True:
        html = client.get(reverse("conversations"), {"cursor": cursor}).content.decode()
        found += re.findall(r'data-conversation="([^"]+)"', html)
        following = re.search(r'data-next="([^"]+)"', html)
        if following is None:
            break
        cursor = following.group(1)
    assert found == expected


def test_a_cursor_that_is_none_is_refused(client: Client, alice: User) -> None:
    client.force_login(alice)
    assert client.get(reverse("conversations"), {"cursor": "1.x"}).status_code == 400


def test_the_archive_is_a_list_of_its_own(client: Client, alice: User, bob: User) -> None:
    away, kept = many_conversations(alice, 2)
    client.force_login(alice)
    answer = client.post(reverse("conversation_archive", args=[away.id]), {"is_archived": "on"})
    assert answer.status_code == 200
    found = [
        re.findall(r'data-conversation="([^"]+)"', client.get(reverse("conversations"), query).content.decode())
        for query in ({}, {"archived": "on"}, {"archived": "on", "q": "Title 1"})
    ]
    assert found == [[str(kept.id)], [str(away.id)], []]
    client.post(reverse("conversation_archive", args=[away.id]), {"is_archived": ""})
    assert "Nothing is archived." in client.get(reverse("conversations"), {"archived": "on"}).content.decode()


@pytest.mark.parametrize("num", [1, 50])
def test_the_list_asks_a_fixed_number_of_times(alice: User, num: int, django_assert_num_queries: Any) -> None:
    many_conversations(alice, num)
    with django_assert_num_queries(2):
        listing(alice)


def test_a_row_tells_that_a_reply_is_being_written(alice: User, bob: User) -> None:
    running = send(alice).conversation
    send(bob)
    many_conversations(alice, 2)
    rows = [row for group in listing(alice).groups for row in group.rows]
    assert [row.id for row in rows if row.is_running] == [running.id]
