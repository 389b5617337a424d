"""Gives messages their vectors while nobody waits: those of a turn after its end, those that have none when the server
starts, a batch at a time, the newest first.

Never on a reply's way: a text is encoded when no reply is being written, or after MAX_WAIT_S on a server where one
always is. What has not been encoded yet is found by its words.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.utils import timezone

from chatapp import executors, llm, vectors
from chatapp.errors import ChatError
from chatapp.models import Message
from chatapp.services.vectors import vectors_prune, vectors_store
from chatapp.turn.live import Live, live

logger = logging.getLogger(__name__)

BATCH = 16  # stored together: what the end of the process costs
MAX_WAIT_S = 5.0  # for a text; encoding a long one then takes some 5 % of one core
_STEP_S = 0.05
# A message may have been begun so long before it is finished, or seen: another process wrote it, say.
_SLACK = timedelta(hours=1)


class Encoding:
    """Told what happens, on the event loop. One task at a time, none when there is nothing to do."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._changed: set[UUID] = set()  # whose vector, if there is one, may be of an earlier text
        self._seen_until: datetime | None = None  # what was made before has its vectors
        self._is_wanted = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return self._task is None

    def wake(self, changed: UUID | None = None) -> None:
        """There may be messages without a vector; this one says something else now. Returns at once."""
        if not llm.has_encoder():
            return
        if changed is not None:
            self._changed.add(changed)
        self._is_wanted = True
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def end(self) -> None:
        """The process is about to end; what is missing is made after the next start."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            encoder = await executors.render(llm.encoder_fingerprint)
            if not encoder:
                self._changed.clear()
            while encoder and self._is_wanted:
                self._is_wanted = False
                await self._encode_changed(encoder)
                await self._encode_missing(encoder)
        except ChatError as error:  # a database that is away; the next turn wakes us
            logger.info("messages are not encoded, %s", error.code)
        finally:
            self._task = None

    async def _encode_changed(self, encoder: str) -> None:
        while self._changed:
            names = list(self._changed)[:BATCH]
            self._changed.difference_update(names)  # first: one that changes while it is encoded comes again
            try:
                await self._encode(encoder, await executors.database(vectors.finished, names))
            except ChatError:
                self._changed.update(names)
                raise

    async def _encode_missing(self, encoder: str) -> None:
        """Back to where the last walk began: after a turn that is the turn, after a start everything."""
        began = until = timezone.now()
        since, num = self._seen_until, 0
        while found := await executors.database(vectors.without_vector, encoder, since=since, until=until, limit=BATCH):
            if not await self._encode(encoder, found):
                return
            num += len(found)
            until = found[-1].created_at
        if since is None:
            while await executors.database(vectors_prune, encoder=encoder):
                pass
            logger.info("%d messages have been encoded, all have their vectors", num)
        self._seen_until = began - _SLACK

    async def _encode(self, encoder: str, messages: Sequence[Message]) -> bool:
        """False when they cannot be; the log says why."""
        made: dict[UUID, bytes] = {}
        for message in messages:
            await self._wait_for_quiet()
            vector = await executors.render(llm.vectors_of, [message.answer])
            if not vector:
                return False
            made[message.id] = vector[0]
        await executors.database(vectors_store, encoder=encoder, vectors=made)
        return True

    async def _wait_for_quiet(self) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + MAX_WAIT_S
        while self._live.turns and clock() < deadline:
            await asyncio.sleep(_STEP_S)


encoding = Encoding(live)  # of this process
