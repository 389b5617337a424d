"""Turns of a model that thinks: what is stored, what tabs and pages show, what the next prompt holds."""

from __future__ import annotations

import json

import pytest
from asgiref.sync import sync_to_async
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from chatapp import llm, wire
from chatapp.markdown import render_blocks
from chatapp.models import Conversation, Generation, Message, ThinkingInHistory, User
from chatapp.turn import past
from chatapp.turn.live import Live, LiveTurn
from tests.chatapp.conftest import after, ended, send, started, stored, stored_when, until, whole
from tests.chatapp.fake_worker import END, HEADERS, MARK_IDS, THINKS, FakeWorker
from tests.chatapp.test_turn_live import Tab

pytestmark = pytest.mark.django_db(transaction=True)

THOUGHT = "<think>\nhm\n</think>\n\n"
ANSWER = "So **it** is."


@pytest.fixture
def thinker(worker: FakeWorker) -> FakeWorker:
    worker.opened.chat_template.marks = THINKS
    return worker


async def use(turn: LiveTurn, policy: ThinkingInHistory) -> None:
    await Conversation.objects.filter(id=turn.conversation_id).aupdate(thinking_in_history=policy)


async def test_a_reply_is_stored_as_it_was_generated_with_how_much_is_thinking(
    alice: User, thinker: FakeWorker
) -> None:
    turn = await started(Live(), alice, send())
    for part in ("<think>\nhm", "\n</think>\n\n", ANSWER):
        thinker.write(part)
    thinker.finish()
    await ended(turn)
    message = await stored(turn)
    assert message.text == THOUGHT + ANSWER
    assert message.ids == (MARK_IDS["<think>"], *b"\nhm\n", MARK_IDS["</think>"], *b"\n\n", *ANSWER.encode())
    assert (message.thinking_chars, message.thinking_tokens) == (len(THOUGHT), 8)
    assert message.answer == ANSWER
    generation = await Generation.objects.aget()
    assert 0 < generation.thinking_s < 5


async def test_tabs_get_the_thinking_first_and_a_late_one_in_its_middle(alice: User, thinker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send())
    tab = Tab(live)
    tab.watcher.watch(turn.conversation_id)
    thinker.write("<think>\nhm")
    await until(lambda: turn.thinking == wire.Thinking(1, True, 0))
    late = Tab(live)
    late.watcher.watch(turn.conversation_id)
    (snapshot,) = late.watcher.take()
    assert json.loads(snapshot)["thinking"] == {"num_blocks": 1, "is_running": True, "ms": 0}
    late.apply(json.loads(snapshot))
    thinker.write("\n</think>\n\n" + ANSWER)
    thinker.finish()
    end = await ended(turn)
    assert end.thinking is not None
    assert (end.thinking.num_blocks, end.thinking.is_running) == (1, False)
    assert end.thinking.ms == round(1000 * (await Generation.objects.aget()).thinking_s)
    for watching in (tab, late):
        watching.read()
        assert watching.html == [*render_blocks("hm"), *render_blocks(ANSWER)]


async def test_an_empty_thought_is_none(alice: User, thinker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send())
    tab = Tab(live)
    tab.watcher.watch(turn.conversation_id)
    thinker.write("<think>\n\n</think>\n\n" + ANSWER)
    thinker.finish()
    end = await ended(turn)
    assert end.thinking is None
    tab.read()
    assert tab.html == list(render_blocks(ANSWER))


