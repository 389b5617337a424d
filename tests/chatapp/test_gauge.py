"""The gauge: what a person is told about the next prompt is what the engine then gets."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Barrier
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from chatapp import llm, selectors
from chatapp.errors import StorageUnavailable, WindowFull
from chatapp.models import ContextPolicy, Conversation, Message, User
from chatapp.selectors import SummaryText
from chatapp.services import conversations, turns
from chatapp.services.summaries import summary_create
from chatapp.turn import ahead, run
from chatapp.turn.gauge import MAX_KEPT, Count, Gauge, gauge
from chatapp.turn.live import Live, LiveTurn
from chatapp.turn.past import Past, Read
from tests.chatapp import rows
from tests.chatapp.conftest import Socket, after, opened, send, whole
from tests.chatapp.fake_worker import ByteTemplate, FakeWorker
from tests.chatapp.test_turn_summaries import SUMMARY, begun, go_on, turns_of
from tests.chatapp.test_turn_window import preset, talk

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def small(worker: FakeWorker) -> FakeWorker:
    """An engine with a window of 1,000 tokens, a token a byte, a quarter of them for the reply."""
    worker.opened.max_model_len = 1000
    return worker


def count(text: str = "") -> Count:
    """The gauge of the only conversation."""
    counted = gauge.count(Conversation.objects.get(), text)
    parts = counted.system + counted.summary + counted.history + counted.recalled + counted.draft
    assert counted.total == parts
    assert min(counted.system, counted.summary, counted.history, counted.recalled, counted.draft) >= 0
    return counted


acount = sync_to_async(count)


@pytest.mark.parametrize("policy", [ContextPolicy.TRUNCATE, ContextPolicy.RECENT])
@pytest.mark.parametrize("has_recall", [False, True])
async def test_the_count_is_the_prompt_that_is_sent(
    policy: ContextPolicy, has_recall: bool, alice: User, small: FakeWorker
) -> None:
    made = await preset(policy, recent_tokens=300)
    live = Live()
    turn = await whole(live, small, alice, send("My cat is called Ophelia."), "A fine name.")
    await Conversation.objects.aupdate(has_recall=has_recall)
    assert made.recent_tokens == 300
    seen: list[Count] = []
    for number in range(24):
        question = f"And Ophelia, {number}?" if number % 5 == 4 else f"question {number} ".ljust(7 * number, ".")
        seen.append(await acount(question))
        outside = (await acount()).num_outside
        turn = await whole(live, small, alice, after(turn, question), "a" * 40)
        assert seen[-1].total == len(small.requests[-1].prompt_ids)
        generation = await rows.Generation.objects.aget(message_id=turn.message_id)
        assert outside == seen[-1].num_outside
        assert generation.num_outside == outside + seen[-1].num_leaving
    assert any(counted.num_leaving for counted in seen)
    assert any(counted.num_recalled for counted in seen) == has_recall


@pytest.mark.parametrize("policy", [ContextPolicy.TRUNCATE, ContextPolicy.SUMMARISE])
async def test_where_all_leaves_the_window_begins_with_no_message_that_is_there(
    policy: ContextPolicy, alice: User, small: FakeWorker
) -> None:
    await preset(policy)
    live = Live()
    turn = await whole(live, small, alice, send("Tell me something."), "Of a cat.")
    if policy == ContextPolicy.SUMMARISE:
        await sync_to_async(summary_create)(until_id=turn.message_id, text="All was of a cat.", model_name="tiny")
    await whole(live, small, alice, after(turn, "Tell me everything."), "a" * 640)
    for text in ("", "And more?"):
        counted = await acount(text)
        assert (counted.start, counted.num_outside) == (None, 4)
        assert (counted.summary > 0) == (policy == ContextPolicy.SUMMARISE)


async def test_of_a_new_conversation_there_is_the_head_and_the_draft(alice: User, small: FakeWorker) -> None:
    await preset(ContextPolicy.TRUNCATE)
    conversation_id = uuid.uuid4()
    make = sync_to_async(turns.conversation_new)
    conversation = await make(user=alice, conversation_id=conversation_id, preset_id=None, model="")
    empty = await sync_to_async(gauge.count)(conversation, "")
    assert (empty.total, empty.history, empty.draft) == (empty.system, 0, 0)
    assert empty.system > 0
    counted = await sync_to_async(gauge.count)(conversation, "Hello there")
    await whole(Live(), small, alice, send("Hello there", conversation=conversation_id), "Hi")
    assert counted.total == len(small.requests[-1].prompt_ids)


async def test_what_does_not_fit_is_told_with_the_numbers_of_the_refusal(alice: User, small: FakeWorker) -> None:
    await preset(ContextPolicy.FULL)
    live = Live()
    turn = await talk(live, small, alice, 8)
    text = "question 8 ".ljust(80, ".")
    counted = await acount(text)
    with pytest.raises(WindowFull) as refusal:
        await run.start(live, alice, after(turn, text))
    assert counted.problem == refusal.value.message
    assert counted.total == refusal.value.detail["num_prompt_tokens"] > counted.window - counted.reserve
    assert not (await acount("short")).problem
    await _policy(alice, turn, ContextPolicy.TRUNCATE)
    allowed = await acount(text)
    assert (allowed.problem, allowed.num_leaving > 0) == ("", True)
    too_long = await acount("x" * 2000)
    assert "without anything earlier" in too_long.problem
    assert too_long.history == 0


async def _policy(user: User, turn: LiveTurn, policy: ContextPolicy) -> None:
    await sync_to_async(conversations.conversation_set_window)(
        user=user, conversation_id=turn.conversation_id, policy=policy, recent_tokens=0, has_recall=False
    )


async def test_every_change_is_seen_at_once(alice: User, small: FakeWorker) -> None:
    await preset(ContextPolicy.TRUNCATE)
    live = Live()
    turn = await talk(live, small, alice, 2)
    first = await acount("x")
    await whole(live, small, alice, after(turn, "more"), "and more")
    assert (await acount("x")).history > first.history
    await Conversation.objects.aupdate(active_leaf_id=turn.message_id)  # another branch
    assert await acount("x") == first
    await Message.objects.filter(id=turn.message_id).aupdate(text="a longer reply than it was before", token_ids=None)
    assert await acount("x") != first, "continued"
    await Conversation.objects.aupdate(system_prompt="")
    assert (await acount("x")).system < first.system
    small.opened.max_model_len = 2000
    assert (await acount("x")).window == 2000


@pytest.mark.parametrize(("has_recall", "num_queries"), [(False, 1), (True, 4)])
def test_a_keystroke_costs_its_draft_and_no_message(
    has_recall: bool, num_queries: int, alice: User, small: FakeWorker
) -> None:
    """Counted: nothing is rendered but the draft, nothing else is encoded, no message is read."""
    conversation = rows.long_conversation(alice, 200)
    Conversation.objects.update(context_policy=ContextPolicy.TRUNCATE, has_recall=has_recall)
    conversation.refresh_from_db()
    template = small.opened.chat_template
    gauge.count(conversation, "message 3 or")
    num_rendered, num_encoded = template.num_rendered, template.num_chars_encoded
    for text in ("message 3 or ", "message 3 or x", "message 3 or xy"):
        with CaptureQueriesContext(connection) as queries:
            gauge.count(conversation, text)
        assert len(queries) <= num_queries, [query["sql"] for query in queries]
        assert not [query for query in queries if "RECURSIVE" in query["sql"]]
    assert template.num_rendered == num_rendered
    assert template.num_chars_encoded - num_encoded <= 2 * 3 * len("message 3 or xy")


def test_with_every_new_message_what_was_rendered_is_forgotten(alice: User, small: FakeWorker) -> None:
    turn = rows.turn(alice, "Hello")
    template = small.opened.chat_template
    count("x")
    num_rendered = template.num_rendered
    count("xy")
    assert template.num_rendered == num_rendered
    rows.turn(alice, "More", conversation=turn.conversation, parent_id=turn.assistant_message.id)
    count("xyz")
    assert template.num_rendered > num_rendered
    small.opened.chat_template = ByteTemplate("another")
    assert count("xyz").total > 0
    assert small.opened.chat_template.num_rendered > 0


def test_only_a_few_conversations_are_kept(alice: User, small: FakeWorker) -> None:
    bounded = Gauge()
    for made in rows.many_conversations(alice, MAX_KEPT + 5):
        bounded.count(made, "x")
    assert len(bounded._known) == MAX_KEPT


# --- over the socket --------------------------------------------------------------------------------------------------


def asked(conversation_id: object, number: int, text: str | None = None, **fields: Any) -> dict[str, Any]:
    frame = {"type": "window.count", "conversation": str(conversation_id), "number": number, "text": text}
    return {**frame, **fields}


async def _answer(socket: Socket, frame: dict[str, Any]) -> dict[str, Any]:
    await socket.send(frame)
    return await socket.next("window.counted", "error")


async def test_a_tab_asks_about_the_conversation_that_it_shows(alice: User, bob: User, worker: FakeWorker) -> None:
    made = await sync_to_async(rows.turn)(alice)
    name = made.conversation.id
    async with opened(alice) as socket:
        assert (await _answer(socket, asked(name, 1)))["code"] == "not_found", "it does not watch it yet"
        await socket.send({"type": "watch", "conversation": str(name)})
        counted = await _answer(socket, asked(name, 2, "Hello"))
        assert (counted["number"], counted["window"], counted["draft"] > 0) == (2, llm.window(), True)
        assert (counted["policy"], counted["is_stored"]) == (made.conversation.context_policy, True)
        new = await _answer(socket, asked(uuid.uuid4(), 3, "Hello", is_new=True))
        assert (new["history"], new["is_stored"]) == (0, False)
    async with opened(bob) as socket:
        assert (await _answer(socket, asked(name, 1, is_new=False)))["code"] == "not_found"
        assert (await _answer(socket, asked(name, 2, is_new=True)))["code"] == "not_found", "nor is the id free"


async def test_the_newest_question_is_answered_and_a_draft_leaves_no_trace(
    alice: User, worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    name = uuid.uuid4()
    async with opened(alice) as socket:
        for number in range(1, 12):
            await socket.send(asked(name, number, f"the secret harbour {number}", is_new=True))
        numbers = []
        while 11 not in numbers:
            numbers.append((await socket.next("window.counted"))["number"])
        assert numbers == sorted(numbers)
        assert (await socket.ask({"type": "ping"}))["type"] == "pong"
    assert await Conversation.objects.acount() == 0
    assert "harbour" not in caplog.text


async def test_without_a_model_nothing_is_counted_and_nobody_is_bothered(alice: User, worker: FakeWorker) -> None:
    async with opened(alice) as socket:
        frame = asked(uuid.uuid4(), 1, is_new=True, preset=str(uuid.uuid4()))
        answer = await _answer(socket, frame)
    assert (answer["type"], answer["window"]) == ("window.counted", 0), json.dumps(answer)


async def test_a_summary_is_counted_as_such(alice: User, worker: FakeWorker, settings: Any) -> None:
    settings.RECOLLECT_TITLES = False
    worker.opened.max_model_len = 2000
    live = Live()
    turn = await begun(live, worker, alice)
    seen: list[Count] = []
    for _ in range(14):
        seen.append(await acount("0" * 60))
        turn = await go_on(live, worker, alice, turn, 1)
        assert seen[-1].total == len(turns_of(worker)[-1].prompt_ids)
    used = [each.summary_id for each in seen]
    waiting = [each.next_summary_id for each in seen]
    first = next(name for name in used if name)
    assert waiting[used.index(first) - 1] == first, "it is known before it is needed"
    assert first not in waiting[used.index(first) :]
    last = await acount()
    assert last.num_unsummarised == 0
    assert last.summary == len(SUMMARY)
    generation = await rows.Generation.objects.aget(message_id=turn.message_id)
    assert last.summary_id == generation.summary_id is not None
    too_much = await acount("0" * 1600)
    assert too_much.problem
    assert (too_much.summary_id, too_much.start) == (last.summary_id, last.start), "what is shown does not go meanwhile"


class _Meeting(tuple[SummaryText, ...]):
    """Summaries that two threads begin to look through at the same moment, once a barrier is there."""

    barrier: Barrier | None = None

    def __iter__(self) -> Iterator[SummaryText]:
        if self.barrier is not None:
            self.barrier.wait(10)
        return super().__iter__()


def test_two_tabs_may_ask_for_what_stands_behind_a_summary_at_once(alice: User, small: FakeWorker) -> None:
    conversation = rows.long_conversation(alice, 8)
    messages = selectors.history(conversation, conversation.active_leaf)
    until = messages[3]
    summaries = _Meeting([SummaryText(uuid.uuid4(), until.id, until.position, "A cat.")])
    past = Past(conversation, Read([*messages, messages[0]._replace(position=len(messages))], summaries))
    summaries.barrier = Barrier(2)
    behind = rows.at_once([past.behind_summary] * 2)
    assert all(isinstance(each, Past) for each in behind), behind
    assert past.behind_summary() is not None


def test_a_database_that_goes_away_at_any_query_is_said_to(alice: User, small: FakeWorker) -> None:
    rows.long_conversation(alice, 4)
    Conversation.objects.update(context_policy=ContextPolicy.SUMMARISE, has_recall=True)
    name = Conversation.objects.get().id
    work: list[Callable[[], object]] = [
        lambda: Gauge().count(Conversation(**values), "message 3"),
        lambda: ahead.read(Conversation(**values)),
        lambda: selectors.conversation_find(name),
    ]
    values = Conversation.objects.values().get()
    for job in work:
        refused = _Refused()
        while refused.has_refused:
            refused.begin()
            with connection.execute_wrapper(refused), suppress(StorageUnavailable):
                job()
        assert refused.number > 1


class _Refused:
    """Lets so many queries pass, and refuses the next one as a database does that is away."""

    def __init__(self) -> None:
        self.number = 0
        self.has_refused = True

    def begin(self) -> None:
        self.number, self.has_refused, self._left = self.number + 1, False, self.number

    def __call__(self, execute: Callable[..., Any], *args: Any) -> Any:
        if self._left == 0:
            self.has_refused = True
            raise OperationalError("the connection is closed")
        self._left -= 1
        return execute(*args)


def test_a_new_conversation_is_rendered_once_as_well(alice: User, small: FakeWorker) -> None:
    fresh, template = Gauge(), small.opened.chat_template
    name = uuid.uuid4()

    def keystroke(text: str) -> None:
        fresh.count(turns.conversation_new(user=alice, conversation_id=name, preset_id=None, model=""), text)

    keystroke("H")
    num_rendered = template.num_rendered
    keystroke("He")
    assert template.num_rendered == num_rendered
