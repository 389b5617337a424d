"""The chat page and the parts of it that are fetched later."""

from __future__ import annotations

import json
import re
import uuid
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from chatapp.models import Conversation, MessageStatus, User
from chatapp.services import conversations, turns
from tests.chatapp.rows import close, long_conversation, many_conversations, send, turn

XSS = [
    '<img src=x onerror=alert("XSS_POC")>',
    "[click](javascript:alert(document.domain))",
    '<iframe srcdoc="<script>alert(1)</script>"></iframe>',
    "<svg onload=alert(1)>",
    '"><script>alert(1)</script>',
    "</script><script>alert(1)</script>",
    "{{ 7|add:7 }} {% now 'Y' %}",
]


@pytest.fixture
def page(client: Client, alice: User) -> Any:
    client.force_login(alice)
    return client


def _page_data(html: str) -> dict[str, Any]:
    found = re.search(r'<script id="page" type="application/json">(.*?)</script>', html)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def test_a_new_chat_offers_ideas_and_no_conversation(page: Client) -> None:
    html = page.get(reverse("conversation_new")).content.decode()
    assert html.count("data-starter=") == 4
    assert _page_data(html)["conversation"] is None


def test_a_conversation_shows_its_branch_with_numbers(page: Client, alice: User) -> None:
    rows = turn(alice, "What is *2 + 2*?", "It is **4**.")
    html = page.get(reverse("conversation", args=[rows.conversation.id])).content.decode()
    assert "<em>2 + 2</em>" in html
    assert "It is <strong>4</strong>." in html
    stats = re.search(r'data-status="done" data-error="" data-stats="([^"]+)"', html)
    assert stats is not None
    numbers = json.loads(stats.group(1).replace("&quot;", '"'))
    assert numbers["prompt_tokens"] == 30 == numbers["reused_ram"] + numbers["reused_disk"] + numbers["computed"]


def test_an_open_reply_is_marked_as_such(page: Client, alice: User) -> None:
    rows = send(alice)
    html = page.get(reverse("conversation", args=[rows.conversation.id])).content.decode()
    assert f'class="message message-assistant is-open" id="m-{rows.assistant_message.id}"' in html
    assert f'is-running is-current" data-conversation="{rows.conversation.id}"' in html


def test_what_went_wrong_is_on_the_page(page: Client, alice: User) -> None:
    rows = send(alice)
    close(rows, "", status=MessageStatus.FAILED, error='The "model" said no.', generation=None)
    html = page.get(reverse("conversation", args=[rows.conversation.id])).content.decode()
    assert 'data-status="failed" data-error="The &quot;model&quot; said no." data-stats=""' in html


@pytest.mark.parametrize("text", XSS)
def test_nothing_of_what_people_or_models_write_is_markup(page: Client, alice: User, text: str) -> None:
    rows = turn(alice, text, text)
    turns.context_add(rows.user_message, text=f"> User: {text}", sources=[rows.user_message.id])
    Conversation.objects.filter(id=rows.conversation.id).update(title=text[:200])
    for url in (
        reverse("conversation", args=[rows.conversation.id]),
        reverse("message_window", args=[rows.conversation.id]),
        reverse("conversations") + "?q=" + text[:4],
        reverse("conversations") + "?" + "q=" + text.replace("=", "%3D").replace("&", "%26"),
    ):
        html = page.get(url).content.decode()
        for mark in ("<img", "<iframe", "<svg on", '="javascript:', "<script>", "14 20"):
            assert mark not in html, url


def test_what_was_recalled_for_a_question_is_with_it(page: Client, alice: User, django_assert_num_queries: Any) -> None:
    first = turn(alice, "My cat is called Mitzi")
    asked = turn(alice, "Which cat?", conversation=first.conversation, parent_id=first.assistant_message.id)
    gone = uuid.uuid4()
    quotation = 'Earlier:\n> User: My "cat" is <b>Mitzi</b>\n\n'
    turns.context_add(asked.user_message, text=quotation, sources=[first.user_message.id, gone])
    url = reverse("message_window", args=[first.conversation.id])
    with django_assert_num_queries(8):  # session, person; conversation, path, siblings, generations; context, positions
        html = page.get(url).json()["html"]
    (told,) = re.findall(r'data-recalled="([^"]*)"', html)
    recalled = json.loads(unescape(told))
    assert recalled == {"text": quotation, "sources": [{"message": str(first.user_message.id), "position": 0}]}
    article = html.split("<article")[3]
    assert str(asked.user_message.id) in article
    assert "data-recalled" in article


