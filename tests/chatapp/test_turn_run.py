"""The story of a turn, with a database and a scripted engine: stored before it is computed, ended exactly once."""

from __future__ import annotations

import asyncio
import datetime
import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone

from chatapp import llm, locks, wire
from chatapp.errors import Busy, Conflict, Draining, NotFound, StorageUnavailable, WindowFull
from chatapp.executors import database
from chatapp.markdown import render_blocks
from chatapp.models import Conversation, Generation, Message, MessageStatus, User
from chatapp.services import conversations, turns
from chatapp.turn import run, stream, writer
from chatapp.turn.live import Live, LiveTurn
from tests.chatapp import rows
from tests.chatapp.fake_worker import END, HEADERS, FakeWorker
from tests.chatapp.test_turn_live import Tab

SEND_QUERIES = 11  # transaction, conversation, client id, parent, open ones, two rows, leaf, history, last model
pytestmark = pytest.mark.django_db(transaction=True)


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
    worker = llm._handle.worker
    assert isinstance(worker, FakeWorker)
    return turn.request_id in worker._listeners


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def ended(turn: LiveTurn) -> wire.TurnEnd:
    assert turn.task is not None
    async with asyncio.timeout(10):
        await turn.task
    assert turn.end is not None
    return turn.end


async def stored(turn: LiveTurn) -> Message:
    return await Message.objects.aget(id=turn.message_id)


async def whole(live: Live, worker: FakeWorker, user: User, frame: run.TurnFrame, reply: str) -> LiveTurn:
    """A turn from its question to its end."""
    turn = await started(live, user, frame)
    worker.write(reply)
    worker.finish()
    await ended(turn)
    return turn


# --- one turn ---------------------------------------------------------------------------------------------------------


async def test_a_turn_is_stored_before_it_is_computed_and_closed_with_its_numbers(
    alice: User, worker: FakeWorker
) -> None:
    live = Live()
    accepted: list[wire.TurnAccepted] = []
    turn = await started(live, alice, send("Hello **you**"), accept=accepted.append)
    assert (await stored(turn)).status == MessageStatus.QUEUED
    (frame,) = accepted
    assert frame.user_html == "".join(render_blocks("Hello **you**"))
    assert (frame.user_text, frame.message, frame.is_duplicate) == ("Hello **you**", turn.message_id, False)
    worker.write("Hi ")
    worker.write("there")
    worker.finish(text="!")
    end = await ended(turn)
    message = await stored(turn)
    assert (message.status, message.text, bytes(message.token_ids)[:4]) == ("done", "Hi there!", b"H\0\0\0")
    generation = await Generation.objects.aget(message=message)
    assert (generation.num_prompt_tokens, generation.num_reused, generation.seed) == (
        generation.num_reused + generation.num_computed,
        generation.num_prompt_tokens // 2,
        worker.requests[0].sampling.seed,
    )
    assert generation.seed is not None
    assert end.stats == run.turn_stats(generation)
    assert not live.turns
    assert not llm._handle.places


async def test_a_tab_sees_stages_text_and_end_as_they_are_stored(alice: User, worker: FakeWorker) -> None:
    live = Live()
    tab = Tab(live)
    frame = send()
    tab.watcher.watch(frame.conversation)
    turn = await started(live, alice, frame)
    worker.read(512, 1080)
    await until(lambda: turn.stage == "reading")
    tab.read()
    assert (tab.stage, turn.num_done, turn.num_total) == ("reading", 512, 1080)
    worker.write("one\n\n")
    worker.write("*two")
    await until(lambda: len(turn.blocks) == 2)
    tab.read()
    assert tab.stage == "writing"
    late = Tab(live)
    late.watcher.watch(frame.conversation)
    worker.write("*")
    worker.finish()
    await ended(turn)
    text = (await stored(turn)).text
    for shown in (tab, late):
        shown.read()
        assert shown.html == list(render_blocks(text))
        assert shown.end is not None
        assert shown.end["status"] == "done"


