"""With the real worker, on a model whose KV shows every wrong reuse: what was prepared is what the turn then reuses."""

from __future__ import annotations

import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from asgiref.sync import sync_to_async

from chatapp import llm
from chatapp.models import Generation, Message, User
from chatapp.services import conversations
from chatapp.turn import preparation as room
from chatapp.turn.preparation import preparation
from inference.kvcache.block_pool import Retention
from inference.types import F32, EngineStats, ForwardBatch
from tests.chatapp.conftest import Socket, opened, send_frame, until
from tests.chatapp.thinking_engine import ThinkingEngine
from tests.inference.fakes import MarkerStorage
from tests.inference.thinking_templates import THINKING

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = "A long message about lighthouses, ships and harbours. " * 6


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PAUSE_S", 0.01)


@asynccontextmanager
async def engine() -> AsyncIterator[ThinkingEngine]:
    made = ThinkingEngine(THINKING["kept"])
    with made.running():
        await until(lambda: llm.status().state is llm.EngineState.READY)
        yield made


def stats() -> EngineStats:
    found = llm.status().stats
    assert found is not None
    return found


async def ended(socket: Socket, frame: dict[str, object]) -> Generation:
    await socket.send(frame)
    end = await socket.next("turn.end", "error")
    assert end["type"] == "turn.end", end
    return await Generation.objects.aget(message_id=end["message"])


async def begun(engine: ThinkingEngine, user: User) -> tuple[str, str]:
    """A conversation with one turn, and nothing of it in the cache: as after a restart."""
    engine.model.write(engine.ids("It was built in 1783, and it is lit to this day."))
    conversation_id = str(uuid.uuid4())
    async with opened(user) as socket:
        generation = await ended(socket, send_frame("When was it built?", conversation=conversation_id))
    worker = llm.host.handle.worker
    assert worker is not None
    worker._call(lambda: worker._hub.engines[0].clear_cache())
    engine.model.write(engine.ids("Nobody knows."))
    return conversation_id, str(generation.message_id)


async def settled(socket: Socket) -> None:
    assert (await socket.ask({"type": "ping"}))["type"] == "pong"
    await until(lambda: preparation.is_idle)


async def test_what_was_opened_and_written_is_reused_whole(alice: User) -> None:
    async with engine() as made:
        conversation_id, parent = await begun(made, alice)
        async with opened(alice) as socket:
            await socket.send({"type": "watch", "conversation": conversation_id})
            await settled(socket)
            num_history = stats().cache.num_prefill_only_tokens
            assert num_history > 20
            assert (await socket.next("prepared"))["total"] == num_history
            await socket.send({"type": "draft.warm", "conversation": conversation_id, "text": TEXT})
            await settled(socket)
            num_draft = stats().cache.num_prefill_only_tokens
            assert num_draft - num_history > 30
            frame = send_frame(TEXT + "And?", conversation=conversation_id, parent=parent, is_new=False)
            generation = await ended(socket, frame)
    assert generation.num_reused_ram >= num_draft - 1
    assert generation.num_computed < 20


async def test_leaving_takes_the_request_out_of_the_engine(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, has_entered = threading.Event(), threading.Event()
    async with engine() as made:
        conversation_id, _ = await begun(made, alice)
        forward = made.model.forward

        def gated(batch: ForwardBatch, kv: MarkerStorage) -> F32:
            has_entered.set()
            assert gate.wait(20)
            return forward(batch, kv)

        monkeypatch.setattr(made.model, "forward", gated)
        async with opened(alice) as socket:
            await socket.send({"type": "watch", "conversation": conversation_id})
            await until(has_entered.is_set)
            assert stats().num_running == 1
        await until(lambda: not preparation._spare_time._jobs)
        gate.set()
        await until(lambda: stats().num_running == stats().num_waiting == 0)
        await until(lambda: preparation.is_idle)


async def test_a_first_message_is_reused_as_well(alice: User) -> None:
    async with engine() as made:
        made.model.write(made.ids("Yes."))
        conversation_id = str(uuid.uuid4())
        async with opened(alice) as socket:
            frame = {"type": "draft.warm", "conversation": conversation_id, "text": TEXT, "is_new": True}
            await socket.send(frame)
            await settled(socket)
            generation = await ended(socket, send_frame(TEXT, conversation=conversation_id))
    assert generation.num_computed < 20  # the end of the draft, and the header of the reply
    assert generation.num_reused_ram > 40


async def test_a_draft_that_was_not_sent_is_the_first_to_go(alice: User) -> None:
    async with engine() as made:
        conversation_id, _ = await begun(made, alice)
        async with opened(alice) as socket:
            await socket.send({"type": "watch", "conversation": conversation_id})
            await settled(socket)
            await socket.send({"type": "draft.warm", "conversation": conversation_id, "text": TEXT})
            await settled(socket)
            worker = llm.host.handle.worker
            assert worker is not None
            cache = worker._hub.engines[0].cache
            retentions = worker._call(
                lambda: [
                    Retention(cache.pool.retention[i])
                    for i, tags in enumerate(cache.blocks.tags)
                    if conversation_id in tags
                ]
            )
    assert set(retentions) == {Retention.LOW, Retention.PROTECTED}  # the draft, and the history of what is open


async def test_of_what_was_deleted_while_it_was_prepared_nothing_stays(alice: User) -> None:
    async with engine() as made:
        conversation_id, _ = await begun(made, alice)
        async with opened(alice) as socket:
            await socket.send({"type": "watch", "conversation": conversation_id})
            await until(lambda: not preparation.is_idle)
            await sync_to_async(conversations.conversation_delete)(
                user=alice, conversation_id=uuid.UUID(conversation_id)
            )
            await settled(socket)
            worker = llm.host.handle.worker
            assert worker is not None
            tags = worker._call(lambda: set().union(*worker._hub.engines[0].cache.blocks.tags))
    assert conversation_id not in tags
    assert await Message.objects.acount() == 0
