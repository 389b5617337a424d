"""Block pool: which blocks are referenced, and in which order the others are used again.

Knows ids, reference counts and order. Knows no tokens, no keys and no KV bytes (see prefix_cache.py), and no thread:
one owner calls it. Every operation is O(1) per block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum

import numpy as np


class Retention(IntEnum):
    """What becomes of a block when nobody references it any more. The values are the order of reuse."""

    NONE = 0  # empty: reused first
    LOW = 1  # cached for a side request only: reused before every NORMAL one
    NORMAL = 2  # cached


class BlockPool:
    """num_blocks blocks, each either referenced or in exactly one of three lists, by its retention.

    Of the cached blocks, the one that was released first is reused first. Of the empty ones it is the one that was
    released last: its memory is warm, and a sequence that gives its last block first leaves ascending ids, which
    attention reads as one piece. The lists are intrusive: two arrays of links, where index num_blocks + retention is
    the sentinel of a list.

    on_reset(block_id) is called when the contents of an unreferenced block cease to count: before a cached block is
    handed out anew, and when a block without retention is released.
    """

    def __init__(self, num_blocks: int, on_reset: Callable[[int], None]) -> None:
        self.num_blocks = num_blocks
        self.num_evicted = 0  # cached blocks handed out anew, since the start
        self.ref_count = np.zeros(num_blocks, np.int32)  # (N,)
        self.retention = np.zeros(num_blocks, np.int8)  # (N,) Retention
        self._on_reset = on_reset
        self._num_listed = [0, 0, 0]
        num_links = num_blocks + len(Retention)
        self._next = np.arange(num_links, dtype=np.int32)  # a sentinel that is its own neighbour: an empty list
        self._prev = np.arange(num_links, dtype=np.int32)
        for block_id in reversed(range(num_blocks)):
            self._insert(block_id)

    @property
    def num_available(self) -> int:
        """Unreferenced blocks, empty or cached: what allocate() can hand out."""
        return sum(self._num_listed)

    @property
    def num_empty(self) -> int:
        return self._num_listed[Retention.NONE]

    @property
    def num_cached(self) -> int:
        """Unreferenced blocks that are kept for reuse."""
        return self._num_listed[Retention.LOW] + self._num_listed[Retention.NORMAL]

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def allocate(self, num: int) -> list[int]:
        """Hand out num blocks, referenced once and without retention; evicts when the empty ones run out.

        The caller has made sure that num_available suffices, and has touched whatever must not be evicted.
        """
        assert num <= self.num_available, f"{num} blocks wanted, {self.num_available} available"
        block_ids = []
        for _ in range(num):
            block_id = next(self.in_reuse_order())
            self._remove(block_id)
            if self.retention[block_id] != Retention.NONE:
                self.num_evicted += 1
                self._on_reset(block_id)
                self.retention[block_id] = Retention.NONE
            self.ref_count[block_id] = 1
            block_ids.append(block_id)
        return block_ids

    def touch(self, block_ids: Sequence[int]) -> None:
        """Reference each block once more. The only way to reference a block that is not new."""
        for block_id in block_ids:
            if self.ref_count[block_id] == 0:
                self._remove(block_id)
            self.ref_count[block_id] += 1

    def free(self, block_ids: Sequence[int]) -> None:
        """Release each block once, in the order in which they shall be reused: of a sequence, the last block first."""
        for block_id in block_ids:
            assert self.ref_count[block_id] > 0, f"block {block_id} is released more often than referenced"
            self.ref_count[block_id] -= 1
            if self.ref_count[block_id] == 0:
                if self.retention[block_id] == Retention.NONE:
                    self._on_reset(block_id)
                self._insert(block_id)

    def retain(self, block_id: int, retention: Retention) -> None:
        """Set the retention of a referenced block."""
        assert self.ref_count[block_id] > 0, f"block {block_id} is not referenced"
        self.retention[block_id] = retention

    def drop(self, block_id: int) -> None:
        """Take the retention away: the block counts as empty at once if unreferenced, else when it is released."""
        if self.ref_count[block_id] > 0:
            self.retention[block_id] = Retention.NONE
            return
        self._remove(block_id)
        self.retention[block_id] = Retention.NONE
        self._on_reset(block_id)
        self._insert(block_id)

    def in_reuse_order(self) -> Iterator[int]:
        """The unreferenced blocks, the next to be handed out first."""
        for retention in Retention:
            sentinel = self.num_blocks + retention
            block_id = int(self._next[sentinel])
            while block_id != sentinel:
                yield block_id
                block_id = int(self._next[block_id])

    def check_integrity(self) -> None:
        """Assert that every block is referenced or in the one list of its retention, and that the links agree. O(N)."""
        assert (self.ref_count >= 0).all()
        for retention in Retention:
            sentinel = self.num_blocks + retention
            num_seen = 0
            previous, block_id = sentinel, int(self._next[sentinel])
            while block_id != sentinel:
                num_seen += 1
                assert num_seen <= self.num_blocks, "a list of blocks runs in a circle"
                assert self._prev[block_id] == previous
                assert self.ref_count[block_id] == 0, f"block {block_id} is referenced and listed"
                assert self.retention[block_id] == retention, f"block {block_id} is in the wrong list"
                previous, block_id = block_id, int(self._next[block_id])
            assert self._prev[sentinel] == previous
            assert num_seen == self._num_listed[retention]
        assert self.num_used == int((self.ref_count > 0).sum()), "an unreferenced block is in no list"

    def _insert(self, block_id: int) -> None:
        """Put a block into the list of its retention: in front if empty, at the end if cached."""
        retention = int(self.retention[block_id])
        sentinel = self.num_blocks + retention
        previous = sentinel if retention == Retention.NONE else self._prev[sentinel]
        following = self._next[previous]
        self._next[previous] = self._prev[following] = block_id
        self._prev[block_id], self._next[block_id] = previous, following
        self._num_listed[retention] += 1

    def _remove(self, block_id: int) -> None:
        previous, following = self._prev[block_id], self._next[block_id]
        self._next[previous] = following
        self._prev[following] = previous
        self._num_listed[int(self.retention[block_id])] -= 1
