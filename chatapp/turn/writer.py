"""Keeps a running reply in the database: at least once a second while it grows, and at its end, with one guarded close.

When the database is away the text stays here and is tried again with back-off; a running generation never waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from chatapp import executors
from chatapp.errors import StorageUnavailable
from chatapp.llm import Stage
from chatapp.models import MessageStatus
from chatapp.services import turns
from chatapp.turn.stream import Reply

logger = logging.getLogger(__name__)

SAVE_INTERVAL_S = 0.5  # half of what is promised: the save itself takes time
_STATUS_OF = {
    Stage.LOADING: MessageStatus.QUEUED,
    Stage.QUEUED: MessageStatus.QUEUED,
    Stage.READING: MessageStatus.READING,
    Stage.WRITING: MessageStatus.WRITING,
}
FIRST_RETRY_S = 0.2
MAX_RETRY_S = 5.0  # a disk that has room again is noticed within that


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ended: done, stopped, interrupted or failed. error is a sentence for a person, only when failed."""

    status: MessageStatus
    error: str = ""
    generation: turns.GenerationNumbers | None = None


class Writer:
    """Saves one reply. `on_gone` is called once when the row has been closed or deleted by somebody else."""

    def __init__(self, message_id: UUID, reply: Reply, token_fingerprint: str, *, on_gone: Callable[[], None]) -> None:
        self._message_id = message_id
        self._reply = reply
        self._token_fingerprint = token_fingerprint
        self._on_gone = on_gone
        self._saved_version = reply.version
        self._saved_stage = Stage.QUEUED

    async def run(self) -> None:
        """Save until cancelled, or until the row is gone: a turn that waits or reads has to hear of that, too."""
        delay_s = SAVE_INTERVAL_S
        while True:
            await asyncio.sleep(delay_s)
            try:
                is_there = await self._save()
            except StorageUnavailable as error:
                delay_s = min(MAX_RETRY_S, 2 * delay_s)
                logger.warning("message %s: not saved (%s), again in %.0f s", self._message_id, error.detail, delay_s)
                continue
            delay_s = SAVE_INTERVAL_S
            if not is_there:
                self._on_gone()
                return

    async def close(self, ending: Ending, *, on_problem: Callable[[StorageUnavailable], Awaitable[None]]) -> bool:
        """End the turn in the database. False: somebody else had closed or deleted it before.

        Goes on until the database takes it, which keeps the text in memory; each refusal is told to on_problem.
        """
        delay_s = FIRST_RETRY_S
        while True:
            try:
                return await executors.database(self._close, ending)
            except StorageUnavailable as error:
                logger.warning("message %s: not closed (%s), again in %.1f s", self._message_id, error.detail, delay_s)
                await on_problem(error)
                await asyncio.sleep(delay_s)
                delay_s = min(MAX_RETRY_S, 2 * delay_s)

    def _close(self, ending: Ending) -> bool:
        return turns.turn_close(
            message_id=self._message_id,
            status=ending.status,
            text=self._reply.text,
            token_ids=self._reply.token_ids,
            token_fingerprint=self._token_fingerprint if self._reply.token_ids else "",
            thinking=self._thinking(),
            error=ending.error,
            generation=ending.generation,
        )

    async def _save(self) -> bool:
        """Write what changed since the last time. False: the row is closed or gone."""
        stage, version = self._reply.stage, self._reply.version
        if stage == self._saved_stage and version == self._saved_version:
            return await executors.database(turns.turn_is_open, message_id=self._message_id)
        is_there = True
        if stage != self._saved_stage:
            status = _STATUS_OF[stage]
            is_there = await executors.database(turns.turn_progress, message_id=self._message_id, status=status)
            self._saved_stage = stage
        if is_there and version != self._saved_version:
            is_there = await executors.database(
                turns.turn_save,
                message_id=self._message_id,
                text=self._reply.text,
                token_ids=tuple(self._reply.token_ids),  # a copy: the reply grows while the thread writes
                token_fingerprint=self._token_fingerprint,
                thinking=self._thinking(),
            )
            self._saved_version = version
        return is_there

    def _thinking(self) -> tuple[int, int]:
        """How many characters and tokens of it; no tokens where the answer begins inside one."""
        split = self._reply.split
        return split.num_chars, split.num_tokens or 0