async def test_text_is_saved_while_it_grows(alice: User, worker: FakeWorker) -> None:
    turn = await started(Live(), alice, send())
    worker.write("half a rep")

    async def is_saved() -> bool:
        return (await stored(turn)).text == "half a rep"

    async with asyncio.timeout(1.0):  # what is promised
        while not await is_saved():
            await asyncio.sleep(0.01)
    assert (await stored(turn)).status == MessageStatus.WRITING
    worker.finish()
    await ended(turn)


async def test_one_line_of_log_per_turn_without_its_text(
    alice: User, worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "chatapp")
    turn = await whole(Live(), worker, alice, send("my secret question"), "my secret answer")
    (record,) = [record for record in caplog.records if record.name == "chatapp.turn.run"]
    assert str(turn.message_id) in record.getMessage()
    assert "done stop, prompt" in record.getMessage()
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("reason", "status"),
    [("stop", "done"), ("length", "done"), ("error", "failed"), ("cancelled", "interrupted")],
)
async def test_every_finish_is_one_of_four_ends(alice: User, worker: FakeWorker, reason: str, status: str) -> None:
    turn = await started(Live(), alice, send())
    worker.write("partial")
    worker.finish(llm.FinishReason(reason), error="the logits are not numbers" if reason == "error" else "")
    end = await ended(turn)
    message = await stored(turn)
    assert (end.status, message.status, message.text) == (status, status, "partial")
    assert bool(message.error) == (status == "failed")


