"""What a running reply holds, and how it gets onto the screens that watch it: a few frames a second, not one per token.

Blocks are rendered in a thread and only while somebody watches; who comes later gets everything with the next frame.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from chatapp import executors
from chatapp.llm import ProgressEvent, Stage, ThinkingReader, ThinkingSplit
from chatapp.markdown import BlockStream, StreamUpdate
from chatapp.thinking import Parts, thought_of
from chatapp.turn.live import Live, LiveTurn
from chatapp.wire import Block, Thinking

INTERVAL_S = 0.04
MAX_CHARS_PER_S = 256 * 1024  # a long open block is sent whole each time: the longer it gets, the rarer the frames


class Reply:
    """The reply so far; `version` counts the changes.

    `token_ids` stand for the whole of `text`, or there are none: when it was begun with a text that has none (None), or
    ends with one. What of it is thinking the reader says; None for a model that does not think. thinking_s: how long it
    has thought, that of earlier attempts included; measured by the clock of this process, from token to token.
    """

    def __init__(
        self,
        text: str = "",
        token_ids: tuple[int, ...] | None = (),
        *,
        reader: ThinkingReader | None = None,
        thinking_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.text = text
        self.token_ids = list(token_ids or ())
        self.stage = Stage.QUEUED
        self.version = 0
        self.thinking_s = thinking_s
        self._begun = token_ids
        self._reader = reader
        self._clock = clock
        self._split = ThinkingSplit()
        self._thinks_since: float | None = None
        self._is_decided = reader is None
        self._num_told = [0, 0]
        self._look()

    def add(self, token_ids: tuple[int, ...], text: str) -> None:
        """New output."""
        if self._begun is not None:
            self.token_ids.extend(token_ids)
        self.text += text
        self.version += 1
        self._look(self._clock())

    def finish(self, token_ids: tuple[int, ...] | None, text: str) -> None:
        """The end: what was held back, and the ids that decode to exactly the text of this attempt (None: none do)."""
        self.text += text
        self.token_ids = [] if token_ids is None or self._begun is None else [*self._begun, *token_ids]
        self.version += 1
        self._look(self._clock())
        self._split = replace(self._split, num_held=0)  # no mark comes any more
        self._is_decided = True
        self._stop_watch()

    @property
    def split(self) -> ThinkingSplit:
        """How much of it is thinking, in characters and tokens: what is stored beside it."""
        if self._reader is None:
            return ThinkingSplit()
        return self._reader.split(self.text, self.token_ids or None)

    @property
    def parts(self) -> Parts:
        """What may be shown: never half a mark, nor white space that may stand in front of one."""
        num_thinking, shown = self._split.num_chars, self.text[: len(self.text) - self._split.num_held]
        is_thinking = self._split.is_open and not self._is_decided
        return Parts(
            thought_of(shown, num_thinking),
            shown[num_thinking:] if self._is_decided or shown[num_thinking:].strip() else "",
            is_thinking,
            0 if is_thinking else round(1000 * self.thinking_s),
        )

    def tell(self) -> tuple[str, str]:
        """What can be shown since the last call, of the thinking and of the answer; both only ever grow."""
        parts = self.parts
        told = tuple(text[start:] for text, start in zip((parts.thought, parts.answer), self._num_told, strict=True))
        self._num_told = [start + len(text) for start, text in zip(self._num_told, told, strict=True)]
        return told[0], told[1]

    def _look(self, now: float | None = None) -> None:
        """Find out where the thinking ends, until something of the answer is there. now: when a token came."""
        if self._is_decided or self._reader is None:
            return
        self._split = self._reader.glance(self.text, self.token_ids or None)
        if self._split.is_open:
            self._thinks_since = now if self._thinks_since is None else self._thinks_since
            return
        self._stop_watch()
        self._is_decided = not self._split.num_held and bool(self.text[self._split.num_chars :].strip())

    def _stop_watch(self) -> None:
        if self._thinks_since is not None:
            self.thinking_s += self._clock() - self._thinks_since
            self._thinks_since = None


class Sheet:
    """Blocks of the thinking, then those of the answer, under one count. One caller at a time."""

    def __init__(self) -> None:
        self.thinking: Thinking | None = None
        self._thought = BlockStream()
        self._answer = BlockStream()
        self._has_answer = False

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks as of the last update."""
        return (*self._thought.blocks, *self._moved(self._answer.blocks))

    def update(self, parts: Parts, is_final: bool = False) -> StreamUpdate:
        """Take the reply as it is now. The thinking is done when something of the answer is there."""
        changed: tuple[Block, ...] = ()
        if not self._has_answer:
            self._has_answer = is_final or bool(parts.answer)
            changed = self._thought.update(parts.thought, self._has_answer).blocks
        if self._has_answer:
            changed = (*changed, *self._moved(self._answer.update(parts.answer, is_final).blocks))
        num_thought = len(self._thought.blocks)
        is_shown = num_thought or parts.is_thinking  # an empty thought is none
        self.thinking = Thinking(num_thought, parts.is_thinking, parts.thinking_ms) if is_shown else None
        return StreamUpdate(changed, num_thought + len(self._answer.blocks))

    def _moved(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """Blocks of the answer, behind those of the thinking."""
        num_thought = len(self._thought.blocks)
        return tuple(replace(block, index=block.index + num_thought) for block in blocks) if num_thought else blocks


class Publisher:
    """Shows one turn to its watchers while it runs."""

    def __init__(self, live: Live, turn: LiveTurn, reply: Reply) -> None:
        self._live = live
        self._turn = turn
        self._reply = reply
        self._sheet = Sheet()
        self._progress: ProgressEvent | None = None
        self._changed = asyncio.Event()
        self._shown_version = -1
        self._rendering: asyncio.Future[StreamUpdate] | None = None

    def progress(self, event: ProgressEvent) -> None:
        """The engine says where the request is."""
        self._progress = event
        self._reply.stage = event.stage
        self._changed.set()

    def text_changed(self) -> None:
        """The reply has grown."""
        self._changed.set()

    async def run(self) -> None:
        """Publish until cancelled: the newest stage, and what has been written since the last frame."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._publish_stage()
            num_chars = await self._publish_blocks()
            await asyncio.sleep(max(INTERVAL_S, num_chars / MAX_CHARS_PER_S))

    async def not_stored_yet(self, problem: str) -> None:
        """The reply is complete and the database does not take it: show all of it, and why it has not ended.

        Rendered whether or not anybody watches: no later frame would bring the rest to who comes meanwhile.
        """
        if self._turn.stage != "storing":
            blocks = await self._whole()
            self._live.publish_blocks(self._turn, blocks, len(blocks), self._sheet.thinking)
        self._live.publish_stage(self._turn, stage="storing", problem=problem)

    @property
    def thinking(self) -> Thinking | None:
        """Which of the blocks are thinking, as of the last rendering."""
        return self._sheet.thinking

    async def final_blocks(self) -> tuple[Block, ...]:
        """The whole reply, for the last frame; nothing when nobody watches. To be called when `run` has ended."""
        return await self._whole() if self._live.has_watchers(self._turn) else ()

    async def _whole(self) -> tuple[Block, ...]:
        if self._rendering is not None:
            await asyncio.wait([self._rendering])
        await executors.render(self._sheet.update, self._reply.parts, True)
        return self._sheet.blocks

    def _publish_stage(self) -> None:
        event = self._progress
        if event is not None:
            self._live.publish_stage(
                self._turn,
                stage=event.stage.value,
                position=event.position,
                num_done=event.num_done,
                num_total=event.num_total,
            )

    async def _publish_blocks(self) -> int:
        if self._shown_version == self._reply.version or not self._live.has_watchers(self._turn):
            return 0
        self._shown_version = self._reply.version
        # Shielded: the thread goes on when `run` is cancelled, and BlockStream wants one caller at a time.
        self._rendering = asyncio.ensure_future(executors.render(self._sheet.update, self._reply.parts))
        changed, num_blocks = await asyncio.shield(self._rendering)
        return self._live.publish_blocks(self._turn, changed, num_blocks, self._sheet.thinking)