async def test_a_reply_that_was_stopped_while_it_thought_is_continued_there(alice: User, thinker: FakeWorker) -> None:
    live = Live()
    turn = await started(live, alice, send())
    thinker.write("<think>\nhm")
    thinker.finish(llm.FinishReason.CANCELLED)
    await ended(turn)
    message = await stored(turn)
    assert (message.answer, message.thinking_chars, message.thinking_tokens) == ("", len("<think>\nhm"), 4)
    first_s = (await Generation.objects.aget()).thinking_s
    again = await started(live, alice, wire.TurnContinue(turn.conversation_id, turn.message_id))
    assert thinker.requests[-1].prompt_ids.tolist()[-5:] == [HEADERS["assistant"], MARK_IDS["<think>"], *b"\nhm"]
    thinker.write("!\n</think>\n\n" + ANSWER)
    thinker.finish()
    await ended(again)
    message = await stored(turn)
    assert (message.answer, message.text) == (ANSWER, "<think>\nhm!\n</think>\n\n" + ANSWER)
    assert message.thinking_tokens == 9
    assert (await Generation.objects.order_by("created_at").alast()).thinking_s >= first_s  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", ThinkingInHistory.values)
@pytest.mark.parametrize("is_stripping", [False, True])
async def test_later_prompts_hold_thinking_as_the_conversation_says(
    alice: User, thinker: FakeWorker, policy: str, is_stripping: bool
) -> None:
    thinker.opened.chat_template.strips_thinking = is_stripping
    live = Live()
    first = await whole(live, thinker, alice, send("one"), THOUGHT + ANSWER)
    await use(first, ThinkingInHistory(policy))
    await whole(live, thinker, alice, after(first, "two"), "Yes.")
    ids = thinker.requests[-1].prompt_ids.tolist()
    is_stripped = policy == "strip" or (policy == "template" and is_stripping)
    reply = list(ANSWER.encode()) if is_stripped else list((await stored(first)).ids or ())
    begin = [HEADERS["user"], *b"one", END, HEADERS["assistant"], *reply, END]
    assert ids == [*begin, HEADERS["user"], *b"two", END, HEADERS["assistant"]]


async def test_a_reply_that_is_nothing_but_thinking_stays_in_later_prompts(alice: User, thinker: FakeWorker) -> None:
    live = Live()
    first = await started(live, alice, send("one"))
    thinker.write("<think>\nhm")
    thinker.finish(llm.FinishReason.LENGTH)
    await ended(first)
    await use(first, ThinkingInHistory.STRIP)
    await whole(live, thinker, alice, after(first, "two"), "Yes.")
    assert MARK_IDS["<think>"] in thinker.requests[-1].prompt_ids


@pytest.mark.parametrize("policy", ThinkingInHistory.values)
async def test_a_thought_that_never_ends_is_continued_and_all_of_it_replayed(
    alice: User, thinker: FakeWorker, policy: str
) -> None:
    live = Live()
    first = await started(live, alice, send("one"))
    thinker.write("<think>\nhm")
    thinker.finish(llm.FinishReason.LENGTH)
    await ended(first)
    await use(first, ThinkingInHistory(policy))
    tab = Tab(live)
    tab.watcher.watch(first.conversation_id)
    again = await started(live, alice, wire.TurnContinue(first.conversation_id, first.message_id))
    thinker.write(", and")
    thinker.finish(llm.FinishReason.LENGTH)
    end = await ended(again)
    assert end.thinking is not None
    assert not end.thinking.is_running
    message = await stored(first)
    assert (message.text, message.answer, message.thinking_chars) == ("<think>\nhm, and", "", len("<think>\nhm, and"))
    times = [each.thinking_s async for each in Generation.objects.order_by("created_at")]
    assert 0 < times[0] <= times[1]
    assert end.thinking.ms == round(1000 * times[1])
    kept = [*thinker.requests[-1].prompt_ids.tolist(), *b", and"]
    await whole(live, thinker, alice, after(again, "two"), "Yes.")
    assert thinker.requests[-1].prompt_ids.tolist()[: len(kept)] == kept


