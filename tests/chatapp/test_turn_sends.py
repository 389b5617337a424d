"""What a send begins: one turn however often it comes, nothing where it is refused, and a fixed number of queries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatapp import llm, wire
from chatapp.errors import Busy, Conflict, Draining, WindowFull
from chatapp.models import ContextPolicy, Conversation, Message, Preset, User
from chatapp.turn import run, stream
from chatapp.turn.live import Live
from tests.chatapp import rows
from tests.chatapp.conftest import after, ended, send, started, stored, stored_when, until, whole
from tests.chatapp.fake_worker import FakeWorker

pytestmark = pytest.mark.django_db(transaction=True)
# transaction, conversation, client id, parent, open ones, two rows, words, leaf, last turn, history, what was sent
# before, and, since nothing was kept of that, further up
SEND_QUERIES = 13


async def test_fifty_copies_of_a_send_are_one_turn(alice: User, worker: FakeWorker) -> None:
    live, frame = Live(), send()
    accepted: list[wire.TurnAccepted] = []
    results = await asyncio.gather(*(run.start(live, alice, frame, accept=accepted.append) for _ in range(30)))
    await until(lambda: len(worker.requests) == 1)
    assert await Message.objects.acount() == 2
    assert len({answer.message for answer in accepted}) == 1
    assert sorted(answer.is_duplicate for answer in accepted) == [False] + 29 * [True]
    assert llm.host.handle.places.total() == 1
    worker.finish()
    await ended(next(turn for turn in results if turn))
    assert await run.start(live, alice, frame) is None  # the same again, when it is over
    assert len(worker.requests) == 1


async def test_the_same_client_id_with_another_text_is_a_conflict(alice: User, worker: FakeWorker) -> None:
    live, frame = Live(), send("one")
    turn = await started(live, alice, frame)
    with pytest.raises(Conflict):
        await run.start(live, alice, send("two", conversation=frame.conversation, client_id=frame.client_id))
    worker.finish()
    await ended(turn)


async def test_what_does_not_fit_is_refused_with_numbers_and_leaves_nothing(alice: User, worker: FakeWorker) -> None:
    await Preset.objects.acreate(name="All or nothing", is_default=True, context_policy=ContextPolicy.FULL)
    live = Live()
    with pytest.raises(WindowFull) as caught:
        await run.start(live, alice, send("x" * 4000))
    # header, text, end, header of the reply
    assert caught.value.detail == {"num_prompt_tokens": 4003, "num_reserved_tokens": 512, "window": 4096}
    assert await Conversation.objects.acount() == await Message.objects.acount() == 0
    assert not llm.host.handle.places
    turn = await whole(live, worker, alice, send("x" * 3500), "fits")
    with pytest.raises(WindowFull):
        await run.start(live, alice, after(turn, "y" * 500))
    assert await Message.objects.acount() == 2
    assert (await Conversation.objects.aget()).active_leaf_id == turn.message_id


async def test_the_longest_message_that_fits_is_taken(alice: User, worker: FakeWorker) -> None:
    turn = await whole(Live(), worker, alice, send("x" * (4096 - 512 - 3)), "fits")
    (request,) = worker.requests
    assert len(request.prompt_ids) + request.sampling.max_tokens == 4096
    assert (await stored(turn)).status == "done"


@pytest.mark.parametrize("refusal", [Busy, Draining])
async def test_a_refusal_comes_before_any_work(
    alice: User, worker: FakeWorker, settings: Any, refusal: type[Exception], django_assert_num_queries: Any
) -> None:
    if refusal is Draining:
        llm.drain()
    else:
        settings.RECOLLECT_MAX_RUNNING, settings.RECOLLECT_MAX_WAITING = 1, 0
        llm.reserve(alice.pk)
    with pytest.raises(refusal):
        await run.start(Live(), alice, send())
    assert await Message.objects.acount() == 0


async def test_a_caller_that_is_cancelled_takes_nothing_back(alice: User, worker: FakeWorker) -> None:
    live = Live()
    caller = asyncio.create_task(run.start(live, alice, send()))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await until(lambda: len(worker.requests) == 1)
    (turn,) = live.turns
    worker.write("still here")
    worker.finish()
    assert (await ended(turn)).status == "done"
    assert (await stored(turn)).text == "still here"


async def test_two_sends_in_one_conversation_do_not_run_at_once(alice: User, worker: FakeWorker) -> None:
    live = Live()
    first = await whole(live, worker, alice, send(), "one")
    second = await started(live, alice, after(first, "two?"))
    with pytest.raises(Conflict):
        await run.start(live, alice, after(first, "three?"))
    worker.finish()
    await ended(second)
    assert not llm.host.handle.places


async def test_a_send_that_comes_before_the_last_frame_of_the_turn_before_it(
    alice: User, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_rendered = asyncio.Event()

    async def slow(self: stream.Publisher) -> tuple[wire.Block, ...]:
        await is_rendered.wait()
        return ()

    monkeypatch.setattr(stream.Publisher, "final_blocks", slow)
    live = Live()
    first = await started(live, alice, send())
    worker.finish()
    await stored_when(first, lambda message: message.status == "done")
    second = await started(live, alice, after(first, "already?"))
    worker.finish()
    is_rendered.set()
    assert [(await ended(turn)).status for turn in (first, second)] == ["done", "done"]


@pytest.mark.parametrize("num_messages", [2, 200])
def test_a_send_asks_the_database_a_fixed_number_of_times(
    alice: User, worker: FakeWorker, num_messages: int, django_assert_num_queries: Any
) -> None:
    worker.opened.max_model_len = 1_000_000
    conversation = rows.long_conversation(alice, num_messages)
    frame = send(conversation=conversation.id, parent=conversation.active_leaf_id, is_new=False)
    with django_assert_num_queries(SEND_QUERIES):
        run._admit(alice, frame, None)
