"""The WebSocket: who may speak, what a frame does, what a wrong one gets, and when a socket ends."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.db import OperationalError
from django.test import Client

from chatapp import consumers, hints, llm, wire
from chatapp.asgi import application
from chatapp.errors import StorageUnavailable
from chatapp.models import Message, User
from chatapp.services import conversations
from chatapp.storage import translated
from chatapp.turn.live import live
from tests.chatapp import rows
from tests.chatapp.fake_worker import FakeWorker
from tests.chatapp.test_turn_run import until

pytestmark = pytest.mark.django_db(transaction=True)


class Socket:
    """A browser's end of a WebSocket."""

    def __init__(self, cookies: dict[str, str], headers: dict[str, str] | None = None) -> None:
        sent = {"host": "localhost:8000", "origin": "http://localhost:8000", **(headers or {})}
        if cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        encoded = [(name.encode(), value.encode()) for name, value in sent.items()]
        self._communicator = WebsocketCommunicator(application, "/ws/", encoded)

    async def open(self) -> bool:
        is_accepted, _ = await self._communicator.connect()
        return bool(is_accepted)

    async def close(self) -> None:
        await self._communicator.disconnect()

    async def send(self, frame: dict[str, Any] | str) -> None:
        await self._communicator.send_to(text_data=frame if isinstance(frame, str) else json.dumps(frame))

    async def send_bytes(self, data: bytes) -> None:
        await self._communicator.send_to(bytes_data=data)

    async def next(self, *types: str) -> dict[str, Any]:
        """The next frame, or the next one of these types."""
        async with asyncio.timeout(5):
            while True:
                frame: dict[str, Any] = json.loads(await self._communicator.receive_from(timeout=5))
                if not types or frame["type"] in types:
                    return frame

    async def ask(self, frame: dict[str, Any] | str) -> dict[str, Any]:
        """Send one frame; the answer to it."""
        await self.send(frame)
        return await self.next("error", "pong", "turn.accepted")

    async def close_code(self) -> int:
        """Frames are skipped until the socket closes."""
        async with asyncio.timeout(5):
            while True:
                output = await self._communicator.receive_output(timeout=5)
                if output["type"] == "websocket.close":
                    return int(output["code"])


async def log_in(user: User) -> dict[str, str]:
    client = Client()
    await sync_to_async(client.force_login)(user)
    return {name: morsel.value for name, morsel in client.cookies.items()}


@asynccontextmanager
async def opened(user: User) -> AsyncIterator[Socket]:
    socket = Socket(await log_in(user))
    assert await socket.open()
    try:
        assert (await socket.ask({"type": "ping"}))["type"] == "pong"
        yield socket
    finally:
        await socket.close()


def send_frame(text: str = "Hello", **changes: Any) -> dict[str, Any]:
    ids = {"conversation": str(uuid.uuid4()), "client_id": str(uuid.uuid4())}
    return {"type": "turn.send", **ids, "text": text, "is_new": True, **changes}


# --- who --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cookies", [{}, {settings.SESSION_COOKIE_NAME: "made-up"}])
async def test_without_a_session_the_socket_closes_with_4401(db: Any, cookies: dict[str, str]) -> None:
    socket = Socket(cookies)
    assert await socket.open()
    assert await socket.close_code() == 4401


async def test_a_disabled_account_gets_no_socket(alice: User) -> None:
    cookies = await log_in(alice)
    await User.objects.filter(pk=alice.pk).aupdate(is_active=False)
    socket = Socket(cookies)
    assert await socket.open()
    assert await socket.close_code() == 4401


