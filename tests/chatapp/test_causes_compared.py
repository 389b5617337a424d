"""The comparison alone: what is kept of a prompt, what a later one shares with it, and causes that are rare."""

from __future__ import annotations

import datetime
import uuid
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from chatapp import llm
from chatapp.models import Generation, PrefixBreak, User
from chatapp.selectors import HistoryMessage
from chatapp.turn.causes import Earlier, Explanation, Relation, explain
from chatapp.turn.sent import Outline, Sent, common_lengths, extended, is_readable, prefix_digests
from chatapp.turn_rows import sent_above, sent_near
from tests.chatapp.rows import long_conversation, turn

NOW = datetime.datetime(2026, 3, 7, tzinfo=datetime.UTC)
IDENTITY = llm.KvIdentity(b"model 01", b"salt 001", b"run 0001", b"load 001")
HEAD, LENGTH, REPLY = 6, 10, list(range(900, 912))  # tokens of the head, of each message, of the reply
tokens = st.lists(st.integers(0, 5), max_size=40)


def prompt_of(messages: list[int], head: int = 0, **changes: Any) -> Outline:
    """Ten tokens for each of these messages, the last one the question; they tell nothing but their number."""
    ids = [*range(head, head + HEAD), *(100 * number + i for number in messages for i in range(LENGTH)), 7]
    ends = [HEAD + LENGTH * i for i in range(len(messages) + 1)]
    rows = [
        HistoryMessage(uuid.UUID(int=number), i, "assistant" if i % 2 else "user", "", "done", None, "", 0, 0, "")
        for i, number in enumerate(messages)
    ]
    values: dict[str, Any] = {
        "digests": prefix_digests(np.array(ids, np.int32)),
        "ends": np.array(ends),
        "rows": rows,
        "messages": [llm.ChatMessage(row.role, "", (1,)) for row in rows],
        "head_end": HEAD,
        "history_end": ends[-2],
        "question_end": ends[-1],
        "prompt_end": len(ids),
    }
    return Outline(**(values | changes))


def beside(outline: Outline, sent: Sent, relation: Relation = Relation.BEFORE, position: int = 1) -> Earlier:
    num_common = int(common_lengths(outline, [sent.pack()])[0][0])
    return Earlier(relation, position, NOW, sent, num_common)


def told(outline: Outline, *earlier: Earlier, reused: int = HEAD, **changes: Any) -> Explanation:
    num_prompt = len(outline.digests) - 1
    values: dict[str, Any] = {"num_prompt": num_prompt, "num_reused": reused, "miss": llm.MissCause.NEW}
    return explain(outline, earlier, IDENTITY, **(values | changes))


# --- what is kept -----------------------------------------------------------------------------------------------------


@given(tokens, tokens)
def test_digests_tell_where_two_prompts_part(a: list[int], b: list[int]) -> None:
    equal = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    pairs = zip(prefix_digests(np.array(a, np.int32)), prefix_digests(np.array(b, np.int32)), strict=False)
    assert [x == y for x, y in pairs] == [i <= equal for i in range(1 + min(len(a), len(b)))]


@given(tokens, tokens)
def test_a_mark_can_be_moved_on_without_the_tokens_before_it(a: list[int], b: list[int]) -> None:
    whole = prefix_digests(np.array([*a, *b], np.int32))
    outline = prompt_of([1])
    mark = replace(outline, digests=whole).mark(len(a))
    assert extended(mark, b) == (len(a) + len(b), int(whole[-1]))


def test_what_is_packed_is_unpacked() -> None:
    sent = prompt_of([1]).sent(IDENTITY, REPLY, 20)
    assert len(sent.pack()) == 97
    assert Sent.unpack(sent.pack()) == sent


@pytest.mark.parametrize("raw", [None, b"", b"\x01", b"\x00" * 97, b"\x01" * 97])
def test_what_another_version_wrote_is_nothing(raw: bytes | None) -> None:
    assert not is_readable(raw)
    assert Sent.unpack(raw) is None


def test_a_prompt_shares_what_lies_before_the_last_equal_mark() -> None:
    sent = prompt_of([1, 2, 3]).sent(IDENTITY, REPLY, 1000)
    for messages, expected in (([1, 2, 3], 37), ([1, 2, 9], 26), ([1, 8, 3], 6), ([1, 2, 3, 4], 36)):
        assert common_lengths(prompt_of(messages), [sent.pack()])[0].tolist() == [expected]
    assert common_lengths(prompt_of([1, 2, 3], head=50), [sent.pack()])[0].tolist() == [0]


# --- windows and summaries --------------------------------------------------------------------------------------------


def test_a_window_that_has_moved_is_told_from_the_message_with_which_it_begins() -> None:
    before = prompt_of([1, 2, 3]).sent(IDENTITY, REPLY, 1000)
    moved = prompt_of([3, 4, 5], window_start=uuid.UUID(int=3))
    found = told(moved, beside(moved, before))
    assert (found.cause, found.message) == (PrefixBreak.WINDOW_MOVED, uuid.UUID(int=3))


def test_a_summary_that_has_taken_the_place_of_messages_is_told() -> None:
    before = prompt_of([1, 2, 3]).sent(IDENTITY, REPLY, 1000)
    replaced = prompt_of([3, 4, 5], window_start=uuid.UUID(int=3), summary=uuid.UUID(int=71))
    earlier = replace(beside(replaced, before), summary=uuid.UUID(int=70))
    assert told(replaced, earlier).cause == PrefixBreak.SUMMARY_REPLACED


