"""The story of a turn: stored before it is computed, shown and saved while it grows, with all that was said before."""

from __future__ import annotations

import datetime
import logging
import uuid

import pytest
from django.utils import timezone

from chatapp import llm, wire
from chatapp.markdown import render_blocks
from chatapp.models import Conversation, Generation, Message, MessageStatus, User
from chatapp.turn import writer
from chatapp.turn.live import Live
from chatapp.turn.numbers import turn_stats
from tests.chatapp.conftest import after, ended, send, started, stored, stored_when, until, whole
from tests.chatapp.fake_worker import END, HEADERS, FakeWorker
from tests.chatapp.test_turn_live import Tab

pytestmark = pytest.mark.django_db(transaction=True)


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
    assert end.stats == turn_stats(generation)
    assert not live.turns
    assert not llm.host.handle.places


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
    assert writer.SAVE_INTERVAL_S < 1.0  # what is promised
    turn = await started(Live(), alice, send())
    worker.write("half a rep")
    saved = await stored_when(turn, lambda message: message.text == "half a rep")
    assert saved.status == MessageStatus.WRITING
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