async def test_a_database_that_is_away_says_try_again(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(session_key: str) -> None:
        raise StorageUnavailable("The database cannot be reached.")

    cookies = await log_in(alice)
    monkeypatch.setattr("chatapp.sessions.user_of", away)
    socket = Socket(cookies)
    assert await socket.open()
    assert (await socket.next())["code"] == "storage_unavailable"
    assert await socket.close_code() == 1013


@pytest.mark.parametrize("change", ["log out", "password", "disable", "delete"])
async def test_a_session_that_ends_closes_its_sockets(alice: User, change: str) -> None:
    client = Client()
    await sync_to_async(client.force_login)(alice)
    cookies = {name: morsel.value for name, morsel in client.cookies.items()}
    sockets = [Socket(cookies) for _ in range(3)]
    for socket in sockets:
        assert await socket.open()
        assert (await socket.ask({"type": "ping"}))["type"] == "pong"
    if change == "log out":
        await sync_to_async(client.logout)()
    elif change == "delete":
        await alice.adelete()
    else:
        if change == "password":
            alice.set_password("another correct horse")
        else:
            alice.is_active = False
        await alice.asave()
    assert [await socket.close_code() for socket in sockets] == [4401] * 3


async def test_logging_out_here_leaves_the_other_session_alone(alice: User) -> None:
    async with opened(alice) as elsewhere:
        client = Client()
        await sync_to_async(client.force_login)(alice)
        await sync_to_async(client.logout)()
        assert (await elsewhere.ask({"type": "ping"}))["type"] == "pong"


async def test_a_session_that_ends_without_a_hint_is_noticed(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "SESSION_CHECK_S", 0.0)
    async with opened(alice) as socket:
        await User.objects.filter(pk=alice.pk).aupdate(is_active=False)
        await socket.send({"type": "ping"})
        assert await socket.close_code() == 4401


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


# --- frames -----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[" * 100_000,
        '{"type": "no.such"}',
        '{"type": "ping", "type": "ping"}',
        '{"type": NaN}',
        json.dumps(send_frame("\x00")),
        json.dumps(send_frame("\ud800")),
        json.dumps(send_frame("")),
        json.dumps(send_frame("x" * 200_000)),
    ],
    ids=lambda text: text[:30],
)
async def test_a_wrong_frame_gets_an_error_and_the_socket_stays(alice: User, worker: FakeWorker, text: str) -> None:
    async with opened(alice) as socket:
        answer = await socket.ask(text)
        assert (answer["type"], answer["code"]) == ("error", "invalid")
        assert (await socket.ask({"type": "ping"}))["type"] == "pong"
        assert worker.requests == []


async def test_binary_frames_are_refused(alice: User) -> None:
    async with opened(alice) as socket:
        await socket.send_bytes(b"\x00\x01")
        assert (await socket.next())["code"] == "invalid"


async def test_a_refusal_names_the_send_that_it_refuses(alice: User, worker: FakeWorker) -> None:
    async with opened(alice) as socket:
        for frame, code in ((send_frame(""), "invalid"), (send_frame("x" * 5000), "window_full")):
            answer = await socket.ask(frame)
            assert (answer["code"], answer["client_id"], answer["conversation"]) == (
                code,
                frame["client_id"],
                frame["conversation"],
            )
        assert answer["detail"]["window"] == 4096


def frame_about(cls: type[wire.ClientFrame], conversation: object, message: object) -> dict[str, Any]:
    """A frame of a type that names this conversation and message."""
    values: dict[str, Any] = {
        "conversation": str(conversation),
        "message": str(message),
        "parent": str(message),
        "client_id": str(uuid.uuid4()),
        "text": "hello",
        "seq": 1,
        "is_new": False,
        "preset": None,
        "model": None,
    }
    return {"type": cls.TYPE, **{item.name: values[item.name] for item in fields(cls)}}


# An acknowledgement names a message, reads and changes nothing but the credit of its own socket, and is not answered.
ABOUT_A_CONVERSATION = [cls for cls in wire.CLIENT_FRAMES.values() if cls not in (wire.Ping, wire.Ack)]


@pytest.mark.parametrize("cls", ABOUT_A_CONVERSATION, ids=lambda cls: cls.TYPE)
async def test_what_belongs_to_another_does_not_exist(
    alice: User, bob: User, worker: FakeWorker, cls: type[wire.ClientFrame]
) -> None:
    theirs = await sync_to_async(rows.turn)(alice)
    own = await sync_to_async(rows.turn)(bob)
    before = [message async for message in Message.objects.order_by("id").values()]
    frames = [
        frame_about(cls, theirs.conversation.id, theirs.assistant_message.id),
        frame_about(cls, uuid.uuid4(), uuid.uuid4()),
    ]
    if any(item.name in ("message", "parent") for item in fields(cls)):  # another's message, in an own conversation
        frames.append(frame_about(cls, own.conversation.id, theirs.assistant_message.id))
    async with opened(bob) as socket:
        answers = [await socket.ask(frame) for frame in frames]
    assert {(answer["type"], answer.get("code")) for answer in answers} == {("error", "not_found")}
    assert answers[0]["message"] == answers[1]["message"]
    assert [message async for message in Message.objects.order_by("id").values()] == before
    assert worker.requests == []


