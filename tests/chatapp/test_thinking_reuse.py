"""What a thinking model's next prompt finds in the cache, with the real engine: all of it when thinking is kept; up to
the thinking when that is taken out; and all of it again when the engine had a quiet moment in between.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from asgiref.sync import sync_to_async

from chatapp import llm, wire
from chatapp.models import Conversation, Generation, Message, Preset, ThinkingInHistory, User
from chatapp.services.conversations import conversation_delete
from chatapp.turn import run
from chatapp.turn.live import Live, LiveTurn
from chatapp.turn.preparation import preparation
from tests.chatapp.conftest import until
from tests.chatapp.thinking_engine import ThinkingEngine
from tests.inference.thinking_templates import THINKING
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)

REPLY = "<think>\nThe lighthouse was built in 1783.\n</think>\n\nIn 1783, as far as I know."


@asynccontextmanager
async def engine_of(name: str, family: str = "qwen") -> AsyncIterator[ThinkingEngine]:
    engine = ThinkingEngine(THINKING[name], family=family)
    with engine.running():
        await until(lambda: llm.status().state is llm.EngineState.READY)
        yield engine


async def answered(
    engine: ThinkingEngine, user: User, text: str, reply: str, before: LiveTurn | None = None
) -> LiveTurn:
    """A whole turn; before: the one that it follows."""
    engine.model.write(engine.ids(reply))
    frame = wire.TurnSend(
        before.conversation_id if before else uuid.uuid4(),
        uuid.uuid4(),
        text,
        parent=before.message_id if before else None,
        is_new=before is None,
    )
    turn = await run.start(Live(), user, frame)
    assert turn is not None
    assert turn.task is not None
    await asyncio.wait_for(turn.task, PATIENCE_S)
    return turn


async def prepared() -> None:
    """The engine has had a quiet moment."""
    await until(lambda: preparation.is_idle)


async def numbers_of(turn: LiveTurn) -> Generation:
    return await Generation.objects.aget(message_id=turn.message_id)


async def policy(user: User, value: ThinkingInHistory, *, is_thinking_off: bool = False) -> None:
    await Preset.objects.acreate(
        name="Thinking",
        is_default=True,
        sampling={"temperature": 0.0},
        thinking_in_history=value,
        is_thinking_off=is_thinking_off,
    )


def opened_reply(name: str) -> str:
    return REPLY.removeprefix("<think>\n") if name in ("opened", "cut") else REPLY


@pytest.mark.parametrize("family", ["qwen", "llama3"])  # marks as control tokens, and in ordinary ones
@pytest.mark.parametrize("name", ["switched", "opened", "cut", "kept"])
async def test_the_head_that_the_next_prompt_needs_is_prepared_when_idle(alice: User, name: str, family: str) -> None:
    await policy(alice, ThinkingInHistory.STRIP)
    async with engine_of(name, family) as engine:
        turn: LiveTurn | None = None
        num_messages = 0
        for question in ("When was it built?", "  Who kept it?\n", "灯塔?"):
            turn = await answered(engine, alice, question, opened_reply(name), turn)
            num_messages += 2
            generation = await numbers_of(turn)
            history = await sync_to_async(history_of)(engine, turn, num_messages - 2)
            if num_messages > 2:
                assert generation.num_reused_ram >= history
                assert generation.prefix_break == ""
            await prepared()


def history_of(engine: ThinkingEngine, turn: LiveTurn, num_messages: int) -> int:
    """Tokens of the first messages of a conversation in the prompts that follow them."""
    stored = Message.objects.filter(conversation_id=turn.conversation_id).order_by("position")[:num_messages]
    chat = [llm.ChatMessage(m.role, m.answer if m.role == "assistant" else m.text) for m in stored]
    replayed = [
        llm.ChatMessage(c.role, c.content, tuple((m.ids or ())[m.thinking_tokens :]), is_stripped=True)
        if m.role == "assistant"
        else c
        for m, c in zip(stored, chat, strict=True)
    ]
    return len(engine.template.build_history(replayed).ids)


async def test_without_a_quiet_moment_reuse_ends_where_the_thinking_stood_and_the_cause_is_stored(
    alice: User,
) -> None:
    await policy(alice, ThinkingInHistory.TEMPLATE)  # which strips
    async with engine_of("switched") as engine:
        first = await answered(engine, alice, "When?", REPLY)
        assert not preparation.is_idle
        preparation.drop(first.conversation_id)  # as a question does that comes at once
        second = await answered(engine, alice, "Who?", REPLY, first)
        before, now = await numbers_of(first), await numbers_of(second)
        assert now.num_reused_ram == before.num_prompt_tokens  # the answer begins with another token than <think>
        assert now.prefix_break == "thinking_stripped"
        await prepared()
        third = await answered(engine, alice, "Why?", REPLY, second)
        assert (await numbers_of(third)).prefix_break == ""


async def test_kept_thinking_is_reused_whole(alice: User) -> None:
    await policy(alice, ThinkingInHistory.KEEP)
    async with engine_of("opened") as engine:
        first = await answered(engine, alice, "When?", opened_reply("opened"))
        num_computed = engine.model.num_computed_tokens
        await prepared()
        assert engine.model.num_computed_tokens == num_computed
        second = await answered(engine, alice, "Who?", opened_reply("opened"), first)
        before, now = await numbers_of(first), await numbers_of(second)
        reply = await Message.objects.aget(id=first.message_id)
        assert now.num_reused_ram == before.num_prompt_tokens + len(reply.ids or ())
        assert now.prefix_break == ""


async def test_a_new_turn_ends_a_preparation_in_its_conversation(alice: User) -> None:
    await policy(alice, ThinkingInHistory.STRIP)
    async with engine_of("switched") as engine:
        first = await answered(engine, alice, "When?", REPLY)
        assert ("history", first.conversation_id) in preparation._spare_time
        await answered(engine, alice, "Who?", "No thought.", first)
        assert ("history", first.conversation_id) not in preparation._spare_time  # nothing is taken out of that reply


async def test_thinking_switched_off_is_told_to_the_model(alice: User) -> None:
    await policy(alice, ThinkingInHistory.TEMPLATE, is_thinking_off=True)
    async with engine_of("switched") as engine:
        first = await answered(engine, alice, "When?", "In 1783.")
        second = await answered(engine, alice, "Who?", "Nobody knows.", first)
        before, now = await numbers_of(first), await numbers_of(second)
        reply = await Message.objects.aget(id=first.message_id)
        assert now.num_reused_ram == before.num_prompt_tokens + len(reply.ids or ())
        plain = engine.template.build([llm.ChatMessage("user", "When?")], is_thinking_off=True)
        assert before.num_prompt_tokens == len(plain.ids)
        assert engine.tokenizer.special_tokens["</think>"] in plain.ids
    assert (await Conversation.objects.aget()).is_thinking_off


async def test_of_a_conversation_that_was_deleted_meanwhile_nothing_stays(alice: User) -> None:
    await policy(alice, ThinkingInHistory.STRIP)
    async with engine_of("switched") as engine:
        first = await answered(engine, alice, "When?", REPLY)
        assert not preparation.is_idle
        await sync_to_async(conversation_delete)(user=alice, conversation_id=first.conversation_id)
        await prepared()
        again = await answered(engine, alice, "When?", REPLY)
        assert (await numbers_of(again)).num_reused_ram == 0
