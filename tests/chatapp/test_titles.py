"""Titles by the model: when one is asked for, with what, and that a person's own stays."""

from __future__ import annotations

import asyncio
import logging
import uuid
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from chatapp import hints, llm
from chatapp.models import Conversation, MessageStatus, TitleSource, User
from chatapp.services.conversations import conversation_delete, conversation_name, conversation_rename
from chatapp.turn import run, side_work, titles
from chatapp.turn.live import Live, LiveTurn
from chatapp.turn.title_rules import MAX_TOKENS
from inference.types import FinishReason, Request
from tests.chatapp.conftest import after, ended, opened, send, started, until, whole
from tests.chatapp.fake_worker import HEADERS, FakeWorker
from tests.chatapp.rows import at_once, turn

pytestmark = pytest.mark.django_db(transaction=True)

QUESTION = "How long does it take to boil potatoes?"
REPLY = "Potatoes take about twenty minutes."
TITLE = "Boiling potatoes"


@pytest.fixture(autouse=True)
def _switched_on(settings: Any) -> None:
    settings.RECOLLECT_TITLES = True


async def asked(worker: FakeWorker) -> Request:
    """The request for a title, when it has come."""
    await until(lambda: bool(worker.requests) and worker.requests[-1].is_side)
    return worker.requests[-1]


async def quiet() -> None:
    """Every attempt has ended."""
    await until(lambda: not titles.work.num_running)


async def named(worker: FakeWorker, title: str, reason: FinishReason = FinishReason.STOP) -> None:
    """The model answers."""
    await asked(worker)
    if title:
        worker.write(title)
    worker.finish(reason)
    await quiet()


async def conversation(turn: LiveTurn) -> Conversation:
    return await Conversation.objects.aget(id=turn.conversation_id)


async def first_turn(user: User, worker: FakeWorker, live: Live | None = None) -> LiveTurn:
    return await whole(live or Live(), worker, user, send(QUESTION), REPLY)


async def test_a_conversation_is_named_after_its_first_reply(alice: User, worker: FakeWorker) -> None:
    turn = await first_turn(alice, worker)
    request = await asked(worker)
    assert (await conversation(turn)).title == QUESTION
    await named(worker, f" {TITLE}")
    found = await conversation(turn)
    assert (found.title, found.title_source) == (TITLE, TitleSource.MODEL)
    assert request.sampling.temperature == 0
    assert request.sampling.max_tokens == MAX_TOKENS
    assert request.sampling.stop == ("**", "\n")
    assert request.tags == (str(turn.conversation_id),)


async def test_it_extends_what_the_next_turn_begins_with(alice: User, worker: FakeWorker) -> None:
    turn = await first_turn(alice, worker)
    side = await asked(worker)
    await named(worker, TITLE)
    await started(Live(), alice, after(turn, "And carrots?"))
    following = worker.requests[-1]
    num_shared = side.num_lasting_tokens
    assert side.prompt_ids[:num_shared].tolist() == following.prompt_ids[:num_shared].tolist()
    assert following.prompt_ids[num_shared:].tolist() == [*b"And carrots?", 259, HEADERS["assistant"]]
    assert (side.is_low_retention, side.salt, side.num_public_tokens) == (
        True,
        following.salt,
        following.num_public_tokens,
    )


async def test_every_tab_is_told(alice: User, worker: FakeWorker) -> None:
    async with opened(alice) as socket:
        turn = await first_turn(alice, worker)
        await named(worker, TITLE)
        while not (frame := await socket.next("conversation.changed"))["title"].startswith("Boil"):
            pass
        assert (frame["title"], frame["conversation"]) == (TITLE, str(turn.conversation_id))


