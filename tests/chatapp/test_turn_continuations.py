"""Replies that go on: from the ids so far, and from the text where the ids do not stand for all of it."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async

from chatapp import llm, wire
from chatapp.markdown import render_blocks
from chatapp.models import Generation, User
from chatapp.services import turns
from chatapp.turn.live import Live, LiveTurn
from tests.chatapp.conftest import ended, send, started, stored, stored_when, whole
from tests.chatapp.fake_worker import FakeWorker
from tests.chatapp.test_turn_live import Tab

pytestmark = pytest.mark.django_db(transaction=True)


async def cut(live: Live, worker: FakeWorker, user: User, text: str, ids: tuple[int, ...] | None = ()) -> LiveTurn:
    """A turn that max_tokens has cut off."""
    turn = await started(live, user, send("one"))
    worker.write(text)
    worker.finish(llm.FinishReason.LENGTH, ids=ids)
    await ended(turn)
    return turn


def more(turn: LiveTurn) -> wire.TurnContinue:
    return wire.TurnContinue(turn.conversation_id, turn.message_id)


@pytest.mark.parametrize("reason", ["cancelled", "length", "error"])
async def test_continue_goes_on_from_the_ids_so_far(alice: User, worker: FakeWorker, reason: str) -> None:
    live = Live()
    turn = await started(live, alice, send("one"))
    worker.write("ein")
    worker.finish(llm.FinishReason(reason))
    await ended(turn)
    tab = Tab(live)
    tab.watcher.watch(turn.conversation_id)
    frame = wire.TurnContinue(turn.conversation_id, turn.message_id)
    await asyncio.sleep(0.002)  # seqs go by the millisecond
    again = await whole(live, worker, alice, frame, "s, zwei")
    assert turn.end is not None
    assert again.end is not None
    assert again.end.seq > turn.end.seq
    first, second = (request.prompt_ids.tolist() for request in worker.requests)
    assert second == [*first, *b"ein"]  # no new header
    message = await stored(again)
    assert (message.status, message.text, message.error) == ("done", "eins, zwei", "")
    assert bytes(message.token_ids)[::4] == b"eins, zwei"
    assert await Generation.objects.acount() == 2
    tab.read()
    assert tab.html == list(render_blocks("eins, zwei"))


async def test_only_a_continued_reply_is_a_continuation(alice: User, worker: FakeWorker) -> None:
    """A tokenizer that puts a space in front of a text would otherwise lose the first one of what is added."""
    live = Live()
    empty = await cut(live, worker, alice, "")
    await whole(live, worker, alice, more(empty), "ein")
    turn = await cut(live, worker, alice, "ein")
    await whole(live, worker, alice, more(turn), " zwei")
    assert [request.is_continuation for request in worker.requests] == [False, False, False, True]


@pytest.mark.usefixtures("quick_saves")
async def test_ids_that_stand_for_a_part_of_the_text_are_not_stored(
    alice: User, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live()
    turn = await cut(live, worker, alice, "ein", ids=None)  # a stop string began inside a token, say
    monkeypatch.setattr(worker.opened.tokenizer, "encode", lambda text: [])  # a normaliser leaves nothing of it
    again = await started(live, alice, more(turn))
    worker.write("s, zwei")
    saved = await stored_when(again, lambda message: message.text == "eins, zwei")
    assert saved.token_ids is None
    worker.finish()
    await ended(again)
    message = await stored(again)
    assert (message.text, message.token_ids, message.token_fingerprint) == ("eins, zwei", None, "")


async def test_half_a_character_at_the_end_is_written_again_whole(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await cut(live, worker, alice, "5 \ufffd", ids=(*b"5 ", *"€".encode()[:2]))
    again = await whole(live, worker, alice, more(turn), "€")
    assert worker.requests[1].prompt_ids.tolist() == [*worker.requests[0].prompt_ids.tolist(), *b"5 "]
    message = await stored(again)
    assert (message.text, bytes(message.token_ids)[::4]) == ("5 €", "5 €".encode())


async def test_ids_of_a_reply_begun_with_another_tokenizer_stand_for_all_of_it(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await cut(live, worker, alice, "hi", ids=(250, 251))
    llm.shutdown()
    other = FakeWorker(tokenizer_fingerprint="another")
    llm.start(other)  # type: ignore[arg-type]
    message = await stored(await whole(live, other, alice, more(turn), " there"))
    assert (bytes(message.token_ids)[::4], message.token_fingerprint) == (b"hi there", "another")


async def test_ids_that_the_engine_took_with_it_are_not_stored(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await cut(live, worker, alice, "ein")
    again = await started(live, alice, more(turn))
    worker.write("s, z")
    worker.finish(llm.FinishReason.ERROR, error="broken", ids=None)
    await ended(again)
    message = await stored(again)
    assert (message.status, message.text, message.token_ids) == ("failed", "eins, z", None)


@pytest.mark.usefixtures("quick_saves")
async def test_continue_after_a_crash_drops_ids_whose_text_was_never_shown(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send("one"))
    worker.write("5 ", held_back="€".encode()[:2])
    saved = await stored_when(turn, lambda message: message.text != "")
    assert bytes(saved.token_ids)[::4] == b"5 \xe2\x82"
    assert turn.task is not None
    turn.task.cancel()  # as kill -9: nothing is closed
    await asyncio.wait([turn.task])
    assert await sync_to_async(turns.recover_interrupted)() == 1
    assert await sync_to_async(turns.recover_interrupted)() == 0
    live = Live()
    frame = wire.TurnContinue(turn.conversation_id, turn.message_id)
    again = await whole(live, worker, alice, frame, "euros")
    assert worker.requests[1].prompt_ids.tolist() == [*worker.requests[0].prompt_ids.tolist(), *b"5 "]
    message = await stored(again)
    assert (message.text, bytes(message.token_ids)[::4]) == ("5 euros", b"5 euros")


async def test_a_continued_reply_that_fails_at_once_still_shows_its_text(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send("one"))
    worker.write("so far")
    worker.finish(llm.FinishReason.CANCELLED)
    await ended(turn)
    tab = Tab(live)
    tab.watcher.watch(turn.conversation_id)
    again = await started(live, alice, wire.TurnContinue(turn.conversation_id, turn.message_id))
    worker.finish(llm.FinishReason.ERROR, error="broken")
    await ended(again)
    tab.read()
    assert tab.html == list(render_blocks("so far"))
    assert (await stored(turn)).text == "so far"
