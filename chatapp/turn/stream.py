"""What a running reply holds, and how it gets onto the screens that watch it: a few frames a second, not one per token.

Blocks are rendered in a thread and only while somebody watches; who comes later gets everything with the next frame.
"""

from __future__ import annotations

import asyncio

from chatapp import executors
from chatapp.llm import ProgressEvent, Stage
from chatapp.markdown import BlockStream, StreamUpdate
from chatapp.turn.live import Live, LiveTurn
from chatapp.wire import Block

INTERVAL_S = 0.04
MAX_CHARS_PER_S = 256 * 1024  # a long open block is sent whole each time: the longer it gets, the rarer the frames


class Reply:
    """The reply so far; `version` counts the changes.

    `token_ids` stand for the whole of `text`, or there are none: when it was begun with a text that has none (None), or
    ends with one.
    """

    def __init__(self, text: str = "", token_ids: tuple[int, ...] | None = ()) -> None:
        self.text = text
        self.token_ids = list(token_ids or ())
        self.stage = Stage.QUEUED
        self.version = 0
        self._begun = token_ids

    def add(self, token_ids: tuple[int, ...], text: str) -> None:
        """New output."""
        if self._begun is not None:
            self.token_ids.extend(token_ids)
        self.text += text
        self.version += 1

    def finish(self, token_ids: tuple[int, ...] | None, text: str) -> None:
        """The end: what was held back, and the ids that decode to exactly the text of this attempt (None: none do)."""
        self.text += text
        self.token_ids = [] if token_ids is None or self._begun is None else [*self._begun, *token_ids]
        self.version += 1


class Publisher:
    """Shows one turn to its watchers while it runs."""

    def __init__(self, live: Live, turn: LiveTurn, reply: Reply) -> None:
        self._live = live
        self._turn = turn
        self._reply = reply
        self._blocks = BlockStream()
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
            self._live.publish_blocks(self._turn, blocks, len(blocks))
        self._live.publish_stage(self._turn, stage="storing", problem=problem)

    async def final_blocks(self) -> tuple[Block, ...]:
        """The whole reply, for the last frame; nothing when nobody watches. To be called when `run` has ended."""
        return await self._whole() if self._live.has_watchers(self._turn) else ()

    async def _whole(self) -> tuple[Block, ...]:
        if self._rendering is not None:
            await asyncio.wait([self._rendering])
        await executors.render(self._blocks.update, self._reply.text, True)
        return self._blocks.blocks

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
        self._rendering = asyncio.ensure_future(executors.render(self._blocks.update, self._reply.text))
        changed, num_blocks = await asyncio.shield(self._rendering)
        return self._live.publish_blocks(self._turn, changed, num_blocks)