async def test_a_person_who_names_it_meanwhile_wins(
    alice: User, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await first_turn(alice, worker)
    await asked(worker)
    told: list[str] = []

    async def tell(*_ids: object, title: str = "", **_rest: object) -> None:
        told.append(title)

    await sync_to_async(conversation_rename)(user=alice, conversation_id=turn.conversation_id, title="Mine")
    monkeypatch.setattr(hints, "aconversation_changed", tell)
    await named(worker, TITLE)
    found = await conversation(turn)
    assert (found.title, found.title_source, told) == ("Mine", TitleSource.PERSON, [])
    turn = await whole(Live(), worker, alice, after(turn, "And carrots?"), REPLY)
    await quiet()
    assert not worker.requests[-1].is_side  # nobody asks again


def test_one_title_under_concurrency(alice: User) -> None:
    found = turn(alice).conversation
    jobs = [partial(conversation_name, conversation_id=found.id, title=f"Title {n}") for n in range(6)]
    results = at_once(jobs)
    assert sorted(map(str, results)) == ["False"] * 5 + ["True"]
    found.refresh_from_db()
    assert (found.title, found.title_source) == (f"Title {results.index(True)}", TitleSource.MODEL)


@pytest.mark.parametrize("written", ["", "Here is a title", "Write a title", "A B C D", "🥔🥔🥔", REPLY * 3])
async def test_what_is_no_title_is_tried_again_after_the_next_replies_and_no_further(
    alice: User, worker: FakeWorker, written: str
) -> None:
    turn = await first_turn(alice, worker)
    for _ in range(titles.MAX_ATTEMPTS):
        await named(worker, written)
        turn = await whole(Live(), worker, alice, after(turn, QUESTION), REPLY)
    await quiet()
    assert sum(request.is_side for request in worker.requests) == titles.MAX_ATTEMPTS
    found = await conversation(turn)
    assert (found.title, found.title_source) == (QUESTION, TitleSource.FIRST_WORDS)


async def test_a_reply_that_is_made_again_and_again_is_no_reason_to_go_on(alice: User, worker: FakeWorker) -> None:
    turn = await first_turn(alice, worker)
    for n in range(5):
        if n < titles.MAX_ATTEMPTS:
            await named(worker, "")
        await quiet()
        frame = run.wire.TurnRegenerate(turn.conversation_id, turn.message_id, uuid.uuid4())
        turn = await whole(Live(), worker, alice, frame, REPLY)
    await quiet()
    assert sum(request.is_side for request in worker.requests) == titles.MAX_ATTEMPTS


async def test_a_title_that_is_cut_is_none(alice: User, worker: FakeWorker) -> None:
    turn = await first_turn(alice, worker)
    await named(worker, TITLE, FinishReason.LENGTH)
    assert (await conversation(turn)).title == QUESTION


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.ERROR])
async def test_an_attempt_that_fails_is_quiet(
    alice: User, worker: FakeWorker, reason: FinishReason, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="chatapp.turn")
    live = Live()
    turn = await first_turn(alice, worker, live)
    await named(worker, "Boil", reason)
    assert (await conversation(turn)).title == QUESTION
    assert turn.end is not None
    assert turn.end.error == ""
    asked_line, line = [each.getMessage() for each in caplog.records if each.name != "chatapp.turn.run"]
    assert asked_line.endswith(reason.value)
    assert line.endswith("no title")
    assert "potatoes" not in asked_line + line


async def test_nothing_is_loaded_for_it(alice: User, worker: FakeWorker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="chatapp.turn")
    turn = await started(Live(), alice, send(QUESTION))
    worker.write(REPLY)
    worker.model_state = "unloaded"
    worker.finish()
    await ended(turn)
    await quiet()
    assert [request.is_side for request in worker.requests] == [False]
    assert "no title, engine_unavailable" in caplog.text


async def test_the_second_question_does_not_wait_for_a_title(alice: User, worker: FakeWorker) -> None:
    turn = await first_turn(alice, worker)
    side = await asked(worker)
    second = await whole(Live(), worker, alice, after(turn, "And carrots?"), "Ten minutes.")
    assert [request.is_side for request in worker.requests] == [False, True, False]  # one attempt at a time
    assert second.end is not None
    worker.write(TITLE, request_id=side.request_id)
    worker.finish(request_id=side.request_id)
    await quiet()
    assert (await conversation(turn)).title == TITLE


async def test_nobody_holds_a_place_for_it(alice: User, worker: FakeWorker) -> None:
    await first_turn(alice, worker)
    await asked(worker)
    assert not llm.host.handle.places
    await named(worker, TITLE)


async def test_a_conversation_that_is_deleted_meanwhile_leaves_nothing(alice: User, worker: FakeWorker) -> None:
    turn = await first_turn(alice, worker)
    await asked(worker)
    await sync_to_async(conversation_delete)(user=alice, conversation_id=turn.conversation_id)
    assert worker.purged == [str(turn.conversation_id)]
    await named(worker, TITLE)
    assert worker.purged == [str(turn.conversation_id)] * 2  # also of what was computed since


