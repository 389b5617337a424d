"""The line under a hit: what was looked for is marked, and nothing in a text is anything but text."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import example, given
from hypothesis import strategies as st

from chatapp.models import Message, User
from chatapp.services.conversations import conversation_rename
from chatapp.snippets import MAX_CHARS, densest, snippet_of
from chatapp.views.sidebar import listing
from chatapp.words import index_words, query_terms
from tests.chatapp import rows

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</span><mark onclick=alert(1)>",
    "\"><svg onload='alert(1)'>",
    "{% if x %}{{ 7|add:7 }}",
    "&lt;b&gt; &amp; \u202e evil",
]


def marked(text: str, query: str) -> str:
    return "".join(f"[{part.text}]" if part.is_match else part.text for part in snippet_of(text, query_terms(query)))


@pytest.mark.parametrize(
    ("text", "query", "line"),
    [
        ("My cat is called Ophelia.", "ophelia", "My cat is called [Ophelia]."),
        ("Concatenate the cat", "cat", "Concatenate the [cat]"),
        ("The cats and the cat", "the cat", "[The] [cat]s and [the] [cat]"),  # the last word may be unfinished
        ("我们讨论了前缀缓存的问题", "前缀缓存", "我们讨论了[前缀缓存]的问题"),
        ("我们讨论了前缀缓存的问题", "存", "我们讨论了前缀缓[存]的问题"),
        ("重跑gen-itgc后", "itgc", "重跑gen-[itgc]后"),
        ("ＦＵＬＬ width, Straße", "full strasse", "[ＦＵＬＬ] width, [Straße]"),
        ("e\u0301te\u0301", "été", "[été]"),
        ("several\n\n  lines \t here", "lines", "several [lines] here"),
        ("the snake_case of names", "case", "the snake_[case] of names"),
        ("nothing of it", "absent", "nothing of it"),
    ],
)
def test_what_was_looked_for_is_marked(text: str, query: str, line: str) -> None:
    assert marked(text, query) == line


def test_of_a_long_text_there_is_the_part_with_most_of_the_words() -> None:
    text = "A cat. " + "Something else was said here. " * 40 + "The cat Ophelia lives in the harbour. " + "More. " * 90
    line = marked(text, "cat ophelia harbour")
    assert "[cat] [Ophelia] lives in the [harbour]" in line
    assert line.startswith("… ")
    assert line.endswith(" …")


@given(st.text(max_size=300), st.text(max_size=12))
@example("ﬃ" * 50, "ffi")
@example("İstanbul " * 30, "i̇stanbul")
@example("_0", "")
def test_the_parts_are_a_piece_of_the_text(text: str, query: str) -> None:
    parts = snippet_of(text, query_terms(query))
    line = "".join(part.text for part in parts)
    assert len(line) <= MAX_CHARS + 4
    assert "\n" not in line
    words = index_words(text)
    if words and len(text) < 30 and text.isascii():
        shown = snippet_of(text, query_terms(words[-1]))
        assert any(part.is_match and words[-1][:1] in part.text.casefold() for part in shown)


# --- in the list ------------------------------------------------------------------------------------------------------


def snippets(client: Client, query: str) -> list[str]:
    html = client.get(reverse("conversations"), {"q": query}).content.decode()
    return re.findall(r'<span class="snippet">(.*?)</span></span>', html, re.S)


@pytest.mark.django_db
@given(st.lists(st.integers(0, 60), min_size=1).map(sorted), st.integers(1, 30))
def test_the_densest_part_is_that_of_the_plain_search(places: list[int], width: int) -> None:
    plain = max(places, key=lambda place: sum(place <= other < place + width for other in places))
    assert densest(places, width) == plain


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("缓存", "前缀<mark>缓存</mark>很快。"),
        ("缓", "前缀<mark>缓</mark>存很快。"),
        ("fast", "It is <mark>fast</mark>."),
    ],
)
def test_a_hit_shows_the_newest_message_that_has_it(query: str, line: str, alice: User, client: Client) -> None:
    first = rows.turn(alice, "fast 缓存 once", "It was fast, said 缓存.")
    rows.turn(
        alice,
        "Again?",
        line.replace("<mark>", "").replace("</mark>", ""),
        conversation=first.conversation,
        parent_id=first.assistant_message.id,
    )
    client.force_login(alice)
    assert snippets(client, query) == [line]


@pytest.mark.django_db
def test_a_title_alone_has_no_line_and_nobody_sees_anothers(alice: User, bob: User, client: Client) -> None:
    conversation = rows.turn(alice, "Hello there", "Hi").conversation
    conversation_rename(user=alice, conversation_id=conversation.id, title="About zebras")
    rows.turn(bob, "zebras are secret", "zebras")
    client.force_login(alice)
    assert snippets(client, "zebras") == []
    html = client.get(reverse("conversations"), {"q": "zebras"}).content.decode()
    assert "About zebras" in html
    assert "secret" not in html


@pytest.mark.django_db
def test_thinking_is_not_shown(alice: User, client: Client) -> None:
    begun = rows.send(alice, "Hm?")
    rows.close(begun, "<think>ponder this</think>\n\nAn answer.", thinking=(27, 0))
    client.force_login(alice)
    assert snippets(client, "answer") == ["An <mark>answer</mark>."]


@pytest.mark.django_db
@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_stays_text(hostile: str, alice: User, client: Client) -> None:
    conversation = rows.turn(alice, f"{hostile} needle {hostile}", f"needle {hostile}").conversation
    conversation_rename(user=alice, conversation_id=conversation.id, title=hostile)
    client.force_login(alice)
    for query in ("needle", "alert 1", "b", "7", hostile):
        html = client.get(reverse("conversations"), {"q": query}).content.decode()
        inside = re.sub(r"</?mark>", "", html[html.index("<section") :] if "<section" in html else "")
        for tag in ("<script", "<img", "<mark", "<b>", "onclick=alert(1)>", "<svg onload"):
            assert tag not in inside, query
        assert "14" not in "".join(snippets(client, query))


@pytest.mark.django_db
def test_a_search_asks_a_fixed_number_of_times(alice: User, django_assert_num_queries: Any) -> None:
    rows.turn(alice, "needle", "yes")
    with django_assert_num_queries(4):
        assert listing(alice, query="needle").groups[0].rows[0].snippet
    for number in range(12):
        rows.turn(alice, f"needle {number}", "a needle")
    with django_assert_num_queries(4):
        found = [row.snippet for group in listing(alice, query="needle").groups for row in group.rows]
    assert len(found) == 13
    assert all(any(part.is_match for part in parts) for parts in found)
    assert Message.objects.count() == 26
