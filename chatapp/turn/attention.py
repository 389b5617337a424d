"""Which conversations somebody looks at: the engine evicts their cached KV last, and for some minutes after.

Leases, renewed while a tab is open: whatever goes wrong here ends by itself.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from chatapp import llm

LEASE_S = 900.0
RENEW_EVERY_S = 300.0
AFTERWARDS_S = 300.0


class Attention:
    """The open conversations of this process."""

    def __init__(self) -> None:
        self._open: set[UUID] = set()
        self._timer: asyncio.TimerHandle | None = None

    def opened(self, conversation_id: UUID) -> None:
        """A tab shows it, from now on until left() or put_away()."""
        self._open.add(conversation_id)
        llm.protect(conversation_id, LEASE_S)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RENEW_EVERY_S, self._renew)

    def used(self, conversation_id: UUID) -> None:
        """A turn runs there, whether a tab shows it or not."""
        if conversation_id not in self._open:
            llm.protect(conversation_id, AFTERWARDS_S)

    def left(self, conversation_id: UUID) -> None:
        """The last tab has gone; somebody may come back soon."""
        if conversation_id in self._open:
            self._open.remove(conversation_id)
            llm.protect(conversation_id, AFTERWARDS_S)
            self._rest()

    def put_away(self, conversation_id: UUID) -> None:
        """It is in the archive, open or not."""
        self._open.discard(conversation_id)
        llm.archive(conversation_id)
        self._rest()

    def end(self) -> None:
        """The process is about to end."""
        self._open.clear()
        self._rest()

    def _rest(self) -> None:
        if self._timer is not None and not self._open:
            self._timer.cancel()
            self._timer = None

    def _renew(self) -> None:
        self._timer = None
        for conversation_id in self._open:
            llm.protect(conversation_id, LEASE_S)
        if self._open:
            self._timer = asyncio.get_running_loop().call_later(RENEW_EVERY_S, self._renew)
