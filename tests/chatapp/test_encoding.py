"""Messages get their vectors while nobody waits: after a turn, and those that have none when the server starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from chatapp import llm, wire
from chatapp.errors import StorageUnavailable
from chatapp.models import ContextPolicy, Message, MessageVector, Preset, TurnContext, User
from chatapp.turn import encoding as room
from chatapp.turn.encoding import Encoding, encoding
from chatapp.turn.live import Live, LiveTurn
from tests.chatapp import rows
from tests.chatapp.conftest import after, ended, send, started, until, whole
from tests.chatapp.fake_worker import FakeWorker
from tests.chatapp.test_embeddings import GROUPS, PARAPHRASE, SECRET
from tests.chatapp.test_turn_recall import text_of
from tests.chatapp.word_encoder import write_encoder

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def encoder(settings: Any, tmp_path: Path) -> Iterator[Path]:
    """It is switched on."""
    path = write_encoder(tmp_path / "words", *GROUPS)
    settings.RECOLLECT_EMBEDDINGS = str(path)
    yield path
    encoding._seen_until = None


async def encoded(job: Encoding) -> int:
    """How many vectors there are when it has nothing more to do."""
    await until(lambda: job.is_idle)
    return await MessageVector.objects.acount()


async def vector_of(message_id: object) -> bytes:
    return bytes((await MessageVector.objects.aget(message_id=message_id)).vector)


async def test_what_is_meant_is_quoted_when_it_has_left_the_window(alice: User, worker: FakeWorker) -> None:
    worker.opened.max_model_len = 1000
    await Preset.objects.acreate(name="small", is_default=True, context_policy=ContextPolicy.TRUNCATE, has_recall=True)
    live = Live()
    turn = await whole(live, worker, alice, send(SECRET), "Noted.")
    for number in range(10):
        turn = await whole(live, worker, alice, after(turn, str(number) * 60), "All right.")
    assert SECRET not in text_of(worker)
    assert await encoded(encoding) == 22
    await whole(live, worker, alice, after(turn, PARAPHRASE), "Mitzi")
    assert f"> User: {SECRET}\n\n{PARAPHRASE}" in text_of(worker)
    assert (await TurnContext.objects.aget()).sources == [str((await Message.objects.aget(text=SECRET)).id)]
    assert await encoded(encoding) == 24


async def test_without_an_encoder_nothing_is_made(alice: User, worker: FakeWorker, settings: Any) -> None:
    settings.RECOLLECT_EMBEDDINGS = ""
    await whole(Live(), worker, alice, send(SECRET), "Noted.")
    assert encoding.is_idle
    assert await encoded(encoding) == 0


async def test_what_was_said_before_it_was_switched_on_is_encoded_newest_first(
    alice: User, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for text in ("a cat", "a train", "a port"):
        await sync_to_async(rows.turn)(alice, text, f"{text}, yes")
    open_turn = await sync_to_async(rows.send)(alice, "a job")
    await MessageVector.objects.acreate(message=open_turn.user_message, encoder="old", vector=b"00")
    seen: list[str] = []

    def vectors_of(texts: Sequence[str]) -> list[bytes]:
        seen.extend(texts)
        return real(texts)

    real = llm.vectors_of
    monkeypatch.setattr(llm, "vectors_of", vectors_of)
    monkeypatch.setattr(room, "BATCH", 2)
    job = Encoding(Live())
    with caplog.at_level(logging.INFO):
        job.wake()
        assert await encoded(job) == 7  # the reply that is being written has none; the old encoder's is gone
    assert "7 messages have been encoded" in caplog.text
    assert seen == ["a job", "a port, yes", "a port", "a train, yes", "a train", "a cat, yes", "a cat"]
    assert "a cat" not in caplog.text
    job.wake()
    assert await encoded(job) == 7
    assert len(seen) == 7


async def test_a_reply_that_goes_on_is_encoded_as_it_is_now(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send("Hello"))
    worker.write("A cat")
    worker.finish(llm.FinishReason.LENGTH)
    await ended(turn)
    await encoded(encoding)
    before = await vector_of(turn.message_id)
    frame = wire.TurnContinue(turn.conversation_id, turn.message_id)
    again = await started(live, alice, frame)
    worker.write(" train")
    worker.finish()
    await ended(again)
    assert await encoded(encoding) == 2
    assert await vector_of(turn.message_id) != before


async def test_it_waits_while_a_reply_is_written_but_not_for_ever(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    await sync_to_async(rows.turn)(alice, SECRET, "Indeed")
    live = Live()
    reply = await Message.objects.aget(role="assistant")
    running = LiveTurn(reply.conversation_id, reply.id, alice.pk)
    live.add(running)
    monkeypatch.setattr(room, "MAX_WAIT_S", 1000.0)
    job = Encoding(live)
    job.wake()
    await asyncio.sleep(0.2)
    assert not job.is_idle
    assert await MessageVector.objects.acount() == 0
    job.end()
    await until(lambda: job.is_idle)
    monkeypatch.setattr(room, "MAX_WAIT_S", 0.01)
    job.wake()
    assert await encoded(job) == 2


async def test_what_cannot_be_encoded_ends_it_and_no_turn(
    alice: User, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm.sentences.SentenceEncoder, "encode", lambda *args, **kwargs: 1 / 0)
    live = Live()
    turn = await whole(live, worker, alice, send(SECRET), "Noted.")
    assert await encoded(encoding) == 0
    turn = await whole(live, worker, alice, after(turn, "And now?"), "Fine.")
    monkeypatch.undo()
    encoding.wake()
    assert await encoded(encoding) == 4


async def one_encoded(alice: User) -> tuple[Message, Encoding]:
    """A reply that has its vector, and who made it."""
    made = await sync_to_async(rows.turn)(alice, SECRET, "A cat")
    job = Encoding(Live())
    job.wake()
    await encoded(job)
    return made.assistant_message, job


async def test_what_changes_while_it_is_encoded_is_encoded_again(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    reply, job = await one_encoded(alice)
    seen: list[str] = []

    def vectors_of(texts: Sequence[str]) -> list[bytes]:
        if not seen:  # it goes on, and its turn ends
            Message.objects.filter(id=reply.id).update(text="A cat train")
            loop.call_soon_threadsafe(job.wake, reply.id)
        seen.extend(texts)
        return real(texts)

    real, loop = llm.vectors_of, asyncio.get_running_loop()
    monkeypatch.setattr(llm, "vectors_of", vectors_of)
    job.wake(reply.id)
    assert await encoded(job) == 2
    assert seen == ["A cat", "A cat train"]


async def test_what_could_not_be_read_is_not_forgotten(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    reply, job = await one_encoded(alice)
    before = await vector_of(reply.id)
    await Message.objects.filter(id=reply.id).aupdate(text="A train")
    with monkeypatch.context() as away:
        away.setattr("chatapp.vectors.finished", _away)
        job.wake(reply.id)
        await encoded(job)
    job.wake()
    await encoded(job)
    assert await vector_of(reply.id) != before


def _away(*args: object) -> list[Message]:
    raise StorageUnavailable("away")
