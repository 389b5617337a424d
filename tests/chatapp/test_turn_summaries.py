"""Summaries: asked for before they are needed, put in the place of what they stand for, and missed by nobody."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from chatapp import wire
from chatapp.models import ContextPolicy, Generation, Message, Preset, Summary, User
from chatapp.services import conversations
from chatapp.services.summaries import summary_edit
from chatapp.turn import summaries
from chatapp.turn.live import Live, LiveTurn
from chatapp.turn.past import rules_of
from chatapp.turn.prompt import Plan
from chatapp.turn.stream import Reply
from chatapp.turn.summaries import summary_due
from inference.types import FinishReason, Request
from tests.chatapp.conftest import after, ended, opened, send, started, until, whole
from tests.chatapp.fake_worker import FakeWorker

pytestmark = pytest.mark.django_db(transaction=True)
SYSTEM = "Be brief."
FACT = "My cat is called Mitzi"
SUMMARY = "The person has a cat that is called Mitzi."


@pytest.fixture
def small(worker: FakeWorker, settings: Any) -> FakeWorker:
    """An engine with a window of 2,000 tokens, a token a byte, 500 of them for the reply."""
    worker.opened.max_model_len = 2000
    settings.RECOLLECT_TITLES = False
    return worker


async def begun(live: Live, worker: FakeWorker, user: User, **changes: Any) -> LiveTurn:
    values: dict[str, Any] = {"system_prompt": SYSTEM, "context_policy": ContextPolicy.SUMMARISE, "has_recall": False}
    await Preset.objects.acreate(name="small", is_default=True, **(values | changes))
    return await whole(live, worker, user, send(FACT), "A fine name.")


def asked(worker: FakeWorker) -> list[Request]:
    """Those that ask for a summary."""
    return [request for request in worker.requests if request.is_side]


def text_of(request: Request) -> str:
    return bytes(token for token in request.prompt_ids.tolist() if token < 256).decode()


async def settle(worker: FakeWorker, num_asked: int, *, written: str | None = SUMMARY) -> None:
    """Until what follows a turn is over; the next request for a summary is answered. written None: it stays open."""
    is_open = written is None and num_asked > 0
    await until(lambda: is_open or not summaries.work.num_running or len(asked(worker)) > num_asked)
    if len(asked(worker)) > num_asked and written is not None:
        request = asked(worker)[-1]
        worker.write(written, request_id=request.request_id)
        worker.finish(request_id=request.request_id)
        await until(lambda: not summaries.work.num_running)


async def go_on(
    live: Live, worker: FakeWorker, user: User, turn: LiveTurn, num_turns: int, *, written: str | None = SUMMARY
) -> LiveTurn:
    """Turns of some 100 tokens, each with a number of its own."""
    for number in range(num_turns):
        num_asked = len(asked(worker))
        next_turn = await started(live, user, after(turn, str(number) * 60))
        worker.write("b" * 40, request_id=next_turn.request_id)
        worker.finish(request_id=next_turn.request_id)
        await ended(next_turn)
        await settle(worker, num_asked, written=written)
        turn = next_turn
    return turn


def turns_of(worker: FakeWorker) -> list[Request]:
    return [request for request in worker.requests if not request.is_side and not request.is_prefill_only]


async def generation(turn: LiveTurn) -> Generation:
    return await Generation.objects.select_related("summary").aget(message_id=turn.message_id)


async def until_moved(live: Live, worker: FakeWorker, user: User, turn: LiveTurn, **options: Any) -> LiveTurn:
    """As many turns as it takes until the window has moved, and one more."""
    while not (await generation(turn)).num_outside:
        turn = await go_on(live, worker, user, turn, 1, **options)
    return await go_on(live, worker, user, turn, 1, **options)


async def test_it_is_there_when_the_window_moves(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await until_moved(live, small, alice, await begun(live, small, alice))
    assert len(asked(small)) == 1
    request = asked(small)[0]
    assert text_of(request).endswith("Write nothing else.Summary:")
    before = max(
        (r.prompt_ids.tolist() for r in turns_of(small) if len(r.prompt_ids) < request.num_lasting_tokens), key=len
    )
    assert request.prompt_ids.tolist()[: len(before)] == before, "it goes on from the conversation"

    sent = [text_of(request) for request in turns_of(small)]
    assert [FACT in text for text in sent] == sorted((FACT in text for text in sent), reverse=True)
    assert FACT not in sent[-1]
    assert sent[-1].startswith(f"{SYSTEM}\n\nSummary of the earlier part")
    assert SUMMARY in sent[-1]
    numbers = await generation(turn)
    summary = await Summary.objects.select_related("until").aget()
    assert numbers.summary_id == summary.id
    assert numbers.num_outside == summary.num_messages == summary.until.position + 1
    assert (numbers.num_unsummarised, summary.num_missing) == (0, 0)
    moved = await Generation.objects.aget(num_left__gt=0)
    assert moved.num_left == moved.num_outside == summary.num_messages
    assert moved.num_unsummarised == 0
    assert summary.until.role == "assistant"
    moves = [i for i, text in enumerate(sent) if SUMMARY in text]
    assert moves == list(range(moves[0], len(sent)))
    assert max(len(request.prompt_ids) for request in turns_of(small)) <= 0.85 * 1500


@pytest.mark.parametrize("window", [500, 700, 1000])
async def test_what_is_kept_free_for_it_is_what_its_model_may_write(
    alice: User, small: FakeWorker, window: int
) -> None:
    small.opened.max_model_len = window
    live, plans = Live(), list[Plan]()
    turn = await begun(live, small, alice)
    while not asked(small):
        next_turn = await started(live, alice, after(turn, "0" * 13), on_plan=plans.append)
        small.write("b" * 7)
        small.finish()
        await ended(next_turn)
        await settle(small, 0, written=None)
        turn = next_turn
    reply = Reply("b" * 7, tuple(b"b" * 7))
    due = await sync_to_async(summary_due)(plans[-1], reply)
    assert due is not None
    assert due.question.sampling == asked(small)[0].sampling

    rows, spans = plans[-1].outline.rows, plans[-1].prompt.spans
    starts = [start for start, _ in spans[len(spans) - len(rows) :]]
    trigger, target = rules_of(plans[-1].conversation).marks(starts[0])
    first_kept = 1 + [row.id for row in rows].index(due.until)
    num_written, num_gained = due.question.sampling.max_tokens, starts[first_kept] - starts[0]
    assert trigger - num_gained + num_written <= target, "the target is reached, however much it writes"
    assert starts[first_kept - 2] - starts[0] < trigger - target + num_written, "and no turn leaves for nothing"
    small.finish(FinishReason.CANCELLED, request_id=asked(small)[0].request_id)
    await until(lambda: not summaries.work.num_running)


async def test_the_next_one_folds_it_in(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await go_on(live, small, alice, await begun(live, small, alice), 26)
    first, second, *_ = [summary async for summary in Summary.objects.order_by("created_at")]
    assert second.earlier_id == first.id
    assert second.num_messages > first.num_messages
    assert SUMMARY in text_of(asked(small)[1])
    assert (await generation(turn)).summary_id in [summary.id async for summary in Summary.objects.all()]
    assert text_of(turns_of(small)[-1]).count(SUMMARY) == 1


@pytest.mark.parametrize("written", ["", "Cat.", "and so on and on and " * 20])
async def test_without_one_the_turns_leave_all_the_same(alice: User, small: FakeWorker, written: str) -> None:
    live = Live()
    turn = await until_moved(live, small, alice, await begun(live, small, alice), written=written)
    numbers = await generation(turn)
    assert (numbers.summary_id, numbers.num_outside > 0) == (None, True)
    assert numbers.num_unsummarised == numbers.num_outside, "and the turn says so"
    assert FACT not in text_of(turns_of(small)[-1])
    assert len(asked(small)) > 1, "each reply brings another attempt"


async def test_what_left_without_one_is_no_part_of_the_next_one(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await until_moved(live, small, alice, await begun(live, small, alice), written="Cat.")
    num_lost = (await generation(turn)).num_outside
    while (numbers := await generation(turn)).summary_id is None:
        assert numbers.num_unsummarised == numbers.num_outside
        turn = await go_on(live, small, alice, turn, 1)
    assert numbers.summary is not None
    assert numbers.summary.num_missing == numbers.num_unsummarised == num_lost < numbers.num_outside
    edit = sync_to_async(summary_edit)
    names = {"conversation_id": turn.conversation_id, "summary_id": numbers.summary.id}
    assert (await edit(user=alice, text="Mitzi, and much that is forgotten.", **names)).num_missing == num_lost


async def test_other_policies_miss_no_summary(alice: User, small: FakeWorker) -> None:
    live = Live()
    first = await begun(live, small, alice, context_policy=ContextPolicy.TRUNCATE)
    turn = await until_moved(live, small, alice, first)
    assert (await generation(turn)).num_unsummarised == 0
    moved = await Generation.objects.aget(num_left__gt=0)
    assert moved.num_left == moved.num_outside


async def test_no_turn_waits_for_one(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await until_moved(live, small, alice, await begun(live, small, alice), written=None)
    assert len(asked(small)) == 1
    assert (await generation(turn)).num_outside > 0
    small.finish(FinishReason.CANCELLED, request_id=asked(small)[0].request_id)
    await until(lambda: not summaries.work.num_running)
    assert not await Summary.objects.aexists()


async def test_another_branch_knows_nothing_of_it(alice: User, small: FakeWorker) -> None:
    live = Live()
    first = await begun(live, small, alice)
    await until_moved(live, small, alice, first)
    question = await Message.objects.aget(text=FACT)
    frame = wire.TurnEdit(first.conversation_id, question.id, uuid.uuid4(), "My dog is called Rex")
    edited = await whole(live, small, alice, frame, "Good dog")
    assert text_of(turns_of(small)[-1]).startswith(f"{SYSTEM}My dog")
    assert (await generation(edited)).summary_id is None


async def test_what_a_person_makes_of_it_is_sent_from_the_next_turn_on(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await until_moved(live, small, alice, await begun(live, small, alice))
    summary = await Summary.objects.aget()
    edit = sync_to_async(summary_edit)
    changed = await edit(
        user=alice, conversation_id=turn.conversation_id, summary_id=summary.id, text="The cat is Mitzi, the dog Rex."
    )
    turn = await go_on(live, small, alice, turn, 1)
    assert "the dog Rex" in text_of(turns_of(small)[-1])
    assert SUMMARY not in text_of(turns_of(small)[-1])
    numbers = await generation(turn)
    assert (numbers.summary_id, numbers.prefix_break) == (changed.id, "summary_replaced")


async def test_a_summary_is_nobodys_public_head(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await until_moved(live, small, alice, await begun(live, small, alice))
    assert turns_of(small)[0].num_public_tokens > 0
    assert SUMMARY in text_of(turns_of(small)[-1])
    assert turns_of(small)[-1].num_public_tokens == 0
    assert turn


@pytest.mark.parametrize("has_place", [False, True])
async def test_without_a_system_prompt_it_stands_in_front_of_the_first_turn(
    alice: User, small: FakeWorker, has_place: bool
) -> None:
    small.opened.chat_template.takes_system_prompt = has_place
    live = Live()
    first = await begun(live, small, alice, system_prompt=SYSTEM * (not has_place))
    await until_moved(live, small, alice, first)
    text = text_of(turns_of(small)[-1])
    assert text.startswith(f"{SYSTEM * (not has_place)}Summary of the earlier part")
    assert SUMMARY in text


async def test_tabs_hear_of_it_when_it_is_written(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await go_on(live, small, alice, await begun(live, small, alice), 12, written=None)
    async with opened(alice) as socket:
        request = asked(small)[0]
        small.write(SUMMARY, request_id=request.request_id)
        small.finish(request_id=request.request_id)
        hint = await socket.next("conversation.changed")
    assert hint["conversation"] == str(turn.conversation_id)
    assert await Summary.objects.acount() == 1


async def test_other_policies_ask_for_none(alice: User, small: FakeWorker) -> None:
    live = Live()
    first = await begun(live, small, alice, context_policy=ContextPolicy.TRUNCATE)
    await until_moved(live, small, alice, first)
    assert asked(small) == []


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.CANCELLED, FinishReason.ERROR])
async def test_a_conversation_that_is_deleted_meanwhile_gets_none(
    alice: User, small: FakeWorker, reason: FinishReason
) -> None:
    live = Live()
    turn = await go_on(live, small, alice, await begun(live, small, alice), 12, written=None)
    assert len(asked(small)) == 1
    delete = sync_to_async(conversations.conversation_delete)
    await delete(user=alice, conversation_id=turn.conversation_id)
    small.purged.clear()
    request = asked(small)[0]
    small.write(SUMMARY, request_id=request.request_id)
    small.finish(reason, request_id=request.request_id)
    await until(lambda: not summaries.work.num_running)
    assert not await Summary.objects.aexists()
    assert small.purged == [str(turn.conversation_id)]


async def test_one_that_waits_is_written_anew_when_the_words_before_it_are_changed(
    alice: User, small: FakeWorker
) -> None:
    live = Live()
    turn = await until_moved(live, small, alice, await begun(live, small, alice))
    while len(asked(small)) < 2:
        turn = await go_on(live, small, alice, turn, 1)
    first, waiting = [summary async for summary in Summary.objects.order_by("created_at")]
    names = {"user": alice, "conversation_id": turn.conversation_id}
    changed = await sync_to_async(summary_edit)(summary_id=first.id, text="Mitzi is a cat, Rex a dog.", **names)
    turn = await go_on(live, small, alice, turn, 1)
    assert "Rex a dog" in text_of(asked(small)[-1])
    anew = await Summary.objects.alatest("created_at")
    assert (anew.earlier_id, anew.until_id, len(asked(small))) == (changed.id, waiting.until_id, 3)
    turn = await go_on(live, small, alice, turn, 1)
    assert len(asked(small)) == 3
    mine = await sync_to_async(summary_edit)(summary_id=anew.id, text="Mitzi, Rex, and I.", **names)
    await sync_to_async(summary_edit)(summary_id=changed.id, text="Mitzi is a dog, Rex a cat.", **names)
    await go_on(live, small, alice, turn, 1)
    assert len(asked(small)) == 3, "what a person has written is nothing to write over"
    assert (await Summary.objects.filter(until_id=waiting.until_id).alatest("created_at")).id == mine.id
