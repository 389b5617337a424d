"""Turns on the real engine, small and quick, with all that can make it forget: restarts, files, eviction, other models.

The models write what a test says, and their KV shows every wrong reuse (tests.inference.fakes).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chatapp import llm, wire
from chatapp.models import Generation, Message, User
from chatapp.turn import run
from chatapp.turn.live import Live, LiveTurn
from chatapp.turn.preparation import preparation
from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.worker import Worker
from inference.kvcache.prefix_cache import PrefixCache
from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.tokenizer import Tokenizer
from inference.types import MissCause, Request
from tests.chatapp.thinking_engine import ScriptedModel
from tests.inference.trained_tokenizers import spec_of

PLAIN = (
    "{% for m in messages %}{{ '<|turn|>' + m.role + '\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant\n' }}{% endif %}"
)
DEFAULT, OTHER = "first", "second"
MAX_LEN = 1024
WITHIN_S = 20


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer(spec_of("qwen"))


@cache
def _template(source: str) -> ChatTemplate:
    return ChatTemplate(_tokenizer(), source)


class RecordingWorker(Worker):
    """Keeps the prompts of turns that it was given."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prompts: list[tuple[int, ...]] = []

    def submit(self, name: str, request: Request, on_event: Any) -> None:
        if not request.is_prefill_only and not request.is_side:
            self.prompts.append(tuple(request.prompt_ids.tolist()))
        super().submit(name, request, on_event)


class Studio:
    """An installation: two models with different weights, which its engine loads when they are asked for.

    config: of the engines. With a folder `disk`, what is cached outlives a restart.
    """

    def __init__(self, user: User, *, template: str = PLAIN, disk: Path | None = None, **config: Any) -> None:
        self.user = user
        self.tokenizer = _tokenizer()
        self.template = _template(template)
        values = {"block_size": 4, "pool_tokens": 4 * MAX_LEN, "max_batch_tokens": 256, "max_model_len": MAX_LEN}
        if disk is not None:
            values |= {"kv_dir": disk, "kv_disk_bytes": 1 << 24}
        self.config = EngineConfig(**(values | config))
        self.engines: list[LLMEngine] = []

    def _opened(self, name: str) -> Any:
        model = ScriptedModel(self.tokenizer, MAX_LEN)
        model.fingerprint = name
        return SimpleNamespace(
            name=name,
            model=model,
            config=self.config,
            is_current=True,
            memory_bytes=0,
            tokenizer=self.tokenizer,
            chat_template=self.template,
            max_model_len=self.config.max_model_len,
        )

    def _load(self, opened: Any, **_options: Any) -> LLMEngine:
        engine = LLMEngine(opened.model, self.tokenizer, self.template, self.config, name=opened.name)
        self.engines.append(engine)
        return engine

    async def start(self) -> None:
        """A server that has just been started."""
        self.worker = RecordingWorker(self._opened, max_bytes=1 << 30, load=self._load)
        await asyncio.to_thread(llm.shutdown)
        llm.start(self.worker, default_model=DEFAULT)
        await self.loaded()

    async def stop(self) -> None:
        assert await asyncio.to_thread(llm.shutdown, WITHIN_S)
        for engine in self.engines:
            engine.check_integrity()
        self.engines.clear()

    async def restart(self, **config: Any) -> None:
        await self.stop()
        self.config = replace(self.config, **config)
        await self.start()

    async def loaded(self, model: str = DEFAULT) -> None:
        async with asyncio.timeout(WITHIN_S):
            while llm.status(model).state is not llm.EngineState.READY:
                await asyncio.sleep(0.002)

    async def reload(self, model: str = DEFAULT) -> None:
        """The model leaves memory and comes back."""
        await asyncio.to_thread(llm.unload, model)
        await asyncio.to_thread(llm.load, model)
        await self.loaded(model)

    async def forget(self) -> None:
        """Other people's conversations have needed all the room."""
        for engine in self.engines:
            await asyncio.to_thread(self.worker._call, engine.cache.forget_ram)

    async def forget_some(self, num_blocks: int) -> None:
        """They have needed some: the newest ends go first."""
        for engine in self.engines:
            await asyncio.to_thread(self.worker._call, partial(_evict_leaves, engine.cache, num_blocks))

    # --- turns --------------------------------------------------------------------------------------------------------

    async def ask(self, text: str, reply: str = "It was built in 1783.", *, after: LiveTurn | None = None) -> LiveTurn:
        """A question, in a new conversation or after a reply."""
        conversation = after.conversation_id if after else uuid.uuid4()
        parent = after.message_id if after else None
        return await self.turn(wire.TurnSend(conversation, uuid.uuid4(), text, parent=parent, is_new=not after), reply)

    async def edit(self, turn: LiveTurn, text: str, reply: str = "Nobody knows.") -> LiveTurn:
        question = (await Message.objects.aget(id=turn.message_id)).parent_id
        assert question is not None
        return await self.turn(wire.TurnEdit(turn.conversation_id, question, uuid.uuid4(), text), reply)

    async def again(self, turn: LiveTurn, reply: str = "Long ago.") -> LiveTurn:
        return await self.turn(wire.TurnRegenerate(turn.conversation_id, turn.message_id, uuid.uuid4()), reply)

    async def go_on(self, turn: LiveTurn, reply: str = " And so on.") -> LiveTurn:
        """Continue a reply that was cut."""
        return await self.turn(wire.TurnContinue(turn.conversation_id, turn.message_id), reply)

    async def turn(self, frame: run.TurnFrame, reply: str) -> LiveTurn:
        """A whole turn. What is prepared after it is not waited for."""
        for name in (DEFAULT, OTHER):
            self.worker.open(name).model.write(self.ids(reply))  # type: ignore[attr-defined]  # of _opened
        turn = await run.start(Live(), self.user, frame)
        assert turn is not None
        assert turn.task is not None
        await asyncio.wait_for(turn.task, WITHIN_S)
        preparation.drop(turn.conversation_id)
        return turn

    def ids(self, text: str) -> list[int]:
        """As the models write it: marks of thinking as control tokens."""
        head, mark, rest = text.partition("</think>")
        if not mark:
            return self.tokenizer.encode(text)
        special = self.tokenizer.special_tokens
        thought = self.tokenizer.encode(head.removeprefix("<think>"))
        return [special["<think>"], *thought, special["</think>"], *self.tokenizer.encode(rest)]


def _evict_leaves(cache: PrefixCache, num_blocks: int) -> None:
    for _ in range(num_blocks):
        leaf = next(
            (i for i in range(cache.pool.num_blocks) if i in cache.blocks and not cache.blocks.children(i)), None
        )
        if leaf is not None:
            cache._forget(leaf, MissCause.EVICTED)


@asynccontextmanager
async def studio(user: User, **options: Any) -> AsyncIterator[Studio]:
    built = Studio(user, **options)
    await built.start()
    try:
        yield built
    finally:
        await built.stop()
        llm.host.handle.worker = None


async def numbers_of(turn: LiveTurn) -> Generation:
    """Of the newest attempt."""
    return (
        await Generation.objects.select_related("break_message")
        .filter(message_id=turn.message_id)
        .alatest("created_at")
    )
