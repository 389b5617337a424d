"""How a turn ends, exactly once: by itself, by a failure, by Stop, or from outside."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings

from chatapp import llm, locks, wire
from chatapp.errors import Conflict, Draining, NotFound
from chatapp.executors import database
from chatapp.models import Generation, Message, MessageStatus, User
from chatapp.services import conversations
from chatapp.turn import run
from chatapp.turn.live import Live, LiveTurn
from tests.chatapp import rows
from tests.chatapp.conftest import ended, is_submitted, send, started, stored, stored_when, until, whole
from tests.chatapp.fake_worker import FakeWorker
from tests.chatapp.test_turn_live import Tab
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("reason", "status"),
    [("stop", "done"), ("length", "done"), ("error", "failed"), ("cancelled", "interrupted")],
)
async def test_every_finish_is_one_of_four_ends(alice: User, worker: FakeWorker, reason: str, status: str) -> None:
    turn = await started(Live(), alice, send())
    worker.write("partial")
    worker.finish(llm.FinishReason(reason), error="the logits are not numbers" if reason == "error" else "")
    end = await ended(turn)
    message = await stored(turn)
    assert (end.status, message.status, message.text) == (status, status, "partial")
    assert bool(message.error) == (status == "failed")


async def test_our_own_mistake_fails_the_turn_and_nothing_else(
    alice: User, worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(thought: str, answer: str) -> None:
        raise ZeroDivisionError

    live = Live()
    turn = await started(live, alice, send(), on_text=explode)
    worker.write("a")
    assert (await ended(turn)).status == "failed"
    assert (await stored(turn)).status == "failed"
    assert "ZeroDivisionError" in caplog.text
    assert not worker.stats().num_running
    assert not llm.host.handle.places
    assert (await ended(await whole(live, worker, alice, send(), "fine"))).status == "done"


async def test_the_engine_that_fails_at_the_last_moment_fails_the_turn(alice: User, worker: FakeWorker) -> None:
    def refuse(*args: Any) -> None:
        raise llm.EngineStopped

    worker.submit = refuse  # type: ignore[method-assign]
    turn = await run.start(Live(), alice, send())
    assert turn is not None
    assert (await ended(turn)).status == "failed"
    assert (await stored(turn)).error


# --- stop -------------------------------------------------------------------------------------------------------------


async def test_stop_keeps_the_text_and_a_second_stop_changes_nothing(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send())
    worker.write("so far")
    frame = wire.TurnStop(turn.conversation_id, turn.message_id)
    await asyncio.gather(run.stop(live, alice, frame), run.stop(live, alice, frame))
    end = await ended(turn)
    await run.stop(live, alice, frame)
    message = await stored(turn)
    assert (end.status, message.status, message.text) == ("stopped", "stopped", "so far")


async def test_stop_before_the_engine_knows_of_it(alice: User, worker: FakeWorker) -> None:
    class StoppedAtOnce(Live):
        def add(self, turn: LiveTurn) -> None:
            super().add(turn)
            turn.is_stopping = True  # as run.stop does

    turn = await run.start(StoppedAtOnce(), alice, send())
    assert turn is not None
    assert (await ended(turn)).status == "stopped"
    assert worker.requests == []


async def test_nobody_stops_the_turn_of_another(alice: User, bob: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send())
    with pytest.raises(NotFound) as others:
        await run.stop(live, bob, wire.TurnStop(turn.conversation_id, turn.message_id))
    with pytest.raises(NotFound) as nobodys:
        await run.stop(live, bob, wire.TurnStop(uuid.uuid4(), uuid.uuid4()))
    assert others.value.message == nobodys.value.message
    assert is_submitted(turn)
    worker.finish()
    await ended(turn)


async def test_a_turn_of_another_process_cannot_be_stopped_here(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send())
    with locks.beside_server(settings.RECOLLECT_DATA), pytest.raises(Conflict):
        await run.stop(Live(), alice, wire.TurnStop(turn.conversation_id, turn.message_id))
    assert (await stored(turn)).is_open
    worker.finish()
    await ended(turn)


async def test_a_turn_whose_process_was_killed_is_stopped_and_goes_on_here(alice: User, worker: FakeWorker) -> None:
    left = await sync_to_async(rows.send)(alice)
    conversation_id, message_id = left.conversation.id, left.assistant_message.id
    await Message.objects.filter(id=message_id).aupdate(status=MessageStatus.WRITING, text="so far")
    await run.stop(Live(), alice, wire.TurnStop(conversation_id, message_id))
    message = await Message.objects.aget(id=message_id)
    assert (message.status, message.text) == ("interrupted", "so far")
    turn = await started(Live(), alice, wire.TurnContinue(conversation_id, message_id))
    worker.finish()
    assert (await ended(turn)).status == "done"


# --- from outside -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_saves")
@pytest.mark.parametrize("stage", ["queued", "reading", "writing"])
async def test_deleting_a_conversation_ends_its_turn_and_forgets_its_kv(
    alice: User, worker: FakeWorker, caplog: pytest.LogCaptureFixture, stage: str
) -> None:
    live = Live()
    tab = Tab(live)
    frame = send()
    tab.watcher.watch(frame.conversation)
    turn = await started(live, alice, frame)
    if stage == "reading":
        worker.read(512, 9000)
    elif stage == "writing":
        worker.write("for nothing")
    await stored_when(turn, lambda message: message.status == stage and bool(message.text) == (stage == "writing"))
    await database(conversations.conversation_delete, user=alice, conversation_id=turn.conversation_id)
    assert worker.purged == [str(turn.conversation_id)]
    await ended(turn)
    assert not worker.stats().num_running
    assert worker.purged == [str(turn.conversation_id)] * 2  # once more for what was computed in between
    assert await Message.objects.acount() == await Generation.objects.acount() == 0
    assert not live.turns
    assert live.in_conversation(turn.conversation_id) is None
    assert not llm.host.handle.places
    tab.read()
    assert tab.end is not None
    assert tab.end["status"] == "interrupted"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_drain_lets_turns_end_and_interrupts_the_rest(
    alice: User, bob: User, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    grace_is_over, graces, wait = asyncio.Event(), [], run._wait

    async def wait_as_told(timeout_s: float) -> None:
        graces.append(timeout_s)
        await (grace_is_over.wait() if len(graces) == 1 else wait(PATIENCE_S))

    monkeypatch.setattr(run, "_wait", wait_as_told)
    live = Live()
    quick = await started(live, alice, send())
    slow = await started(live, bob, send())
    tab = Tab(live)
    draining = asyncio.create_task(run.drain(live, grace_s=7.0))
    await until(lambda: graces == [7.0])
    worker.write("done in time", request_id=quick.request_id)
    worker.finish(request_id=quick.request_id)
    worker.write("not quite", request_id=slow.request_id)
    with pytest.raises(Draining):
        await run.start(live, alice, send())
    await ended(quick)
    grace_is_over.set()
    await draining
    assert [(await stored(turn)).status for turn in (quick, slow)] == ["done", "interrupted"]
    assert (await stored(slow)).text == "not quite"
    assert tab.watcher.close_code == 1001