async def test_our_own_mistake_fails_the_turn_and_nothing_else(
    alice: User, worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(thought: str, answer: str) -> None:
        raise ZeroDivisionError

    live = Live()
    turn = await started(live, alice, send(), on_text=explode)
    worker.write("a")
    assert (await ended(turn)).status == "failed"
    assert (await stored(turn)).status == "failed"
    assert "ZeroDivisionError" in caplog.text
    assert not worker.stats().num_running
    assert not llm._handle.places
    assert (await ended(await whole(live, worker, alice, send(), "fine"))).status == "done"


async def test_the_engine_that_fails_at_the_last_moment_fails_the_turn(alice: User, worker: FakeWorker) -> None:
    def refuse(*args: Any) -> None:
        raise llm.EngineStopped

    worker.submit = refuse  # type: ignore[method-assign]
    turn = await run.start(Live(), alice, send())
    assert turn is not None
    assert (await ended(turn)).status == "failed"
    assert (await stored(turn)).error


# --- stop -------------------------------------------------------------------------------------------------------------


async def test_stop_keeps_the_text_and_a_second_stop_changes_nothing(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send())
    worker.write("so far")
    frame = wire.TurnStop(turn.conversation_id, turn.message_id)
    await asyncio.gather(run.stop(live, alice, frame), run.stop(live, alice, frame))
    end = await ended(turn)
    await run.stop(live, alice, frame)
    message = await stored(turn)
    assert (end.status, message.status, message.text) == ("stopped", "stopped", "so far")


async def test_stop_before_the_engine_knows_of_it(alice: User, worker: FakeWorker) -> None:
    class StoppedAtOnce(Live):
        def add(self, turn: LiveTurn) -> None:
            super().add(turn)
            turn.is_stopping = True  # as run.stop does

    turn = await run.start(StoppedAtOnce(), alice, send())
    assert turn is not None
    assert (await ended(turn)).status == "stopped"
    assert worker.requests == []


async def test_nobody_stops_the_turn_of_another(alice: User, bob: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send())
    with pytest.raises(NotFound) as others:
        await run.stop(live, bob, wire.TurnStop(turn.conversation_id, turn.message_id))
    with pytest.raises(NotFound) as nobodys:
        await run.stop(live, bob, wire.TurnStop(uuid.uuid4(), uuid.uuid4()))
    assert others.value.message == nobodys.value.message
    assert is_submitted(turn)
    worker.finish()
    await ended(turn)


async def test_a_turn_of_another_process_cannot_be_stopped_here(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send())
    with locks.beside_server(settings.RECOLLECT_DATA), pytest.raises(Conflict):
        await run.stop(Live(), alice, wire.TurnStop(turn.conversation_id, turn.message_id))
    assert (await stored(turn)).is_open
    worker.finish()
    await ended(turn)


async def test_a_turn_whose_process_was_killed_is_stopped_and_goes_on_here(alice: User, worker: FakeWorker) -> None:
    left = await sync_to_async(rows.send)(alice)
    conversation_id, message_id = left.conversation.id, left.assistant_message.id
    await Message.objects.filter(id=message_id).aupdate(status=MessageStatus.WRITING, text="so far")
    await run.stop(Live(), alice, wire.TurnStop(conversation_id, message_id))
    message = await Message.objects.aget(id=message_id)
    assert (message.status, message.text) == ("interrupted", "so far")
    turn = await started(Live(), alice, wire.TurnContinue(conversation_id, message_id))
    worker.finish()
    assert (await ended(turn)).status == "done"


# --- sent twice, refused, taken back ----------------------------------------------------------------------------------


async def test_fifty_copies_of_a_send_are_one_turn(alice: User, worker: FakeWorker) -> None:
    live, frame = Live(), send()
    accepted: list[wire.TurnAccepted] = []
    results = await asyncio.gather(*(run.start(live, alice, frame, accept=accepted.append) for _ in range(30)))
    await until(lambda: len(worker.requests) == 1)
    assert await Message.objects.acount() == 2
    assert len({answer.message for answer in accepted}) == 1
    assert sorted(answer.is_duplicate for answer in accepted) == [False] + 29 * [True]
    assert llm._handle.places.total() == 1
    worker.finish()
    await ended(next(turn for turn in results if turn))
    assert await run.start(live, alice, frame) is None  # the same again, when it is over
    assert len(worker.requests) == 1


async def test_the_same_client_id_with_another_text_is_a_conflict(alice: User, worker: FakeWorker) -> None:
    live, frame = Live(), send("one")
    turn = await started(live, alice, frame)
    with pytest.raises(Conflict):
        await run.start(live, alice, send("two", conversation=frame.conversation, client_id=frame.client_id))
    worker.finish()
    await ended(turn)


async def test_what_does_not_fit_is_refused_with_numbers_and_leaves_nothing(alice: User, worker: FakeWorker) -> None:
    live = Live()
    with pytest.raises(WindowFull) as caught:
        await run.start(live, alice, send("x" * 4000))
    # header, text, end, header of the reply
    assert caught.value.detail == {"num_prompt_tokens": 4003, "num_reserved_tokens": 512, "window": 4096}
    assert await Conversation.objects.acount() == await Message.objects.acount() == 0
    assert not llm._handle.places
    turn = await whole(live, worker, alice, send("x" * 3500), "fits")
    with pytest.raises(WindowFull):
        await run.start(live, alice, after(turn, "y" * 500))
    assert await Message.objects.acount() == 2
    assert (await Conversation.objects.aget()).active_leaf_id == turn.message_id


async def test_the_longest_message_that_fits_is_taken(alice: User, worker: FakeWorker) -> None:
    turn = await whole(Live(), worker, alice, send("x" * (4096 - 512 - 3)), "fits")
    (request,) = worker.requests
    assert len(request.prompt_ids) + request.sampling.max_tokens == 4096
    assert (await stored(turn)).status == "done"


@pytest.mark.parametrize("refusal", [Busy, Draining])
async def test_a_refusal_comes_before_any_work(
    alice: User, worker: FakeWorker, settings: Any, refusal: type[Exception], django_assert_num_queries: Any
) -> None:
    if refusal is Draining:
        llm.drain()
    else:
        settings.RECOLLECT_MAX_RUNNING, settings.RECOLLECT_MAX_WAITING = 1, 0
        llm.reserve(alice.pk)
    with pytest.raises(refusal):
        await run.start(Live(), alice, send())
    assert await Message.objects.acount() == 0


async def test_a_caller_that_is_cancelled_takes_nothing_back(alice: User, worker: FakeWorker) -> None:
    live = Live()
    caller = asyncio.create_task(run.start(live, alice, send()))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await until(lambda: len(worker.requests) == 1)
    (turn,) = live.turns
    worker.write("still here")
    worker.finish()
    assert (await ended(turn)).status == "done"
    assert (await stored(turn)).text == "still here"


async def test_two_sends_in_one_conversation_do_not_run_at_once(alice: User, worker: FakeWorker) -> None:
    live = Live()
    first = await whole(live, worker, alice, send(), "one")
    second = await started(live, alice, after(first, "two?"))
    with pytest.raises(Conflict):
        await run.start(live, alice, after(first, "three?"))
    worker.finish()
    await ended(second)
    assert not llm._handle.places


async def test_a_send_that_comes_before_the_last_frame_of_the_turn_before_it(
    alice: User, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_rendered = asyncio.Event()

    async def slow(self: stream.Publisher) -> tuple[wire.Block, ...]:
        await is_rendered.wait()
        return ()

    monkeypatch.setattr(stream.Publisher, "final_blocks", slow)
    live = Live()
    first = await started(live, alice, send())
    worker.finish()

    async def is_closed() -> bool:
        return (await stored(first)).status == "done"

    async with asyncio.timeout(5):
        while not await is_closed():
            await asyncio.sleep(0.002)
    second = await started(live, alice, after(first, "already?"))
    worker.finish()
    is_rendered.set()
    assert [(await ended(turn)).status for turn in (first, second)] == ["done", "done"]


# --- the prompt -------------------------------------------------------------------------------------------------------


async def test_each_prompt_is_a_prefix_of_the_next(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await whole(live, worker, alice, send("one"), "eins")
    turn = await whole(live, worker, alice, after(turn, "two<|im_end|>"), "zwei")
    await whole(live, worker, alice, after(turn, "three"), "drei")
    prompts = [request.prompt_ids.tolist() for request in worker.requests]
    assert prompts[1][: len(prompts[0])] == prompts[0]
    assert prompts[2][: len(prompts[1])] == prompts[1]
    assert prompts[1][len(prompts[0]) :][:5] == [*b"eins", END]


async def test_the_date_in_a_prompt_is_the_day_on_which_the_conversation_began(alice: User, worker: FakeWorker) -> None:
    live = Live()
    first = await whole(live, worker, alice, send(), "Hi")
    days = worker.opened.chat_template.days
    assert days[-1] == timezone.localdate()
    began = datetime.datetime(2025, 3, 7, 12, tzinfo=datetime.UTC)
    await Conversation.objects.filter(id=first.conversation_id).aupdate(created_at=began)
    await whole(live, worker, alice, after(first, "Und?"), "Ja")
    assert days[-1] == began.date()


async def test_ids_that_no_encoding_would_give_are_replayed(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send("one"))
    worker.write("hi")
    worker.finish(ids=(250, 251))  # the tokenizer would give 104, 105
    await ended(turn)
    await whole(live, worker, alice, after(turn, "two"), "x")
    assert worker.requests[1].prompt_ids.tolist()[5:9] == [HEADERS["assistant"], 250, 251, END]


async def test_ids_of_another_tokenizer_are_encoded_again_and_the_log_says_so(
    alice: User, worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "chatapp")
    live = Live()
    turn = await started(live, alice, send("one"))
    worker.write("hi")
    worker.finish(ids=(250, 251))
    await ended(turn)
    llm.shutdown()
    other = FakeWorker(tokenizer_fingerprint="another")
    llm.start(other)  # type: ignore[arg-type]
    await whole(live, other, alice, after(turn, "two"), "x")
    assert other.requests[0].prompt_ids.tolist()[5:9] == [HEADERS["assistant"], *b"hi", END]
    assert "1 of 3 messages encoded again" in caplog.text


async def test_regenerate_and_edit_make_siblings(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await whole(live, worker, alice, send("one"), "eins")
    frame = wire.TurnRegenerate(turn.conversation_id, turn.message_id, uuid.uuid4())
    again = await whole(live, worker, alice, frame, "uno")
    assert worker.requests[1].prompt_ids.tolist() == worker.requests[0].prompt_ids.tolist()
    question = (await stored(turn)).parent_id
    assert question is not None
    edit = wire.TurnEdit(turn.conversation_id, question, uuid.uuid4(), "two")
    edited = await whole(live, worker, alice, edit, "zwei")
    texts = {message.text async for message in Message.objects.all()}
    assert texts == {"one", "eins", "uno", "two", "zwei"}
    assert (await Conversation.objects.aget()).active_leaf_id == edited.message_id
    assert (await stored(again)).parent_id == question


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


async def cut(live: Live, worker: FakeWorker, user: User, text: str, ids: tuple[int, ...] | None = ()) -> LiveTurn:
    """A turn that max_tokens has cut off."""
    turn = await started(live, user, send("one"))
    worker.write(text)
    worker.finish(llm.FinishReason.LENGTH, ids=ids)
    await ended(turn)
    return turn


def more(turn: LiveTurn) -> wire.TurnContinue:
    return wire.TurnContinue(turn.conversation_id, turn.message_id)


async def test_only_a_continued_reply_is_a_continuation(alice: User, worker: FakeWorker) -> None:
    """A tokenizer that puts a space in front of a text would otherwise lose the first one of what is added."""
    live = Live()
    empty = await cut(live, worker, alice, "")
    await whole(live, worker, alice, more(empty), "ein")
    turn = await cut(live, worker, alice, "ein")
    await whole(live, worker, alice, more(turn), " zwei")
    assert [request.is_continuation for request in worker.requests] == [False, False, False, True]


async def test_ids_that_stand_for_a_part_of_the_text_are_not_stored(
    alice: User, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live()
    turn = await cut(live, worker, alice, "ein", ids=None)  # a stop string began inside a token, say
    monkeypatch.setattr(worker.opened.tokenizer, "encode", lambda text: [])  # a normaliser leaves nothing of it
    again = await started(live, alice, more(turn))
    worker.write("s, zwei")
    await asyncio.sleep(writer.SAVE_INTERVAL_S + 0.2)
    saved = await stored(again)
    assert (saved.text, saved.token_ids) == ("eins, zwei", None)
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


async def test_continue_after_a_crash_drops_ids_whose_text_was_never_shown(alice: User, worker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send("one"))
    worker.write("5 ", held_back="€".encode()[:2])
    await asyncio.sleep(writer.SAVE_INTERVAL_S + 0.2)
    assert bytes((await stored(turn)).token_ids)[::4] == b"5 \xe2\x82"
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


# --- a database that is away ------------------------------------------------------------------------------------------


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Writes of a running turn fail while `is_down`, for this `reason`."""
    state: dict[str, Any] = {"is_down": False, "reason": "unreachable"}

    def failing(function: Callable[..., bool]) -> Callable[..., bool]:
        def call(**kwargs: Any) -> bool:
            if state["is_down"]:
                raise StorageUnavailable("No.", reason=state["reason"])
            return function(**kwargs)

        return call

    for name in ("turn_save", "turn_progress", "turn_close"):
        monkeypatch.setattr(turns, name, failing(getattr(turns, name)))
    monkeypatch.setattr(writer, "FIRST_RETRY_S", 0.01)
    return state


async def test_a_short_outage_costs_nothing(alice: User, worker: FakeWorker, outage: dict[str, Any]) -> None:
    turn = await started(Live(), alice, send())
    worker.write("kept ")
    outage["is_down"] = True
    await asyncio.sleep(writer.SAVE_INTERVAL_S + 0.1)
    worker.write("in memory")
    worker.finish()
    await asyncio.sleep(0.05)
    outage["is_down"] = False
    assert (await ended(turn)).status == "done"
    assert (await stored(turn)).text == "kept in memory"


@pytest.mark.parametrize(
    ("reason", "said"), [("full", "disk is full"), ("unreachable", "cannot be reached"), ("damaged", "be written to")]
)
async def test_a_reply_that_is_not_stored_yet_says_so_and_then_has_its_true_ending(
    alice: User, worker: FakeWorker, outage: dict[str, Any], reason: str, said: str
) -> None:
    live = Live()
    tab = Tab(live)
    frame = send()
    tab.watcher.watch(frame.conversation)
    turn = await started(live, alice, frame)
    outage.update(is_down=True, reason=reason)
    worker.write("kept")
    worker.finish(text=" *whole*")
    await until(lambda: turn.stage == "storing")
    late = Tab(live)
    late.watcher.watch(frame.conversation)
    for shown in (tab, late):
        shown.read()
        assert (shown.stage, shown.html, shown.end) == ("storing", list(render_blocks("kept *whole*")), None)
        assert said in shown.problem
        assert "not stored yet" in shown.problem
    seen = turn.seq
    outage["is_down"] = False
    end = await ended(turn)
    assert end.seq > seen
    assert (end.status, end.error, live.turns) == ("done", "", [])
    message = await stored(turn)
    assert (message.status, message.text, message.error) == ("done", "kept *whole*", "")
    assert await Generation.objects.filter(message=message).aexists()


# --- ends from outside ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["queued", "reading", "writing"])
async def test_deleting_a_conversation_ends_its_turn_and_forgets_its_kv(
    alice: User, worker: FakeWorker, caplog: pytest.LogCaptureFixture, stage: str
) -> None:
    live = Live()
    tab = Tab(live)
    frame = send()
    tab.watcher.watch(frame.conversation)
    turn = await started(live, alice, frame)
    if stage == "reading":
        worker.read(512, 9000)
    elif stage == "writing":
        worker.write("for nothing")
    await asyncio.sleep(writer.SAVE_INTERVAL_S + 0.2)  # whatever there is to save has been saved
    await database(conversations.conversation_delete, user=alice, conversation_id=turn.conversation_id)
    assert worker.purged == [str(turn.conversation_id)]
    async with asyncio.timeout(1.5):
        await ended(turn)
    assert not worker.stats().num_running
    assert worker.purged == [str(turn.conversation_id)] * 2  # once more for what was computed in between
    assert await Message.objects.acount() == await Generation.objects.acount() == 0
    assert not live.turns
    assert live.in_conversation(turn.conversation_id) is None
    assert not llm._handle.places
    tab.read()
    assert tab.end is not None
    assert tab.end["status"] == "interrupted"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_drain_lets_turns_end_and_interrupts_the_rest(alice: User, bob: User, worker: FakeWorker) -> None:
    live = Live()
    quick = await started(live, alice, send())
    slow = await started(live, bob, send())
    tab = Tab(live)
    draining = asyncio.create_task(run.drain(live, grace_s=0.2))
    await asyncio.sleep(0.01)
    worker.write("done in time", request_id=quick.request_id)
    worker.finish(request_id=quick.request_id)
    worker.write("not quite", request_id=slow.request_id)
    with pytest.raises(Draining):
        await run.start(live, alice, send())
    await draining
    assert [(await stored(turn)).status for turn in (quick, slow)] == ["done", "interrupted"]
    assert (await stored(slow)).text == "not quite"
    assert tab.watcher.close_code == 1001


@pytest.mark.parametrize("num_messages", [2, 200])
def test_a_send_asks_the_database_a_fixed_number_of_times(
    alice: User, worker: FakeWorker, num_messages: int, django_assert_num_queries: Any
) -> None:
    worker.opened.max_model_len = 1_000_000
    conversation = rows.long_conversation(alice, num_messages)
    frame = send(conversation=conversation.id, parent=conversation.active_leaf_id, is_new=False)
    with django_assert_num_queries(SEND_QUERIES):
        run._admit(alice, frame)