def test_no_page_has_inline_script_or_style(page: Client, alice: User) -> None:
    rows = turn(alice)
    for url in ("/", f"/c/{rows.conversation.id}/", "/settings/", "/nowhere/"):
        html = page.get(url).content.decode()
        assert not re.search(r"<style|\sstyle=|\son\w+=|href=.javascript:", html), url
        for tag in re.findall(r"<script[^>]*>", html):
            assert "src=" in tag or 'type="application/json"' in tag, tag


def test_versions_lead_to_each_other(page: Client, alice: User) -> None:
    first = turn(alice)
    second = turns.regenerate_create(
        user=alice,
        conversation_id=first.conversation.id,
        message_id=first.assistant_message.id,
        client_id=uuid.uuid4(),
    )
    close(second, "Another")
    url = reverse("conversation_branch", args=[first.conversation.id])
    html = page.get(reverse("conversation", args=[first.conversation.id])).content.decode()
    assert f'data-target="{first.assistant_message.id}"' in html
    assert "2/2" in html
    answer = page.post(url, {"message": str(first.assistant_message.id)}).json()
    assert "1/2" in answer["html"]
    assert f'data-target="{second.assistant_message.id}"' in answer["html"]


def test_older_messages_come_window_by_window(page: Client, alice: User) -> None:
    conversation = long_conversation(alice, 120)
    html = page.get(reverse("conversation", args=[conversation.id])).content.decode()
    seen = re.findall(r'id="m-([0-9a-f-]{36})"', html.split('id="outbox"')[0])
    older = _page_data(html)["older"]
    url = reverse("message_window", args=[conversation.id])
    while older is not None:
        answer = page.get(url, {"before": older}).json()
        seen = re.findall(r'id="m-([0-9a-f-]{36})"', answer["html"]) + seen
        older = answer["older"]
    expected = conversation.messages.order_by("position").values_list("id", flat=True)
    assert seen == [str(message_id) for message_id in expected]


@pytest.mark.parametrize("before", ["x", "1' OR 1=1", "00000000-0000-0000-0000-000000000000"])
def test_a_window_above_nothing_is_refused(page: Client, alice: User, before: str) -> None:
    rows = turn(alice)
    url = reverse("message_window", args=[rows.conversation.id])
    assert page.get(url, {"before": before}).status_code in (400, 404)


def test_the_text_of_a_message_is_what_was_stored(page: Client, alice: User) -> None:
    text = "  two spaces,\r\na <b>tag</b> & 二分查找 \n"
    rows = turn(alice, text)
    response = page.get(reverse("message_text", args=[rows.conversation.id, rows.user_message.id]))
    assert response.content.decode() == text
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(("num_messages", "num_conversations"), [(2, 0), (100, 60)])
def test_the_chat_page_asks_a_fixed_number_of_times(
    page: Client, alice: User, num_messages: int, num_conversations: int, django_assert_num_queries: Any
) -> None:
    conversation = long_conversation(alice, num_messages)
    many_conversations(alice, num_conversations)
    # session, person, conversation; for the window conversation, path, siblings, generations, what was recalled; list,
    # running ones
    with django_assert_num_queries(10):
        page.get(reverse("conversation", args=[conversation.id]))


def test_a_page_is_private(page: Client, alice: User) -> None:
    rows = turn(alice)
    for url in ("/", f"/c/{rows.conversation.id}/", "/conversations/"):
        assert page.get(url).headers["Cache-Control"] == "private, no-store"


def test_another_branch_is_told_to_other_tabs(page: Client, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr("chatapp.hints.conversation_changed", lambda *args, **kwargs: told.append((*args, kwargs)))
    rows = turn(alice)
    page.post(reverse("conversation_rename", args=[rows.conversation.id]), {"title": " A\tb "})
    page.post(reverse("conversation_delete", args=[rows.conversation.id]))
    assert told == [
        (alice.pk, rows.conversation.id, {"title": "A b"}),
        (alice.pk, rows.conversation.id, {"is_deleted": True}),
    ]
    with pytest.raises(Conversation.DoesNotExist):
        conversations.selectors.Conversation.objects.get(id=rows.conversation.id)
