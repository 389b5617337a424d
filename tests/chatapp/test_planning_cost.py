"""What planning a turn reads and renders does not depend on how long the conversation is: counted, not timed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatapp import search, selectors
from chatapp.models import ContextPolicy, Conversation, Generation, Message, SearchEntry, Summary, User
from chatapp.services.turns import TurnRows
from chatapp.turn.gauge import Gauge
from chatapp.turn.past import Past, Read, fitted, rules_of
from chatapp.turn.planning import planned
from chatapp.turn.prompt import Plan
from chatapp.words import telling_words
from tests.chatapp import rows
from tests.chatapp.fake_worker import ByteTemplate, FakeWorker

pytestmark = pytest.mark.django_db
SECRET = "The harbour is called Vardø."
ASKED = "What did message 7 say about the harbour, and what about the message after it?"


@pytest.fixture
def small(worker: FakeWorker) -> FakeWorker:
    """A window that a dozen messages fill, a token a byte."""
    worker.opened.max_model_len = 4000
    return worker


def long_conversation(user: User, num_messages: int, policy: ContextPolicy) -> Conversation:
    """Found by its words, and as the turns of a window that moves leave it: the newest dozen messages are sent."""
    conversation = rows.long_conversation(user, num_messages)
    Message.objects.filter(conversation=conversation, position=2).update(text=SECRET)
    Conversation.objects.filter(id=conversation.id).update(context_policy=policy, has_recall=True, recent_tokens=2600)
    conversation.refresh_from_db()
    messages = list(conversation.messages.order_by("position"))
    SearchEntry.objects.bulk_create(
        SearchEntry(
            message=message, keys=search.keys_of(message.text, owner_id=user.pk, conversation_id=conversation.id)
        )
        for message in messages
    )
    if policy == ContextPolicy.SUMMARISE:
        Summary.objects.bulk_create(
            Summary(conversation=conversation, until=last, text="So it was.", num_messages=last.position + 1)
            for last in messages[9:-12:10]
        )
    begin = messages[-12]
    Generation.objects.filter(message=messages[-1]).update(
        window_start=begin.id, num_outside=begin.position, window_limit=rules_of(conversation).limit
    )
    return conversation


@dataclass(frozen=True)
class Work:
    """Queries, rows that they gave, messages that were rendered."""

    num_queries: int
    num_rows: int
    num_rendered: int


def plan_of(conversation: Conversation, worker: FakeWorker, text: str = ASKED) -> tuple[Plan, Work]:
    """What planning this turn took; then it is taken back."""
    found: list[tuple[Plan, Work]] = []

    def check(begun: TurnRows) -> None:
        template: ByteTemplate = worker.opened.chat_template
        num_rendered = template.num_rendered
        with CaptureQueriesContext(connection) as queries:
            plan = planned(begun, is_asked=True)
        found.append((plan, Work(len(queries), num_rows(queries), template.num_rendered - num_rendered)))
        raise TakenBackError

    with suppress(TakenBackError):
        rows.send(
            conversation.owner, text, conversation=conversation, parent_id=conversation.active_leaf_id, check=check
        )
    return found[0]


class TakenBackError(Exception):
    """Nothing of the turn is to be stored."""


def num_words(queries: CaptureQueriesContext) -> int:
    """How many words were looked up."""
    return sum(query["sql"].count(f"LIMIT {search.MAX_OF_WORD + 1})") for query in queries)


def num_rows(queries: CaptureQueriesContext) -> int:
    """Of all queries, run again."""
    total = 0
    with connection.cursor() as cursor:
        for query in [query["sql"] for query in queries]:
            if query.startswith(("SELECT", "WITH")):
                cursor.execute(query)
                total += len(cursor.fetchall())
    return total


@pytest.mark.parametrize(
    "policy",
    [
        ContextPolicy.SUMMARISE,
        pytest.param(ContextPolicy.TRUNCATE, marks=pytest.mark.slow),
        pytest.param(ContextPolicy.RECENT, marks=pytest.mark.slow),
    ],
)
def test_a_turn_costs_the_same_after_ten_times_as_many_messages(
    policy: ContextPolicy, alice: User, small: FakeWorker
) -> None:
    short, long = (long_conversation(alice, num, policy) for num in (300, 3000))
    (plan, few), (later, many) = (plan_of(conversation, small) for conversation in (short, long))
    assert plan.recalled is not None
    assert later.recalled is not None
    assert SECRET in later.recalled.text
    assert later.window.num_outside > 9 * plan.window.num_outside
    assert (policy == ContextPolicy.SUMMARISE) == (later.window.summary is not None)
    assert many.num_queries == few.num_queries == (8 if policy == ContextPolicy.SUMMARISE else 7)
    assert many.num_rows <= few.num_rows
    assert many.num_rendered == few.num_rendered <= 3 * 14


@pytest.mark.parametrize(
    "policy", [ContextPolicy.TRUNCATE, pytest.param(ContextPolicy.SUMMARISE, marks=pytest.mark.slow)]
)
def test_where_nobody_knows_where_the_window_begins_no_more_is_read_than_has_room(
    policy: ContextPolicy, alice: User, small: FakeWorker
) -> None:
    """After a change of policy or model: of 3,000 messages the newest are read, not as many as the window has thirds
    of tokens, and the same is sent as if all had been read."""
    conversation = long_conversation(alice, 3000, policy)
    Generation.objects.filter(message=conversation.active_leaf_id).update(window_limit=0)
    plan, work = plan_of(conversation, small)
    assert work.num_rows < 128 + 2 * search.MAX_OF_WORD
    assert work.num_queries <= 9
    leaf, question = conversation.active_leaf, plan.outline.rows[-1]._replace(context=None)
    assert leaf is not None
    read = Read([*selectors.history(conversation, leaf), question], selectors.summaries(leaf, 0))
    assert len(read.messages) == 3001
    past, fit = fitted(Past(conversation, read), rules_of(conversation))
    assert plan.window.num_outside == past.num_outside(fit.first) > 2900


@pytest.mark.parametrize("num", [300, 1500])
def test_what_everybody_says_is_not_fetched(num: int, alice: User, small: FakeWorker) -> None:
    """`message` is in every one of them, and the number 7 in a few."""
    conversation = long_conversation(alice, num, ContextPolicy.TRUNCATE)
    leaf = conversation.active_leaf
    assert leaf is not None
    asked = Message(id=leaf.id, conversation_id=conversation.id, text="message", position=leaf.position)
    with CaptureQueriesContext(connection) as queries:
        assert search.related(conversation, asked, num - 12) == []
    assert num_rows(queries) == 1, "that it has too many"
    asked.text = "message 7"
    with CaptureQueriesContext(connection) as queries:
        assert [hit.position for hit in search.related(conversation, asked, num - 12)] == [7]
    assert num_words(queries) == 1, "the other one is known to be common"
    assert len(queries) == 3


@pytest.mark.parametrize("words", ["message", "Ophelia", "Vardø 缓存 缓 message Ophelia fox harbour 7"])
def test_words_are_looked_up_in_the_index_alone(words: str, alice: User, small: FakeWorker) -> None:
    """Also by a server that has not counted what is in the table yet, as on the first day of a conversation."""
    conversation = long_conversation(alice, 1000, ContextPolicy.TRUNCATE)
    leaf = conversation.active_leaf
    assert leaf is not None
    asked = Message(id=leaf.id, conversation_id=conversation.id, text=words, position=leaf.position)
    with CaptureQueriesContext(connection) as queries:
        search.related(conversation, asked, 900)
    with connection.cursor() as cursor:
        cursor.execute(("EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN ") + queries[0]["sql"])
        plan = "\n".join(str(line[-1]) for line in cursor.fetchall())
    assert ("VIRTUAL TABLE INDEX" if connection.vendor == "sqlite" else f"Index Scan on {search.TABLE}_keys") in plan
    assert "Seq Scan" not in plan, plan
    assert f"SCAN {search.TABLE}\n" not in plan, plan


@pytest.mark.parametrize("policy", [ContextPolicy.TRUNCATE, ContextPolicy.SUMMARISE])
def test_a_keystroke_costs_four_small_queries(policy: ContextPolicy, alice: User, small: FakeWorker) -> None:
    conversation = long_conversation(alice, 1000, policy)
    gauge = Gauge()
    gauge.count(conversation, "")
    assert gauge.count(conversation, ASKED[:-1]).num_recalled
    template: ByteTemplate = small.opened.chat_template
    num_rendered = template.num_rendered
    with CaptureQueriesContext(connection) as queries:
        assert gauge.count(conversation, ASKED).num_recalled
    assert len(queries) == 4
    assert num_rows(queries) < 60
    assert num_words(queries) < len(telling_words(ASKED)), "what is common is asked once, not at each keystroke"
    assert template.num_rendered == num_rendered


def test_a_branch_far_up_costs_one_walk_and_nothing_wrong_is_recalled(alice: User, small: FakeWorker) -> None:
    conversation = long_conversation(alice, 300, ContextPolicy.TRUNCATE)
    first = conversation.messages.get(position=1)
    other = rows.turn(alice, f"{SECRET} Or Vadsø.", conversation=conversation, parent_id=first.id)
    conversation.refresh_from_db()
    Conversation.objects.filter(id=conversation.id).update(active_leaf=conversation.messages.get(position=299))
    conversation.refresh_from_db()
    recalled = plan_of(conversation, small)[0].recalled
    assert recalled is not None
    assert SECRET in recalled.text
    assert "Vadsø" not in recalled.text
    places = {message.id: message.position for message in conversation.messages.all() if message.position < 290}
    leaf = conversation.messages.get(position=299)
    assert set(places) - selectors.path_ids(leaf, places) == {other.user_message.id, other.assistant_message.id}
