"""BlockSaver: which cached blocks are not on disk yet, and the way there and back.

Blocks are copied on the engine's thread, when it is idle or just before they are evicted, so that nothing can happen to
them on the way; digests, writing and syncing are the business of a thread of its own. Reading is the engine's: a prompt
waits for it, because it is much faster than computing.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from inference.kernels.kv_storage import BlockStorage
from inference.kvcache.cached_blocks import CachedBlocks, Place, num_common
from inference.kvcache.disk_tier import DiskTier, WriteJob
from inference.kvcache.segment import MAX_BLOCKS, BadSegment, SavedBlock
from inference.kvcache.segment_index import StoredBlock
from inference.types import I32, DiskStats

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 8 << 20  # or one block; what one idle slice copies, about 3 ms
MAX_PENDING_BYTES = 64 << 20  # copies that wait to be written
PAUSE_S = 60.0  # after a write that failed
RETRY_S = 0.05  # while the writer has enough to do


class BlockSaver:
    """attach() gives it the blocks of a cache. The cache says what happens to them; save_some() is for idle moments."""

    def __init__(self, disk: DiskTier, storage: BlockStorage) -> None:
        self.disk = disk
        self.num_restored_blocks = 0
        self.restore_s = 0.0
        self.write_failures: Counter[str] = Counter()  # by the name of the error
        self.num_unsaved_lost = 0  # evicted while the writer had too much to do
        self.has_just_failed = False  # the last restore() met a file that could not be used
        self._storage = storage
        self._blocks = CachedBlocks(0, 1)
        self._unsaved: dict[int, None] = {}  # in the order in which they were cached
        self._evicted: list[SavedBlock] = []
        self._jobs: deque[WriteJob] = deque()  # the first one is being written
        self._pending_bytes = 0
        self._paused_until = 0.0
        self._is_closing = False
        self._change = threading.Condition()  # over the four above
        self._thread = threading.Thread(target=self._write_all, name="kv writer", daemon=True)
        self._thread.start()

    def attach(self, blocks: CachedBlocks) -> None:
        self._blocks = blocks

    def go_on_counting(self, before: BlockSaver) -> None:
        """Begin with the counts of a saver whose folder has been removed."""
        self.num_restored_blocks, self.restore_s = before.num_restored_blocks, before.restore_s
        self.num_unsaved_lost, self.write_failures = before.num_unsaved_lost, before.write_failures
        self.disk.go_on_counting(before.disk)

    # --- what happens to blocks ---------------------------------------------------------------------------------------

    def note(self, block_id: int) -> None:
        """A block has been cached."""
        if self._blocks.is_side[block_id]:
            return
        place, key = self._blocks.place_of(block_id), self._blocks.key[block_id]
        if not self.disk.has(place, key, self._blocks.rows(block_id)):
            self._unsaved[block_id] = None

    def forget(self, block_id: int) -> None:
        """A block is cached no longer."""
        self._unsaved.pop(block_id, None)

    def evict(self, block_id: int) -> None:
        """A block is about to be evicted: copy it, unless it is on disk. save_evicted() follows."""
        if block_id not in self._unsaved:
            return
        if self._is_full(sum(len(block.data) for block in self._evicted)):
            self.num_unsaved_lost += 1
            return
        self._evicted.append(self._copy(block_id))

    def save_evicted(self) -> None:
        """Hand over what evict() has copied since the last call."""
        evicted, self._evicted = self._evicted[::-1], []  # a chain is evicted from its end
        while evicted:
            run = [evicted.pop(0)]
            while evicted and self._continues(run, evicted[0].place, evicted[0].tags) and evicted[0].key:
                run.append(evicted.pop(0))
            self._hand_over(run)

    def purge(self, tag: str, shared_ids: Iterable[int]) -> None:
        """Remove from disk what only this tag owns. shared_ids: cached blocks that lost the tag and have others; those
        that were on their way are saved again."""
        with self._change:
            self.disk.purge(tag, self._jobs)
        for block_id in shared_ids:
            self.note(block_id)

    def clear(self) -> None:
        with self._change:
            self.disk.clear(self._jobs)

    def distrust(self, keys: Collection[bytes]) -> None:
        self.disk.discard(keys)

    # --- saving -------------------------------------------------------------------------------------------------------

    def save_some(self) -> float | None:
        """Copy one run of blocks and hand it to the writer. In how many seconds there is more; None: none is left."""
        if not self._unsaved:
            self.disk.save_order()
            return None
        if self._is_full(0):
            return RETRY_S
        run = self._next_run()
        for block_id in run:
            del self._unsaved[block_id]
        self._hand_over([self._copy(block_id) for block_id in run])
        return 0.0

    def stats(self) -> DiskStats:
        disk = self.disk
        return DiskStats(
            num_files=disk.num_files,
            num_bytes=disk.num_bytes,
            max_bytes=disk.max_bytes,
            num_evicted_files=disk.num_evicted_files,
            num_restored_blocks=self.num_restored_blocks,
            restore_s=self.restore_s,
            failed_restores=dict(disk.failures),
            failed_writes=dict(self.write_failures),
            num_unsaved_blocks=len(self._unsaved),
            num_lost_blocks=self.num_unsaved_lost,
            pending_bytes=self._pending_bytes,
        )

    def flush(self, timeout: float) -> bool:
        """Save everything, for at most timeout seconds. True when all of it has been written, or given up."""
        deadline = time.monotonic() + timeout
        while self._unsaved and self._paused_until <= time.monotonic() < deadline:
            if self.save_some():
                with self._change:
                    self._change.wait(RETRY_S)
        return self.wait_for_writer(max(0.0, deadline - time.monotonic()))

    def wait_for_writer(self, timeout: float) -> bool:
        """Whether all that was handed over has been written, or given up, within timeout seconds."""
        with self._change:
            return self._change.wait_for(lambda: not self._jobs, timeout)

    def close(self, timeout: float) -> None:
        """Save what is left, for at most timeout seconds, and give the folder back."""
        self._paused_until = 0.0
        self.flush(timeout)
        with self._change:
            self._is_closing = True
            if timeout and (self._unsaved or self._jobs):
                num_blocks = len(self._unsaved) + sum(len(job.blocks) for job in self._jobs)
                logger.warning("%d blocks of KV were not saved in time", num_blocks)
            for job in self._jobs:
                job.is_void = True
            self._change.notify_all()
        self._thread.join()
        self.disk.close()

    def _next_run(self) -> list[int]:
        """The first unsaved block, and unsaved ones that follow it and belong to the same owners."""
        blocks = self._blocks
        run = [next(iter(self._unsaved))]
        while blocks.key[run[-1]] and len(run) < self._max_blocks:
            place, tags = blocks.place_of(run[-1]), blocks.tags[run[-1]]
            following = [
                child
                for child in blocks.children(run[-1])
                if child in self._unsaved
                and blocks.key[child]  # a partly filled block is soon contained in another: it gets its own file
                and (blocks.place_of(child).owner, blocks.tags[child]) == (place.owner, tags)
            ]
            if not following:
                break
            run.append(following[0])
        return run

    @property
    def _max_blocks(self) -> int:
        return max(1, min(MAX_BLOCKS, MAX_FILE_BYTES // (self._storage.bytes_per_token * self._blocks.block_size)))

    def _continues(self, run: Sequence[SavedBlock], place: Place, tags: frozenset[str]) -> bool:
        last = run[-1]
        is_next = bool(last.key) and place.parent == last.key and len(run) < self._max_blocks
        return is_next and (place.owner, tags) == (last.place.owner, last.tags)

    def _copy(self, block_id: int) -> SavedBlock:
        rows = self._blocks.rows(block_id)
        return SavedBlock(
            place=self._blocks.place_of(block_id),
            key=self._blocks.key[block_id],
            token_ids=rows.copy(),
            tags=frozenset(self._blocks.tags[block_id]),
            data=self._storage.read_block(block_id, len(rows)),
        )

    def _is_full(self, num_more: int) -> bool:
        with self._change:
            return self._pending_bytes + num_more >= MAX_PENDING_BYTES or time.monotonic() < self._paused_until

    def _hand_over(self, run: Sequence[SavedBlock]) -> None:
        job = WriteJob(run)
        with self._change:
            self._jobs.append(job)
            self._pending_bytes += job.num_bytes
            self._change.notify_all()

    def _write_all(self) -> None:
        """The life of the thread."""
        while True:
            with self._change:
                self._change.wait_for(lambda: self._jobs or self._is_closing)
                if not self._jobs:
                    return
                job = self._jobs[0]
            is_broken = False
            try:
                if not self.disk.write(job) and not job.is_void:
                    self.write_failures["budget"] += 1
            except BadSegment as error:
                self.write_failures[error.cause] += 1
            except OSError as error:
                logger.warning("a KV file could not be written: %s", error.strerror)
                self.write_failures[errno.errorcode.get(error.errno or 0, "OSError")] += 1
                is_broken = True
            with self._change:
                self._jobs.popleft()
                self._pending_bytes -= job.num_bytes
                self._paused_until = time.monotonic() + PAUSE_S if is_broken else 0.0
                self._change.notify_all()

    # --- restoring ----------------------------------------------------------------------------------------------------

    def restore(self, keys: Sequence[bytes], rows: Sequence[I32], block_ids: Sequence[int]) -> int:
        """Read full blocks with these keys and tokens into block_ids; returns how many leading ones are there now."""
        self.has_just_failed = False
        found: list[StoredBlock] = []
        for key, tokens in zip(keys, rows, strict=True):
            stored = self.disk.find(key)
            if stored is None or not np.array_equal(stored.record.token_ids, tokens):
                break
            found.append(stored)
        return self._read(found, [len(tokens) for tokens in rows], block_ids)

    def restore_rows(self, place: Place, rows: I32, block_ids: Sequence[int], num_better_than: int) -> int:
        """Read the stored block that agrees with rows in most tokens, if in more than num_better_than, into
        block_ids[0]; returns how many rows are there now."""
        best, num_best = None, num_better_than
        for stored in [] if self.has_just_failed else self.disk.siblings(place):
            num_rows = num_common(stored.record.token_ids, rows)
            if num_rows > num_best:
                best, num_best = stored, num_rows
        if best is None:
            return 0
        return num_best if self._read([best], [num_best], block_ids) else 0

    def _read(self, found: Sequence[StoredBlock], num_rows: Sequence[int], block_ids: Sequence[int]) -> int:
        if not found:
            return 0
        started_at = time.perf_counter()
        num_read = self.disk.read(found, lambda n, data: self._storage.write_block(block_ids[n], num_rows[n], data))
        self.has_just_failed |= num_read < len(found)
        self.num_restored_blocks += num_read
        self.restore_s += time.perf_counter() - started_at
        return num_read

    def check_integrity(self) -> None:
        """Assert that what waits to be saved is cached."""
        assert all(block_id in self._blocks for block_id in self._unsaved)
        self.disk.check_integrity()
