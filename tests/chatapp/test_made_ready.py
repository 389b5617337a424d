"""No row is locked, and no writer of SQLite kept waiting, while a model computes or its files are read for a turn."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db.transaction import Atomic

from chatapp import llm, wire
from chatapp.models import Message, Preset, TurnContext, User
from chatapp.turn import run
from chatapp.turn.encoding import encoding
from chatapp.turn.live import Live, LiveTurn
from inference.embedding.sentence_encoder import SentenceEncoder
from tests.chatapp.conftest import after, send, until, whole
from tests.chatapp.fake_worker import FakeWorker
from tests.chatapp.test_turn_recall import text_of
from tests.chatapp.word_encoder import write_encoder

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "Mitzi is the cat"
PARAPHRASE = "What did I say about my kitten?"  # shares no telling word with it


@pytest.fixture
def num_open(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many transactions are open in all threads: whoever computes may be another one than who holds the lock."""
    opened: list[Atomic] = []
    enter, leave = Atomic.__enter__, Atomic.__exit__

    def entering(self: Atomic) -> None:
        opened.append(self)
        enter(self)

    def leaving(self: Atomic, *error: Any) -> None:
        leave(self, *error)
        opened.remove(self)

    monkeypatch.setattr(Atomic, "__enter__", entering)
    monkeypatch.setattr(Atomic, "__exit__", leaving)
    return lambda: len(opened)


async def test_a_question_is_encoded_before_its_rows_are_locked(
    alice: User,
    worker: FakeWorker,
    settings: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_open: Callable[[], int],
) -> None:
    settings.RECOLLECT_EMBEDDINGS = str(write_encoder(tmp_path / "words", ["cat", "kitten", "mitzi"]))
    worker.opened.max_model_len = 1000
    await Preset.objects.acreate(name="small", is_default=True, context_policy="truncate")
    live = Live()
    turn = await whole(live, worker, alice, send(SECRET), "A fine name.")
    for number in range(10):
        turn = await whole(live, worker, alice, after(turn, str(number) * 60), "All right.")
    await until(lambda: encoding.is_idle)

    encoded: list[tuple[str, int]] = []
    real = SentenceEncoder.encode

    def encode(self: SentenceEncoder, texts: Any, **options: Any) -> Any:
        encoded.extend((text, num_open()) for text in texts)
        return real(self, texts, **options)

    monkeypatch.setattr(SentenceEncoder, "encode", encode)
    await whole(live, worker, alice, after(turn, PARAPHRASE), "Mitzi")
    await until(lambda: encoding.is_idle)
    assert (PARAPHRASE, 0) in encoded
    assert {num for _, num in encoded} == {0}
    context = await TurnContext.objects.select_related("message").aget()
    assert context.message.text == PARAPHRASE
    assert f"> User: {SECRET}\n" in context.text, "what it means has been compared"
    assert context.text + PARAPHRASE in text_of(worker), "and what is stored is what was sent"


async def frames(live: Live, worker: FakeWorker, user: User) -> list[run.TurnFrame]:
    """One of each kind, for a conversation of its own where that matters."""
    turn = await whole(live, worker, user, send("First"), "One.")
    edited = await whole(live, worker, user, send("First"), "One.")
    question = await Message.objects.aget(conversation_id=edited.conversation_id, role="user")
    again = await whole(live, worker, user, send("First"), "One.")
    cut = await whole(live, worker, user, send("First"), "One")
    await Message.objects.filter(id=cut.message_id).aupdate(status="stopped")
    return [
        send(),
        after(turn, "And now?"),
        wire.TurnEdit(edited.conversation_id, question.id, uuid.uuid4(), "Second"),
        wire.TurnRegenerate(again.conversation_id, again.message_id, uuid.uuid4()),
        wire.TurnContinue(cut.conversation_id, cut.message_id),
    ]


async def test_the_files_of_a_model_are_read_before(
    alice: User, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, num_open: Callable[[], int]
) -> None:
    live = Live()
    opened: list[int] = []
    real = worker.open

    def open_model(name: str) -> Any:
        opened.append(num_open())
        return real(name)

    for frame in await frames(live, worker, alice):
        with monkeypatch.context() as patch:
            patch.setattr(worker, "open", open_model)
            opened.clear()
            turn: LiveTurn = await whole(live, worker, alice, frame, "All right.")
        assert opened[0] == 0, frame
        assert max(opened) > 0, "then it is open, and costs nothing inside"
        assert turn.end is not None
    assert llm.status().state == "ready"
