"""What a conversation's model is asked beside its turns: nobody waits for it, and nobody hears of it when it fails.

The question stands behind what the next turn will begin with, so the model reads little more than that, and the next
turn finds all of its history as it was. Of each kind one at a time for a conversation; it gives way to turns by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID, uuid4

from chatapp import llm
from chatapp.errors import ChatError, StorageUnavailable
from chatapp.turn.prompt import Plan
from chatapp.turn.remains import purge_if_gone

logger = logging.getLogger(__name__)

_kinds: list[SideWork] = []


@dataclass(frozen=True, slots=True)
class Question:
    """num_lasting_tokens of the prompt are the conversation's."""

    prompt: llm.Prompt
    num_lasting_tokens: int
    sampling: llm.SamplingParams


class SideWork:
    """One kind of it. noun: for the log. patience_s: for a server that is never idle; the next reply begins anew."""

    def __init__(self, noun: str, patience_s: float) -> None:
        self.patience_s = patience_s
        self._noun = noun
        self._running: dict[UUID, asyncio.Task[None]] = {}  # by conversation
        _kinds.append(self)

    def is_running(self, conversation_id: UUID) -> bool:
        return conversation_id in self._running

    @property
    def num_running(self) -> int:
        return len(self._running)

    def start(self, conversation_id: UUID, work: Callable[[], Awaitable[None]]) -> None:
        """Begin work for a conversation that has none of this kind. Its ChatErrors go to the log."""
        assert conversation_id not in self._running, "one at a time"
        task = asyncio.create_task(self._run(conversation_id, work))
        self._running[conversation_id] = task
        task.add_done_callback(lambda done: self._running.pop(conversation_id, None))

    def cancel(self) -> None:
        for task in list(self._running.values()):
            task.cancel()

    async def ask(self, conversation_id: UUID, user_id: int, plan: Plan, question: Question) -> llm.Aside:
        """What the plan's model writes. Raises ChatError."""
        written = await llm.aside(
            user_id=user_id,
            request_id=f"{self._noun} {uuid4()}",
            prompt=question.prompt,
            num_lasting_tokens=question.num_lasting_tokens,
            sampling=question.sampling,
            is_head_public=plan.is_head_public,
            model=plan.model,
            is_continuation=True,
            tags=(str(conversation_id),),
        )
        stats = written.stats
        logger.info(
            "conversation %s: asked for a %s, prompt %d = %d ram + %d disk + %d computed, generated %d, %s",
            conversation_id,
            self._noun,
            stats.num_prompt_tokens,
            stats.num_reused_ram,
            stats.num_reused_disk,
            stats.num_computed,
            stats.num_generated,
            written.finish_reason.value,
        )
        return written

    async def _run(self, conversation_id: UUID, work: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self.patience_s):
                await work()
        except TimeoutError:
            logger.info("conversation %s: no %s, the engine had no time", conversation_id, self._noun)
        except ChatError as error:
            logger.info("conversation %s: no %s, %s", conversation_id, self._noun, error.code)
        finally:
            with suppress(StorageUnavailable):  # then the server finds it on disk (see kv_keeper)
                await purge_if_gone(conversation_id)


def cancel_all() -> None:
    """The process is about to end."""
    for kind in _kinds:
        kind.cancel()
