"""What a socket refuses: wrong frames, what belongs to another, and floods."""

from __future__ import annotations

import json
import uuid
from dataclasses import fields
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from chatapp import consumers, wire
from chatapp.models import Message, User
from chatapp.turn.preparation import preparation
from tests.chatapp import rows
from tests.chatapp.conftest import opened, send_frame, until
from tests.chatapp.fake_worker import FakeWorker

pytestmark = pytest.mark.django_db(transaction=True)


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


# --- what belongs to another ------------------------------------------------------------------------------------------


def frame_about(cls: type[wire.ClientFrame], conversation: object, message: object) -> dict[str, Any]:
    """A frame of a type that names this conversation and message."""
    values: dict[str, Any] = {
        "conversation": str(conversation),
        "message": str(message),
        "parent": str(message),
        "client_id": str(uuid.uuid4()),
        "text": "hello",
        "seq": 1,
        "number": 1,
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


CAN_BEGIN_ONE = [cls for cls in ABOUT_A_CONVERSATION if "is_new" in {item.name for item in fields(cls)}]


@pytest.mark.parametrize(
    ("cls", "text"),
    [(cls, text) for cls in CAN_BEGIN_ONE for text in ("hello", None) if text or cls is not wire.TurnSend],
    ids=str,
)
async def test_a_new_conversation_cannot_take_the_id_of_anothers(
    alice: User, bob: User, worker: FakeWorker, cls: type[wire.ClientFrame], text: str | None
) -> None:
    theirs = await sync_to_async(rows.turn)(alice)
    frame = frame_about(cls, theirs.conversation.id, theirs.assistant_message.id)
    async with opened(bob) as socket:
        missing = await socket.ask({**frame, "conversation": str(uuid.uuid4())})
        answer = await socket.ask({**frame, "is_new": True, "text": text})
    assert (answer["code"], answer["message"]) == ("not_found", missing["message"])
    assert answer["conversation"] == str(theirs.conversation.id)
    assert (worker.requests, worker.prefills) == ([], [])


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("cls", ABOUT_A_CONVERSATION, ids=lambda cls: cls.TYPE)
async def test_what_is_prepared_for_another_goes_on(
    alice: User, bob: User, worker: FakeWorker, cls: type[wire.ClientFrame], is_new: bool
) -> None:
    theirs = await sync_to_async(rows.turn)(alice)
    name = str(theirs.conversation.id)
    worker.is_holding = True
    async with opened(alice) as socket:
        await socket.send({"type": "watch", "conversation": name})
        await until(lambda: len(worker.prefills) == 1)
        await socket.send({"type": "draft.warm", "conversation": name, "text": "What I write is long. " * 20})
        await until(lambda: len(worker.prefills) == 2)
        preparation.summarised(theirs.conversation.id, alice.pk)  # waits behind both
        running, hints = list(worker._listeners), list(worker.hints)
        async with opened(bob) as other:
            frame = frame_about(cls, name, theirs.assistant_message.id)
            await other.ask(frame | ({"is_new": True} if "is_new" in frame else {}))
        assert list(worker._listeners) == running
        assert ("window", theirs.conversation.id) in preparation._spare_time
        assert (worker.hints, worker.purged) == (hints, [])
        assert preparation._live.is_open(theirs.conversation.id)


async def test_nor_does_anybody_stop_what_is_prepared_under_an_id_that_nobody_has_yet(
    alice: User, bob: User, worker: FakeWorker
) -> None:
    draft = {"type": "draft.warm", "conversation": str(uuid.uuid4()), "text": "Something new. " * 20, "is_new": True}
    worker.is_holding = True
    async with opened(alice) as socket:
        await socket.send(draft)
        await until(lambda: len(worker.prefills) == 1)
        for text in ("Quite another thing. " * 20, None):
            async with opened(bob) as other:
                await other.send(draft | {"text": text})
                assert (await other.ask({"type": "ping"}))["type"] == "pong"
        assert worker.prefills[0].request_id in worker._listeners


# --- floods -----------------------------------------------------------------------------------------------------------


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
