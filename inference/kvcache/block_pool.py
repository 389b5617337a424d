"""Block pool: which blocks are referenced, and in which order the others are used again.

Knows ids, reference counts, owners and times. Knows no tokens, no keys and no KV bytes (see prefix_cache.py), and no
thread: one owner of the pool calls it. Every operation is O(1) per block, but for eviction, which looks at each user.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import takewhile

import numpy as np

from inference.types import EVICTED_AGE_LIMITS_S

FRESH_S = 600.0  # released less long ago than this, a block is not given to others while their own would do


class Retention(IntEnum):
    """What becomes of a block when nobody references it any more. The values are the order of reuse."""

    NONE = 0  # empty: reused first
    LOW = 1  # of a side request, or archived: reused before every NORMAL one
    NORMAL = 2  # cached
    PROTECTED = 3  # of what somebody is looking at: reused after everything else of the same owner


_Idle = OrderedDict[int, tuple[int, float]]  # block -> (number of its release, time of it), in order of release


class BlockPool:
    """num_blocks blocks, each referenced, or empty, or cached and idle.

    Empty blocks go first, the last released before the others: its memory is warm, and a sequence that gives its last
    block first leaves ascending ids, which attention reads as one piece. Then cached ones are evicted:

    1. of retention LOW, the one released first;
    2. NORMAL, the one released first, if that was FRESH_S ago;
    3. else of the owner with the most idle blocks, so that nobody can push out everybody else: the NORMAL one released
       first, then PROTECTED.

    A block that is_parent is never evicted: what hangs on it goes first. on_reset(block_id) is called when the contents
    of an unreferenced block cease to count: before a cached block is handed out anew, and when a block without
    retention is released.
    """

    def __init__(
        self,
        num_blocks: int,
        on_reset: Callable[[int], None],
        *,
        is_parent: Callable[[int], bool] = lambda block_id: False,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.num_blocks = num_blocks
        self.num_cached = 0  # unreferenced, kept for reuse
        self.num_evicted = 0  # cached blocks handed out anew, since the start
        self.evicted_age_s = 0.0  # sum over these of the time since their release
        self.num_evicted_by_age = [0] * (len(EVICTED_AGE_LIMITS_S) + 1)
        self.ref_count = np.zeros(num_blocks, np.int32)  # (N,)
        self.retention = np.zeros(num_blocks, np.int8)  # (N,) Retention
        self.owner = [b""] * num_blocks
        self._on_reset = on_reset
        self._is_parent = is_parent
        self._clock = clock
        self._num_released = 0
        self._empty = list(reversed(range(num_blocks)))  # a stack
        self._idle: dict[bytes, dict[Retention, _Idle]] = {}  # by owner; no entry without a block

    @property
    def num_empty(self) -> int:
        return len(self._empty)

    @property
    def num_available(self) -> int:
        """Unreferenced blocks, empty or cached: what allocate() can hand out."""
        return len(self._empty) + self.num_cached

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def num_expendable(self, besides: Collection[int] = ()) -> int:
        """How many blocks the next allocations take before any of what is protected or was released in FRESH_S.

        At least so many: public ones are left out, for on a stale one may hang what somebody looks at. On a private one
        hangs nothing that was released later than itself. besides: not counted. O(number of these blocks).
        """
        stale = self._clock() - FRESH_S
        num = len(self._empty)
        for owner, lists in self._idle.items():
            num += sum(block_id not in besides for block_id in lists.get(Retention.LOW, ()))
            if owner:
                released = lists.get(Retention.NORMAL, _Idle()).items()
                old = takewhile(lambda item: item[1][1] <= stale, released)
                num += sum(block_id not in besides for block_id, _ in old)
        return num

    @property
    def oldest_release(self) -> float | None:
        """When the longest idle cached block was released; None without any. O(number of owners)."""
        times = (next(iter(idle.values()))[1] for lists in self._idle.values() for idle in lists.values() if idle)
        return min(times, default=None)

    def allocate(self, num: int) -> list[int]:
        """Hand out num blocks, referenced once and without retention; evicts when the empty ones run out.

        The caller has made sure that num_available suffices, and has touched whatever must not be evicted.
        """
        assert num <= self.num_available, f"{num} blocks wanted, {self.num_available} available"
        block_ids = []
        for _ in range(num):
            block_id = self._empty.pop() if self._empty else self._evict()
            self.ref_count[block_id] = 1
            block_ids.append(block_id)
        return block_ids

    def touch(self, block_ids: Sequence[int]) -> None:
        """Reference each block once more. The only way to reference a block that is not new."""
        for block_id in block_ids:
            if self.ref_count[block_id] == 0:
                assert self.retention[block_id] != Retention.NONE, f"block {block_id} is empty"
                self._take(block_id)
            self.ref_count[block_id] += 1

    def free(self, block_ids: Sequence[int]) -> None:
        """Release each block once, in the order in which they shall be reused: of a sequence, the last block first."""
        for block_id in block_ids:
            assert self.ref_count[block_id] > 0, f"block {block_id} is released more often than referenced"
            self.ref_count[block_id] -= 1
            if self.ref_count[block_id] == 0:
                if self.retention[block_id] == Retention.NONE:
                    self._on_reset(block_id)
                    self._empty.append(block_id)
                else:
                    self._num_released += 1
                    self._put(block_id, (self._num_released, self._clock()))

    def retain(self, block_id: int, retention: Retention, owner: bytes = b"") -> None:
        """Set the retention and the owner of a referenced block."""
        assert self.ref_count[block_id] > 0, f"block {block_id} is not referenced"
        self.retention[block_id] = retention
        self.owner[block_id] = owner

    def reclassify(self, retentions: Mapping[int, Retention]) -> None:
        """Change the retention of cached blocks, referenced or idle; the idle ones keep their time of release."""
        moved: list[tuple[tuple[int, float], int]] = []
        for block_id, retention in retentions.items():
            assert Retention.NONE not in (self.retention[block_id], retention)
            if self.ref_count[block_id] == 0:
                moved.append((self._take(block_id), block_id))
            self.retention[block_id] = retention
        for released, block_id in moved:
            self._put(block_id, released)
        for owner, retention in {(self.owner[b], Retention(self.retention[b])) for _, b in moved}:
            idle = self._idle[owner][retention]
            self._idle[owner][retention] = OrderedDict(sorted(idle.items(), key=lambda item: item[1]))

    def drop(self, block_id: int) -> None:
        """Take the retention away: the block counts as empty at once if unreferenced, else when it is released."""
        if self.ref_count[block_id] == 0:
            self._take(block_id)
            self._on_reset(block_id)
            self._empty.append(block_id)
        self.retention[block_id] = Retention.NONE

    def idle_blocks(self) -> Iterator[int]:
        """The unreferenced blocks: first the empty ones in order of reuse, then the cached ones of each owner."""
        yield from reversed(self._empty)
        for lists in self._idle.values():
            for retention in sorted(lists):
                yield from lists[retention]

    def check_integrity(self) -> None:
        """Assert that every block is in exactly the one place where it belongs. O(N)."""
        assert (self.ref_count >= 0).all()
        listed = list(self.idle_blocks())
        assert len(listed) == len(set(listed)) == self.num_available, "a block is listed twice, or the count is wrong"
        assert set(listed) == set(np.flatnonzero(self.ref_count == 0)), "an unreferenced block is in no list"
        assert all(self.retention[block_id] == Retention.NONE for block_id in self._empty)
        for owner, lists in self._idle.items():
            for retention, idle in lists.items():
                assert idle, "an empty list is kept"
                assert list(idle.values()) == sorted(idle.values()), "a list is out of order"
                assert {self.retention[block_id] for block_id in idle} == {retention} != {Retention.NONE}
                assert {self.owner[block_id] for block_id in idle} == {owner}

    def _evict(self) -> int:
        block_id = self._victim()
        _, released_at = self._take(block_id)
        age_s = self._clock() - released_at
        self.num_evicted += 1
        self.evicted_age_s += age_s
        self.num_evicted_by_age[bisect_left(EVICTED_AGE_LIMITS_S, age_s)] += 1
        self._on_reset(block_id)
        self.retention[block_id] = Retention.NONE
        return block_id

    def _victim(self) -> int:
        """The cached block to evict next. There is one: a block without children hangs on every idle one."""
        oldest = self._oldest(Retention.LOW, self._idle)
        if oldest is not None:
            return oldest[1]
        oldest = self._oldest(Retention.NORMAL, self._idle)
        if oldest is not None and oldest[0] <= self._clock() - FRESH_S:
            return oldest[1]
        for owner in sorted(self._idle, key=lambda owner: -sum(map(len, self._idle[owner].values()))):
            for retention in (Retention.NORMAL, Retention.PROTECTED):
                oldest = self._oldest(retention, [owner])
                if oldest is not None:
                    return oldest[1]
        raise AssertionError("every idle block has children")

    def _oldest(self, retention: Retention, owners: Iterable[bytes]) -> tuple[float, int] | None:
        """(time of release, block) of the leaf that these owners released first."""
        leaves = []
        for owner in owners:
            idle = self._idle[owner].get(retention, _Idle())
            leaf = next((block_id for block_id in idle if not self._is_parent(block_id)), None)
            if leaf is not None:
                leaves.append((*idle[leaf], leaf))
        return min(leaves)[1:] if leaves else None

    def _put(self, block_id: int, released: tuple[int, float]) -> None:
        """Count a block as idle, under its owner and retention."""
        lists = self._idle.setdefault(self.owner[block_id], {})
        lists.setdefault(Retention(self.retention[block_id]), OrderedDict())[block_id] = released
        self.num_cached += 1

    def _take(self, block_id: int) -> tuple[int, float]:
        """Take an idle cached block out of its list; returns the number and the time of its release."""
        owner, retention = self.owner[block_id], Retention(self.retention[block_id])
        lists = self._idle[owner]
        released = lists[retention].pop(block_id)
        if not lists[retention]:
            del lists[retention]
            if not lists:
                del self._idle[owner]
        self.num_cached -= 1
        return released
