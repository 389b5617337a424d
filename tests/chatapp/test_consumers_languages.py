"""The language of what a socket says: the person's, or the browser's, also long after the frame."""

from __future__ import annotations

import uuid

import pytest
from django.conf import settings
from django.db import OperationalError

from chatapp import llm
from chatapp.models import Message, User
from chatapp.storage import translated
from tests.chatapp.conftest import Socket, log_in, opened, send_frame, until
from tests.chatapp.fake_worker import FakeWorker

pytestmark = pytest.mark.django_db(transaction=True)
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
