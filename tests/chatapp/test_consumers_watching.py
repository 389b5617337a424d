"""What a socket is shown: turns that it did not send, hints for its person only, and nothing once it is closed."""

from __future__ import annotations

import uuid

import pytest
from asgiref.sync import sync_to_async

from chatapp import hints
from chatapp.models import User
from chatapp.services import conversations
from chatapp.turn.live import live
from tests.chatapp import rows
from tests.chatapp.conftest import opened, send_frame, until
from tests.chatapp.fake_worker import FakeWorker

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_dropped_connection_is_not_stop(alice: User, worker: FakeWorker) -> None:
    async with opened(alice) as socket:
        accepted = await socket.ask(send_frame())
        await until(lambda: len(worker.requests) == 1)
    worker.write("while you were away")
    async with opened(alice) as socket:
        await socket.send({"type": "watch", "conversation": accepted["conversation"]})
        assert (await socket.next("turn.snapshot"))["message"] == accepted["message"]
        worker.finish()
        end = await socket.next("turn.end")
        assert end["status"] == "done"
        assert "while you were away" in end["blocks"][0]["html"]


async def test_a_second_tab_sees_the_same(alice: User, worker: FakeWorker) -> None:
    async with opened(alice) as one, opened(alice) as two:
        frame = send_frame()
        accepted = await one.ask(frame)
        changed = await two.next("conversation.changed")
        assert changed["conversation"] == frame["conversation"]
        await two.send({"type": "watch", "conversation": frame["conversation"]})
        await until(lambda: len(worker.requests) == 1)
        worker.write("same")
        worker.finish()
        ends = [await socket.next("turn.end") for socket in (one, two)]
        assert ends[0] == ends[1]
        assert ends[0]["message"] == accepted["message"]


async def test_hints_reach_only_their_person(alice: User, bob: User) -> None:
    async with opened(alice) as mine, opened(bob) as others:
        conversation_id = uuid.uuid4()
        await hints.aconversation_changed(alice.pk, conversation_id, title="New")
        changed = await mine.next()
        assert (changed["type"], changed["title"]) == ("conversation.changed", "New")
        assert (await others.ask({"type": "ping"}))["type"] == "pong"


async def test_a_deleted_conversation_is_watched_no_more(alice: User, worker: FakeWorker) -> None:
    made = await sync_to_async(rows.turn)(alice)
    frame = {"type": "watch", "conversation": str(made.conversation.id)}
    async with opened(alice) as socket:
        await socket.send(frame)
        await until(lambda: bool(live._watchers_of))
        await sync_to_async(conversations.conversation_delete)(user=alice, conversation_id=made.conversation.id)
        await hints.aconversation_changed(alice.pk, made.conversation.id, is_deleted=True)
        assert (await socket.next())["is_deleted"]
        assert not live._watchers_of
        assert (await socket.ask(frame))["code"] == "not_found"


async def test_closed_sockets_leave_nothing_behind(alice: User, worker: FakeWorker) -> None:
    for _ in range(5):
        async with opened(alice) as socket:
            await socket.ask(send_frame())
            await until(lambda: len(live.turns) == 1)
        await until(lambda: live.num_sockets == 0)
        worker.finish()
        await until(lambda: not live.turns)
    assert not live._watchers_of