def test_a_conversation_that_goes_on_in_its_moved_window_has_nothing_to_explain() -> None:
    start = uuid.UUID(int=3)
    first = prompt_of([3, 4, 5], window_start=start)
    reply = [600 + i for i in range(LENGTH)]
    later = prompt_of([3, 4, 5, 6, 7], window_start=start)
    # What stands between question and reply is the one token in front of it in both.
    later = replace(
        later, digests=prefix_digests(ids_with_reply([3, 4, 5], reply, [7])), history_end=first.prompt_end + LENGTH
    )
    earlier = replace(beside(later, first.sent(IDENTITY, reply, 1000)), window_start=start)
    assert earlier.num_common == later.history_end
    assert told(later, earlier, reused=later.history_end) == Explanation(num_known=later.history_end)


def ids_with_reply(messages: list[int], reply: list[int], later: list[int]) -> np.ndarray:
    ids = [*range(HEAD), *(100 * number + i for number in messages for i in range(LENGTH)), 7, *reply]
    return np.array([*ids, *(100 * number + i for number in later for i in range(LENGTH)), 7], np.int32)


# --- several memories -------------------------------------------------------------------------------------------------


def elsewhere(**changes: bytes) -> llm.KvIdentity:
    return replace(IDENTITY, **changes)


@pytest.mark.parametrize(
    ("identities", "miss", "expected"),
    [
        ([IDENTITY], llm.MissCause.NEW, PrefixBreak.EVICTED),
        ([elsewhere(load=b"load 000")], llm.MissCause.NEW, PrefixBreak.UNLOADED),
        ([elsewhere(run=b"run 0000", load=b"load 000")], llm.MissCause.NEW, PrefixBreak.RESTARTED),
        ([elsewhere(salt=b"salt 000", run=b"run 0000")], llm.MissCause.NEW, PrefixBreak.OTHER_SALT),
        ([elsewhere(run=b"run 0000", load=b"load 000"), IDENTITY], llm.MissCause.NEW, PrefixBreak.EVICTED),
        ([elsewhere(run=b"run 0000", load=b"load 000")], llm.MissCause.EVICTED, PrefixBreak.EVICTED),
        ([elsewhere(run=b"run 0000", load=b"load 000")], llm.MissCause.RESTORE_FAILED, PrefixBreak.RESTORE_FAILED),
    ],
)
def test_what_was_lost_is_told_by_whose_memory_it_was_left_in(
    identities: list[llm.KvIdentity], miss: llm.MissCause, expected: PrefixBreak
) -> None:
    outline = prompt_of([1, 2, 3])
    earlier = [beside(outline, outline.sent(each, REPLY, 1000), Relation.OWN) for each in identities]
    found = told(outline, *earlier, miss=miss)
    assert (found.cause, found.message) == (expected, uuid.UUID(int=1))
    assert found.num_known == 36  # the last token is computed for its logits


def test_a_turn_that_ended_before_its_prompt_was_read_has_left_only_that() -> None:
    outline = prompt_of([1, 2, 3])
    failed = beside(outline, outline.sent(IDENTITY, [], 12), Relation.OWN)
    assert told(outline, failed, reused=12) == Explanation(PrefixBreak.FIRST_USE, uuid.UUID(int=1), 0, 12)
    assert told(outline, failed, reused=30) == Explanation(num_known=12)


# --- the reads --------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("num_messages", [4, 200])
def test_near_is_one_query_of_a_few_rows(alice: User, num_messages: int, django_assert_num_queries: Any) -> None:
    conversation = long_conversation(alice, num_messages)
    Generation.objects.update(num_prompt_tokens=3, num_computed=3)
    messages = list(conversation.messages.order_by("position"))
    question = messages[-2]
    with django_assert_num_queries(1):
        rows = sent_near(question)
    assert {row.message_id for row in rows} == {messages[-1].id, messages[-3].id}
    with django_assert_num_queries(1):
        above = sent_above(question)
    assert [row.position for row in above] == list(range(num_messages - 1, 0, -2))


@pytest.mark.django_db
def test_no_send_reads_a_whole_table(alice: User) -> None:
    question = turn(alice).user_message
    later = turn(alice, conversation=question.conversation, parent_id=question.children.get().id).user_message
    explain = "EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN "
    for row in (question, later):
        with CaptureQueriesContext(connection) as queries:
            sent_near(row)
            sent_above(row)
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("SET LOCAL enable_seqscan = off")  # as for a table that is larger than this one
            for query in queries.captured_queries[:2]:
                cursor.execute(explain + query["sql"])
                plan = "\n".join(str(line[-1]) for line in cursor.fetchall())
                assert "SCAN chatapp_" not in plan, plan
                assert "Seq Scan" not in plan, plan


@pytest.mark.django_db
def test_what_was_sent_elsewhere_or_never_admitted_is_not_read(alice: User) -> None:
    mine, other = turn(alice), turn(alice)
    assert [row.message_id for row in sent_near(mine.user_message)] == [mine.assistant_message.id]
    assert other.assistant_message.id not in {row.message_id for row in sent_above(mine.user_message)}
    Generation.objects.update(num_prompt_tokens=0, num_reused_ram=0, num_computed=0)
    assert [row.num_prompt for row in sent_near(mine.user_message)] == [0], "where its window began may still be asked"
    assert sent_above(mine.user_message) == []
