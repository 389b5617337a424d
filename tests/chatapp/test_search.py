"""Messages are found by their words, by one or two Chinese characters, and by their owner alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from random import Random
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from chatapp import search, selectors
from chatapp.models import Message, SearchEntry, User
from chatapp.services import conversations
from chatapp.views.sidebar import listing
from chatapp.words import MAX_WORD_CHARS, index_words, query_terms, telling_words
from tests.chatapp import rows

MIXED = "我们讨论了前缀缓存的问题 重跑gen-itgc后"


def is_found(text: str, query: str) -> bool:
    """By the words alone, as an index would."""
    words = index_words(text)
    return all(
        any(word.startswith(term.word) if term.is_prefix else word == term.word for word in words)
        for term in query_terms(query)
    )


@pytest.mark.parametrize(
    "query", ["缓存", "前缀缓存", "缓", "题", "itgc", "gen", "ITGC", "重跑gen", "讨论 缓存", "的问题"]
)
def test_parts_of_a_mixed_sentence_find_it(query: str) -> None:
    assert is_found(MIXED, query)


@pytest.mark.parametrize("query", ["存缓", "tgc", "缓存讨", "没有"])
def test_what_is_not_in_it_does_not(query: str) -> None:
    assert not is_found(MIXED, query)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("사람들은 말한다", "사람"),
        ("Straße nach Köln", "strasse"),
        ("ＦＵＬＬ width", "full"),
        ("e\u0301te\u0301", "été"),
        ("हिन्दी में", "हिन्दी"),
        ("日本語のテスト", "テスト"),
        ("version 3.14", "3.14"),
        ("généralement", "génér"),
    ],
)
def test_scripts_and_spellings(text: str, query: str) -> None:
    assert is_found(text, query)


@given(st.text(max_size=80), st.data())
def test_a_text_is_found_by_each_of_its_words(text: str, data: st.DataObject) -> None:
    words = index_words(text)
    assert len(set(words)) == len(words)
    if words:
        word = data.draw(st.sampled_from(words))
        assert 0 < len(word) <= MAX_WORD_CHARS
        assert is_found(text, word)


def test_a_question_tells_by_what_is_rare() -> None:
    assert telling_words("Hello, could you please tell me what my cat's name is?") == ["cat", "name"]
    assert telling_words("你们的猫叫什么 7") == ["们的", "的猫", "猫叫", "叫什", "7"]


# --- the index --------------------------------------------------------------------------------------------------------


def titles(user: User, query: str) -> list[str]:
    return [row.title for group in listing(user, query=query).groups for row in group.rows]


@pytest.mark.django_db
def test_questions_and_replies_are_found_and_titles_are_still(alice: User, bob: User) -> None:
    rows.turn(alice, "我们讨论了前缀缓存", "Caching of prefixes.")
    rows.turn(alice, "A walk in the park", "Trees.")
    rows.turn(bob, "缓存", "prefixes")
    assert titles(alice, "缓存") == ["我们讨论了前缀缓存"]
    assert titles(alice, "存") == ["我们讨论了前缀缓存"]
    assert titles(alice, "prefixes caching") == ["我们讨论了前缀缓存"]  # one message has both
    assert titles(alice, "prefix") == ["我们讨论了前缀缓存"]  # unfinished
    assert titles(alice, "alk in") == ["A walk in the park"]  # a part of a title
    assert titles(alice, "trees prefixes") == []
    assert titles(alice, "!?") == []
    assert titles(bob, "caching") == []


@pytest.mark.django_db
def test_no_text_gets_into_another_persons_results(alice: User, bob: User) -> None:
    conversation = rows.turn(bob, f"o{alice.pk} wsecret xe7bc93 c{'0' * 32}", f"owner o{alice.pk} secret").conversation
    assert titles(alice, "secret") == titles(alice, f"o{alice.pk}") == titles(alice, f"o{bob.pk}") == []
    assert titles(bob, "secret") == [conversation.title]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query", ["'", '"', "a'b\"c", "* & | ! <-> ( )", "a:*b", "\0", "OR", "NEAR(a b)", "é'--", "%_"]
)
def test_no_query_is_an_error(alice: User, query: str) -> None:
    rows.turn(alice, "plain", "text")
    titles(alice, query)
    titles(alice, "plain " + query)


@pytest.mark.django_db
def test_thinking_is_not_searched(alice: User) -> None:
    begun = rows.send(alice, "Hm?")
    rows.close(begun, "<think>ponder</think>\n\nAnswer.", thinking=(23, 0))
    assert titles(alice, "ponder") == []
    assert titles(alice, "answer") == ["Hm?"]


@pytest.mark.django_db
def test_a_reply_that_grew_is_found_by_what_it_says_now_and_nothing_remains(alice: User) -> None:
    begun = rows.turn(alice, "Hello", "first")
    reply = begun.assistant_message
    Message.objects.filter(id=reply.id).update(text="second")
    reply.refresh_from_db()
    search.index(reply, owner_id=alice.pk)
    assert titles(alice, "first") == []
    assert titles(alice, "second") == ["Hello"]
    conversations.conversation_delete(user=alice, conversation_id=begun.conversation.id)
    assert SearchEntry.objects.count() == 0
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {search.FTS_TABLE} WHERE {search.FTS_TABLE} MATCH 'wsecond'")
            assert cursor.fetchone() == (0,)
            cursor.execute(f"INSERT INTO {search.FTS_TABLE}({search.FTS_TABLE}) VALUES ('integrity-check')")


def test_the_search_box_finds_what_was_said(alice: User, client: Client) -> None:
    rows.turn(alice, "About storage", "The 缓存 keeps blocks.")
    client.force_login(alice)
    assert "About storage" in client.get(reverse("conversations"), {"q": "缓"}).content.decode()


# --- what is related --------------------------------------------------------------------------------------------------


def told(alice: User, *texts: str) -> Message:
    """The end of a conversation in which each of these was said and acknowledged."""
    reply: Message | None = None
    for text in texts:
        where = {"conversation": reply.conversation, "parent_id": reply.id} if reply else {}
        reply = rows.turn(alice, text, "All right.", **where).assistant_message
    assert reply is not None
    return reply


def related(leaf: Message, text: str, before: int) -> list[search.Hit]:
    question = Message.objects.create(
        conversation=leaf.conversation, parent=leaf, role="user", text=text, position=leaf.position + 1
    )
    return search.related(leaf.conversation, question, before)


@pytest.mark.django_db
def test_the_rare_word_decides(alice: User) -> None:
    last = told(alice, "My cat is named Mitzi", "I like trains", "A cat on a train", "Trains are late", "I like ships")
    hits = related(last, "What is the name of my cat on trains, Mitzi?", 10)
    assert [(hit.position, hit.role, hit.text) for hit in hits[:1]] == [(0, "user", "My cat is named Mitzi")]
    assert hits[0].score > hits[1].score
    assert related(last, "What is it about?", 10) == []
    assert [hit.position for hit in related(last, "Mitzi", 1)] == [0]
    assert related(last, "Mitzi", 0) == []


@pytest.mark.django_db
def test_what_is_deleted_while_it_is_looked_for_is_not_related(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count for the composer has no transaction around it."""
    last = told(alice, "My cat is named Mitzi")

    def deleting(question: Message, places: Mapping[UUID, int]) -> set[UUID]:
        conversations.conversation_delete(user=alice, conversation_id=last.conversation_id)
        return found(question, places)

    found = search.path_ids
    monkeypatch.setattr(search, "path_ids", deleting)
    assert related(last, "Mitzi", 1) == []


