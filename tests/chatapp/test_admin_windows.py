"""The admin shows what of a conversation its prompts held: window, summaries, what was recalled."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from chatapp.models import Conversation, Generation, Message, Summary, TurnContext, User
from tests.chatapp.rows import long_conversation, turn

pytestmark = pytest.mark.django_db
XSS = '<img src=x onerror=alert("XSS_POC")>'


def _change(row: Any) -> str:
    return reverse(f"admin:chatapp_{row._meta.model_name}_change", args=[row.pk])


def _link(row: Any, text: str) -> str:
    return f'<a href="{_change(row)}" class="text-link">{text}</a>'


def windowed(owner: User, num_messages: int = 40, num_summaries: int = 2) -> tuple[Conversation, list[Message]]:
    """Its newest reply began with question 11, a summary stood for ten turns, and two messages were recalled."""
    conversation = long_conversation(owner, num_messages)
    messages = list(conversation.messages.order_by("position"))
    Summary.objects.bulk_create(
        Summary(conversation=conversation, until=messages[19], text=f"{XSS} {n}", num_messages=20, num_missing=4)
        for n in range(num_summaries)
    )
    Generation.objects.filter(message=messages[-1]).update(
        window_start=messages[20].id, num_outside=20, window_limit=6543, num_left=8, num_prompt_tokens=0
    )
    Generation.objects.filter(message=messages[-1]).update(summary=conversation.summaries.last())
    sources = [str(messages[4].id), str(messages[7].id)]
    TurnContext.objects.create(message=messages[-2], text=XSS, sources=sources)
    return conversation, messages


def test_pages_of_conversation_and_generation_show_the_window(staff: Client, owner: User) -> None:
    conversation, messages = windowed(owner)
    summary = conversation.summaries.last()
    for row in (conversation, Generation.objects.get(message=messages[-1])):
        page = staff.get(_change(row)).content.decode()
        assert _link(messages[20], "question 11") in page
        assert "6543" in page.replace(",", "")
        assert _change(summary) in page
        assert f"{_link(messages[4], 'question 3')}, {_link(messages[7], 'reply 4')}" in page
    assert "Leave out the oldest" in page or conversation.get_context_policy_display() in page


def test_a_conversation_that_fits_begins_with_its_first_message(staff: Client, owner: User) -> None:
    rows = turn(owner)
    for row in (rows.conversation, Generation.objects.get()):
        assert "the first message" in staff.get(_change(row)).content.decode()
    empty = Conversation.objects.create(owner=owner, title="Empty", updated_at=rows.conversation.updated_at)
    assert "the first message" not in staff.get(_change(empty)).content.decode()


def test_summaries_and_quotations_have_pages_with_links(staff: Client, owner: User) -> None:
    conversation, messages = windowed(owner)
    page = staff.get(_change(conversation.summaries.first())).content.decode()
    assert _link(messages[19], "reply 10") in page
    assert _change(conversation) in page
    context = TurnContext.objects.get()
    page = staff.get(_change(context)).content.decode()
    assert _link(messages[-2], "question 20") in page
    assert _link(conversation, "Long") in page
    assert _link(messages[7], "reply 4") in page
    assert _link(messages[7], "reply 4") in staff.get(_change(messages[-2])).content.decode()
    for row in (conversation.summaries.first(), context):
        assert "<img src=x" not in staff.get(_change(row)).content.decode()


@pytest.mark.parametrize("name", ["summary", "turncontext"])
def test_nothing_of_it_can_be_changed(name: str, staff: Client, owner: User) -> None:
    conversation, _messages = windowed(owner)
    row = {"summary": conversation.summaries.first(), "turncontext": TurnContext.objects.get()}[name]
    assert staff.get(reverse(f"admin:chatapp_{name}_add")).status_code == 403
    assert staff.post(_change(row), {"text": "other"}).status_code == 403
    assert staff.get(reverse(f"admin:chatapp_{name}_delete", args=[row.pk])).status_code == 403
    row.refresh_from_db()
    assert "XSS_POC" in row.text


def test_no_page_costs_more_because_there_is_more(staff: Client, owner: User, django_assert_num_queries: Any) -> None:
    (short, few), (long, many) = windowed(owner), windowed(owner, 300, 40)
    pairs = [
        (short, long),
        (few[-2], many[-2]),
        (Generation.objects.get(message=few[-1]), Generation.objects.get(message=many[-1])),
        (few[-2].context, many[-2].context),
        (short.summaries.first(), long.summaries.first()),
    ]
    for one, other in pairs:
        with django_assert_num_queries(20, exact=False) as asked:
            assert staff.get(_change(one)).status_code == 200
        with django_assert_num_queries(len(asked)):
            assert staff.get(_change(other)).status_code == 200