@pytest.mark.parametrize("policy", [ThinkingInHistory.KEEP, ThinkingInHistory.STRIP])
@pytest.mark.parametrize("reason", [llm.FinishReason.LENGTH, llm.FinishReason.CANCELLED])
async def test_a_continued_thought_is_kept_or_taken_out_as_one(
    alice: User, thinker: FakeWorker, policy: ThinkingInHistory, reason: llm.FinishReason
) -> None:
    live = Live()
    first = await started(live, alice, send("one"))
    thinker.write("<think>\nhm")
    thinker.finish(reason)
    await ended(first)
    await use(first, policy)
    again = await started(live, alice, wire.TurnContinue(first.conversation_id, first.message_id))
    thinker.write("!\n</think>\n\n" + ANSWER)
    thinker.finish()
    await ended(again)
    await whole(live, thinker, alice, after(again, "two"), "Yes.")
    whole_reply = (await stored(first)).ids or ()
    reply = list(ANSWER.encode()) if policy == ThinkingInHistory.STRIP else list(whole_reply)
    begin = [HEADERS["user"], *b"one", END, HEADERS["assistant"], *reply, END]
    assert thinker.requests[-1].prompt_ids.tolist() == [*begin, HEADERS["user"], *b"two", END, HEADERS["assistant"]]


async def test_of_another_models_reply_only_the_answer_is_encoded_again(alice: User, thinker: FakeWorker) -> None:
    live = Live()
    first = await whole(live, thinker, alice, send("one"), THOUGHT + ANSWER)
    await use(first, ThinkingInHistory.KEEP)
    await Message.objects.filter(id=first.message_id).aupdate(token_fingerprint="another")
    await whole(live, thinker, alice, after(first, "two"), "Yes.")
    ids = thinker.requests[-1].prompt_ids.tolist()
    assert ids[:5] == [HEADERS["user"], *b"one", END]
    assert ids[6 : 6 + len(ANSWER)] == list(ANSWER.encode())


async def test_a_continued_thought_of_another_model_is_still_told_from_the_answer(
    alice: User, thinker: FakeWorker
) -> None:
    live = Live()
    turn = await started(live, alice, send())
    thinker.write("<think>\nhm")
    thinker.finish(llm.FinishReason.LENGTH)
    await ended(turn)
    await Message.objects.filter(id=turn.message_id).aupdate(token_fingerprint="another")
    await whole(live, thinker, alice, wire.TurnContinue(turn.conversation_id, turn.message_id), "</think>" + ANSWER)
    message = await stored(turn)
    assert (message.answer, message.ids) == (ANSWER, None)


async def test_pages_and_copy_show_what_is_stored(alice: User, thinker: FakeWorker) -> None:
    turn = await whole(Live(), thinker, alice, send(), THOUGHT + ANSWER)
    client = Client()
    await sync_to_async(client.force_login)(alice)
    page = (await sync_to_async(client.get)(f"/c/{turn.conversation_id}/")).content.decode()
    (thought,), (answer,) = render_blocks("hm"), render_blocks(ANSWER)
    fold = page[page.index('<details class="thinking"') : page.index("</details>")]
    assert thought in fold
    assert answer not in fold
    assert answer in page
    assert "&lt;think&gt;" not in page
    ms = round(1000 * (await Generation.objects.aget()).thinking_s)
    assert f'data-ms="{ms}"' in fold
    text = await sync_to_async(client.get)(f"/c/{turn.conversation_id}/messages/{turn.message_id}/text/")
    assert text.content.decode() == ANSWER


async def test_a_crash_in_the_middle_of_thinking_leaves_it_told_apart(alice: User, thinker: FakeWorker) -> None:
    turn = await started(Live(), alice, send())
    thinker.write("<think>\nhm")
    await stored_when(turn, lambda message: message.thinking_chars == len("<think>\nhm"))
    thinker.finish()
    await ended(turn)


TEXTS = st.lists(st.sampled_from(["<think>", "</think>", "\n", "a", "<", " "]), max_size=8).map("".join)


@given(text=TEXTS, chars=st.integers(0, 30), tokens=st.integers(0, 30))
def test_whatever_is_stored_a_reply_never_becomes_an_empty_one(text: str, chars: int, tokens: int) -> None:
    ids = tuple(range(len(text)))
    message = past.answer_of(text, ids, min(chars, len(text)), min(tokens, len(ids)))
    assert message.content.strip() or message.content == text
    assert message.is_stripped or message.token_ids == ids