def plainly_related(messages: list[Message], text: str, before: int) -> list[tuple[int, float]]:
    """As search.related() says it, with every message read. Positions and scores, the best ones first."""
    having = [[message for message in messages if word in index_words(message.answer)] for word in telling_words(text)]
    having = sorted((found for found in having if 0 < len(found) <= search.MAX_OF_WORD), key=len)
    scores: dict[int, float] = {}
    num_read = 0
    for found in having:
        if num_read >= search.MAX_RELATED:
            break
        num_read += len(found)
        above = [message.position for message in found if message.position < before]
        if len(above) <= max(4, before // 5):
            for position in above:
                weight = log(1 + (before - len(above) + 0.5) / (len(above) + 0.5))
                scores[position] = scores.get(position, 0.0) + weight
    return sorted(scores.items(), key=lambda each: (-each[1], -each[0]))[:8]


@pytest.mark.django_db
@pytest.mark.parametrize("seed", range(3))
def test_what_is_related_is_what_a_reading_of_everything_finds(
    seed: int, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frequent words and rare ones, of English and of Chinese, with limits that are reached; and again, when the words
    that are in too many messages are known."""
    monkeypatch.setattr(search, "MAX_OF_WORD", 12)
    monkeypatch.setattr(search, "MAX_RELATED", 20)
    chance = Random(seed)
    vocabulary = ["fox", "harbour", "cat", "wizard", "jug", "缓存", "猫", "港口", "前缀", "ophelia", "vardø", "7"]
    pick = lambda: [chance.choice(vocabulary[: chance.randint(1, len(vocabulary))]) for _ in range(4)]
    leaf = told(alice, *(" ".join(pick()) for _ in range(30)))
    messages = list(leaf.conversation.messages.order_by("position"))
    told(alice, " ".join(vocabulary))
    for text in [" ".join(pick()) for _ in range(6)] + [" ".join(vocabulary)] * 2:
        asked = Message(
            id=leaf.id, conversation_id=leaf.conversation_id, text=text, role="user", position=leaf.position
        )
        hits = search.related(leaf.conversation, asked, 50)
        assert [(hit.position, hit.score) for hit in hits] == plainly_related(messages, text, 50), text


def test_common_words_are_kept_of_a_few_conversations() -> None:
    common = search.CommonWords()
    first, *others = [UUID(int=number) for number in range(65)]
    common.add(first, ["cat"])
    common.add(first, ["dog"])
    assert common.of(first) == {"cat", "dog"}
    for other in others:
        common.add(other, ["cat"])
    assert common.of(first) == frozenset()
    assert common.of(others[0]) == {"cat"}


@pytest.mark.django_db
def test_other_branches_and_conversations_are_not_related(alice: User) -> None:
    last = told(alice, "My cat is named Mitzi", "Indeed")
    told(alice, "Mitzi is elsewhere")
    first = last.conversation.messages.get(position=1)
    rows.turn(alice, "Mitzi was another", "Yes, Mitzi", conversation=last.conversation, parent_id=first.id)
    assert [hit.text for hit in related(last, "Mitzi?", 4)] == ["My cat is named Mitzi"]
    assert selectors.path_ids(last, {}) == set()