@pytest.mark.parametrize("how", ["in vain", "too late", "drained", "failed"])
async def test_however_it_ends_nothing_stays_of_what_was_deleted_meanwhile(
    alice: User, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "too late":
        monkeypatch.setattr(titles.work, "patience_s", 0.5)
    turn = await first_turn(alice, worker)
    await asked(worker)
    await sync_to_async(conversation_delete)(user=alice, conversation_id=turn.conversation_id)
    match how:
        case "in vain":
            worker.finish(FinishReason.LENGTH)
        case "drained":
            side_work.cancel_all()
        case "failed":
            worker.finish(FinishReason.ERROR)
    await quiet()
    assert worker.purged == [str(turn.conversation_id)] * 2


async def test_a_drain_ends_it(alice: User, worker: FakeWorker) -> None:
    live = Live()
    await first_turn(alice, worker, live)
    await asked(worker)
    await run.drain(live, grace_s=0.0)
    await quiet()
    assert not worker._listeners


@pytest.mark.parametrize("reply", ["", " \n"])
async def test_without_an_answer_there_is_nothing_to_name(alice: User, worker: FakeWorker, reply: str) -> None:
    await whole(Live(), worker, alice, send(QUESTION), reply)
    await quiet()
    assert len(worker.requests) == 1


@pytest.mark.parametrize(
    ("reason", "is_stopping", "status", "is_asked"),
    [
        (FinishReason.LENGTH, False, MessageStatus.DONE, True),
        (FinishReason.CANCELLED, True, MessageStatus.STOPPED, True),
        (FinishReason.CANCELLED, False, MessageStatus.INTERRUPTED, False),
        (FinishReason.ERROR, False, MessageStatus.FAILED, False),
    ],
)
async def test_which_replies_are_good_for_a_title(
    alice: User, worker: FakeWorker, reason: FinishReason, is_stopping: bool, status: str, is_asked: bool
) -> None:
    turn = await started(Live(), alice, send(QUESTION))
    worker.write(REPLY)
    turn.is_stopping = is_stopping
    worker.finish(reason, error="broken" if reason == FinishReason.ERROR else "")
    end = await ended(turn)
    assert end.status == status
    if is_asked:
        await named(worker, TITLE)
    await quiet()
    assert len(worker.requests) == 1 + is_asked


async def test_it_can_be_switched_off_by_the_operator_and_by_each_person(
    alice: User, bob: User, worker: FakeWorker, settings: Any
) -> None:
    alice.preferences = {"titles": False}
    await alice.asave()
    await first_turn(alice, worker)
    await quiet()
    settings.RECOLLECT_TITLES = False
    await first_turn(bob, worker)
    await quiet()
    assert not any(request.is_side for request in worker.requests)


@pytest.mark.parametrize(("room", "is_asked"), [(0, True), (-1, False)])
async def test_a_title_that_would_not_fit_is_not_asked_for(
    alice: User, worker: FakeWorker, room: int, is_asked: bool
) -> None:
    await first_turn(alice, worker)
    num_tokens = len((await asked(worker)).prompt_ids)
    await named(worker, "")
    worker.opened.max_model_len = num_tokens + MAX_TOKENS + room
    await first_turn(alice, worker)
    if is_asked:
        await named(worker, "")
    await quiet()
    assert sum(request.is_side for request in worker.requests) == 1 + is_asked


async def test_a_server_without_time_is_given_up_on(
    alice: User, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="chatapp.turn")
    monkeypatch.setattr(titles.work, "patience_s", 0.05)
    await first_turn(alice, worker)
    await quiet()
    assert not worker._listeners
    assert "the engine had no time" in caplog.text


async def test_chinese_is_asked_in_chinese(alice: User, worker: FakeWorker) -> None:
    turn = await whole(Live(), worker, alice, send("土豆要煮多久？"), "煮土豆大约需要二十分钟。")
    request = await asked(worker)
    assert "请为这段对话写一个标题".encode() in bytes(i for i in request.prompt_ids.tolist() if i < 256)
    await named(worker, "煮土豆要多久")
    assert (await conversation(turn)).title == "煮土豆要多久"


async def test_each_attempt_is_its_own_task(alice: User, bob: User, worker: FakeWorker) -> None:
    turns = await asyncio.gather(*(run.start(Live(), user, send(QUESTION)) for user in (alice, bob)))
    for started_turn in turns:
        assert started_turn is not None
        await until(lambda turn=started_turn: turn.request_id in worker._listeners)
        worker.write(REPLY, request_id=started_turn.request_id)
        worker.finish(request_id=started_turn.request_id)
        await ended(started_turn)
    await until(lambda: sum(request.is_side for request in worker.requests) == 2)
    for request in [request for request in worker.requests if request.is_side]:
        worker.write(TITLE, request_id=request.request_id)
        worker.finish(request_id=request.request_id)
    await quiet()
    assert {found.title async for found in Conversation.objects.all()} == {TITLE}