async def test_a_new_conversation_cannot_take_the_id_of_anothers(alice: User, bob: User, worker: FakeWorker) -> None:
    theirs = await sync_to_async(rows.turn)(alice)
    async with opened(bob) as socket:
        answer = await socket.ask(send_frame(conversation=str(theirs.conversation.id)))
    assert answer["code"] == "not_found"


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


CHINESE = {"accept-language": "zh-CN,zh;q=0.9"}


@pytest.mark.parametrize(
    ("language", "cookies", "headers"),
    [
        ("zh-hans", {}, {"accept-language": "en"}),
        ("zh-hans", {settings.LANGUAGE_COOKIE_NAME: "en"}, {}),
        ("", {settings.LANGUAGE_COOKIE_NAME: "zh-hans"}, {"accept-language": "en"}),
        ("", {}, CHINESE),
        ("gone", {}, CHINESE),  # a language that the product had once
    ],
)
async def test_refusals_speak_the_language_of_the_person(
    alice: User, worker: FakeWorker, language: str, cookies: dict[str, str], headers: dict[str, str]
) -> None:
    """Those of parsing, of the door to the engine, and of the threads that ask the database."""
    alice.language = language
    await alice.asave()
    socket = Socket(await log_in(alice) | cookies, headers)
    assert await socket.open()
    assert (await socket.ask(send_frame(" ")))["message"] == "消息不能为空。"
    assert (await socket.ask({"type": "watch", "conversation": str(uuid.uuid4())}))["message"] == "此会话不存在。"
    assert "上下文窗口" in (await socket.ask(send_frame("long " * 2000)))["message"]
    llm.drain()
    assert "服务器即将停止" in (await socket.ask(send_frame()))["message"]
    await socket.close()


async def test_two_sockets_of_two_languages_do_not_mix(alice: User, bob: User) -> None:
    bob.language = "zh-hans"
    await bob.asave()
    async with opened(alice) as english, opened(bob) as chinese:
        for _ in range(3):
            for socket, sentence in ((english, "The message is empty."), (chinese, "消息不能为空。")):
                assert (await socket.ask(send_frame(" ")))["message"] == sentence


async def test_a_turn_fails_in_the_language_of_who_asked(alice: User, worker: FakeWorker) -> None:
    """Long after the frame that began it has been answered."""
    alice.language = "zh-hans"
    await alice.asave()
    async with opened(alice) as socket:
        accepted = await socket.ask(send_frame())
        await until(lambda: bool(worker.requests))
        assert (await socket.ask({"type": "ping"}))["type"] == "pong"
        worker.finish(llm.FinishReason.ERROR, error="broken")
        end = await socket.next("turn.end")
    assert end["error"] == "引擎放弃了此回复：broken。"
    stored = await Message.objects.aget(id=accepted["message"])
    assert stored.error == end["error"]


async def test_a_database_that_is_away_is_told_in_the_language_of_the_browser(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = await log_in(alice)
    monkeypatch.setattr("chatapp.sessions.user_of", translated()(_lost_database))
    socket = Socket(cookies, CHINESE)
    assert await socket.open()
    assert (await socket.next("error"))["message"] == "无法连接到数据库。未存储任何内容，请重试。"
    await socket.close()


def _lost_database(session_key: str) -> User | None:
    raise OperationalError("server closed the connection unexpectedly")


# --- abuse ------------------------------------------------------------------------------------------------------------


async def test_a_flood_of_frames_closes_the_socket(alice: User) -> None:
    async with opened(alice) as socket:
        for _ in range(150):
            await socket.send({"type": "ping"})
        assert await socket.close_code() == 4429


async def test_a_flood_of_bytes_closes_the_socket(alice: User) -> None:
    async with opened(alice) as socket:
        for _ in range(5):
            await socket.send(" " * wire.MAX_FRAME_BYTES)
        assert await socket.close_code() == 4429


def test_a_bucket_fills_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(consumers.time, "monotonic", lambda: now[0])
    bucket = consumers.TokenBucket(rate=2, burst=3)
    assert [bucket.take(1) for _ in range(4)] == [True, True, True, False]
    now[0] = 1.0
    assert [bucket.take(1) for _ in range(3)] == [True, True, False]


async def test_closed_sockets_leave_nothing_behind(alice: User, worker: FakeWorker) -> None:
    for _ in range(5):
        async with opened(alice) as socket:
            await socket.ask(send_frame())
            await until(lambda: len(live.turns) == 1)
        await until(lambda: live.num_sockets == 0)
        worker.finish()
        await until(lambda: not live.turns)
    assert not live._watchers_of
