"""Two people (Alice owns, Bob does not), an engine that answers as told, turns on it, and a browser's socket."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import SyncToAsync, sync_to_async
from channels.testing import WebsocketCommunicator
from django.core.cache import cache
from django.db import connections
from django.test import Client
from django.utils import translation

from chatapp import llm, wire
from chatapp.asgi import application
from chatapp.models import Message, User
from chatapp.services.accounts import owner_create
from chatapp.turn import run, writer
from chatapp.turn.live import Live, LiveTurn
from chatapp.turn.preparation import preparation
from tests.chatapp.fake_worker import FakeWorker
from tests.patience import PATIENCE_S


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL only what touches the database: the others would do the same again."""
    if not os.environ.get("TEST_DATABASE_URL"):
        return
    others = {item for item in items if Path(__file__).parent in item.path.parents and not has_database(item)}
    config.hook.pytest_deselected(items=list(others))
    items[:] = [item for item in items if item not in others]


def has_database(item: pytest.Item) -> bool:
    names = getattr(item, "fixturenames", ())
    return item.get_closest_marker("django_db") is not None or not {"db", "transactional_db"}.isdisjoint(names)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """What asynchronous tests read directly runs in asgiref's one thread, whose connection nobody else closes: with it
    open, PostgreSQL would not let the test database go."""
    yield
    SyncToAsync.single_thread_executor.submit(connections.close_all).result(PATIENCE_S)


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    """Counters of one test are no business of the next."""
    cache.clear()


@pytest.fixture(autouse=True)
def _english() -> Iterator[None]:
    """A request of the test client leaves its language behind."""
    with translation.override("en"):
        yield


@pytest.fixture
def alice(db: Any) -> User:
    return User.objects.create_user("alice", password="correct horse battery")


@pytest.fixture
def bob(db: Any) -> User:
    return User.objects.create_user("bob", password="correct horse battery")


@pytest.fixture
def owner(db: Any) -> User:
    """Who set the installation up: may use the admin."""
    return owner_create(username="ada", password="correct horse battery")


@pytest.fixture
def staff(owner: User) -> Client:
    """The owner's browser."""
    client = Client()
    client.force_login(owner)
    return client


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    """An engine behind the door that answers as the test says."""
    llm.shutdown()
    fake = FakeWorker()
    llm.start(fake)
    yield fake
    preparation.end()
    llm.shutdown()
    llm.host.handle.worker = None  # as in a process that has never had one


# --- turns ------------------------------------------------------------------------------------------------------------


def send(text: str = "Hello", **changes: Any) -> wire.TurnSend:
    values: dict[str, Any] = {"conversation": uuid.uuid4(), "client_id": uuid.uuid4(), "text": text, "is_new": True}
    return wire.TurnSend(**(values | changes))


def after(turn: LiveTurn, text: str) -> wire.TurnSend:
    return send(text, conversation=turn.conversation_id, parent=turn.message_id, is_new=False)


async def started(live: Live, user: User, frame: run.TurnFrame, **options: Any) -> LiveTurn:
    turn = await run.start(live, user, frame, **options)
    assert turn is not None
    await until(lambda: is_submitted(turn))
    return turn


def is_submitted(turn: LiveTurn) -> bool:
    worker = llm.host.handle.worker
    assert isinstance(worker, FakeWorker)
    return turn.request_id in worker._listeners


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


async def ended(turn: LiveTurn) -> wire.TurnEnd:
    assert turn.task is not None
    async with asyncio.timeout(PATIENCE_S):
        await turn.task
    assert turn.end is not None
    return turn.end


async def stored(turn: LiveTurn) -> Message:
    return await Message.objects.aget(id=turn.message_id)


async def stored_when(turn: LiveTurn, condition: Callable[[Message], bool]) -> Message:
    """The row as soon as it is like that."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition(message := await stored(turn)):
            await asyncio.sleep(0.002)
    return message


@pytest.fixture
def quick_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What grows is saved at once, and a row that is gone is noticed at once."""
    monkeypatch.setattr(writer, "SAVE_INTERVAL_S", 0.005)


async def whole(live: Live, worker: FakeWorker, user: User, frame: run.TurnFrame, reply: str) -> LiveTurn:
    """A turn from its question to its end."""
    turn = await started(live, user, frame)
    worker.write(reply)
    worker.finish()
    await ended(turn)
    return turn


# --- sockets ----------------------------------------------------------------------------------------------------------


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
        async with asyncio.timeout(PATIENCE_S):
            while True:
                frame: dict[str, Any] = json.loads(await self._communicator.receive_from(timeout=PATIENCE_S))
                if not types or frame["type"] in types:
                    return frame

    async def ask(self, frame: dict[str, Any] | str) -> dict[str, Any]:
        """Send one frame; the answer to it."""
        await self.send(frame)
        return await self.next("error", "pong", "turn.accepted")

    async def close_code(self) -> int:
        """Frames are skipped until the socket closes."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                output = await self._communicator.receive_output(timeout=PATIENCE_S)
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
