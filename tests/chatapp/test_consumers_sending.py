"""Turns over the socket: sent, sent twice, and stopped."""

from __future__ import annotations

import asyncio

import pytest

from chatapp import consumers
from chatapp.errors import StorageUnavailable
from chatapp.models import Message, User
from tests.chatapp.conftest import opened, send_frame, until
from tests.chatapp.fake_worker import FakeWorker

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_turn_over_the_socket(alice: User, worker: FakeWorker) -> None:
    async with opened(alice) as socket:
        frame = send_frame("Hello <b>you</b>")
        await socket.send(frame)
        accepted = await socket.next()
        assert accepted["type"] == "turn.accepted"
        assert accepted["client_id"] == frame["client_id"]
        assert "<b>" not in accepted["user_html"]
        snapshot = await socket.next()
        assert (snapshot["type"], snapshot["message"]) == ("turn.snapshot", accepted["message"])
        worker.write("Hi!")
        worker.finish()
        end = await socket.next("turn.end")
        assert (end["status"], end["message"]) == ("done", accepted["message"])
        stats = end["stats"]
        assert stats["prompt_tokens"] == stats["reused_ram"] + stats["reused_disk"] + stats["computed"]
        assert (await Message.objects.aget(id=accepted["message"])).text == "Hi!"


async def test_stop_is_answered_while_a_reply_is_written(alice: User, worker: FakeWorker) -> None:
    async with opened(alice) as socket:
        accepted = await socket.ask(send_frame())
        await until(lambda: len(worker.requests) == 1)
        worker.write("so far")
        await socket.send({"type": "turn.stop", **{k: accepted[k] for k in ("conversation", "message")}})
        assert (await socket.next("turn.end"))["status"] == "stopped"


async def test_a_reply_is_shown_and_stopped_while_the_database_is_away(
    alice: User, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(session_key: str) -> None:
        raise StorageUnavailable("The database cannot be reached.")

    async with opened(alice) as socket:
        accepted = await socket.ask(send_frame())
        await until(lambda: len(worker.requests) == 1)
        monkeypatch.setattr(consumers, "SESSION_CHECK_S", 0.0)
        with monkeypatch.context() as outage:
            outage.setattr("chatapp.sessions.user_of", away)
            outage.setattr("chatapp.selectors.message_get", lambda *args: away(""))
            worker.write("so far")
            shown = await socket.next("turn.delta")
            await socket.send({"type": "ack", "message": shown["message"], "seq": shown["seq"]})
            await socket.send({"type": "ping"})
            assert (await socket.next())["type"] == "pong"
            assert (await socket.ask(send_frame()))["code"] == "storage_unavailable"
            await socket.send({"type": "turn.stop", **{k: accepted[k] for k in ("conversation", "message")}})
            assert (await socket.next("turn.end"))["status"] == "stopped"


async def test_the_same_send_over_two_sockets_is_one_turn(alice: User, worker: FakeWorker) -> None:
    async with opened(alice) as one, opened(alice) as two:
        frame = send_frame()
        answers = await asyncio.gather(*(socket.ask(frame) for socket in (one, two)))
        assert answers[0]["message"] == answers[1]["message"]
        assert sorted(answer["is_duplicate"] for answer in answers) == [False, True]
        assert await Message.objects.acount() == 2
        await until(lambda: len(worker.requests) == 1)
        worker.finish()
        for socket in (one, two):  # the duplicate's tab follows the turn as well
            assert (await socket.next("turn.end"))["status"] == "done"
