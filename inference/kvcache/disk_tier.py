"""DiskTier: cached blocks in files, found by the same keys as in memory.

Best effort: a file that is damaged, foreign or gone is a miss and a counter, and is removed; nothing here raises on a
turn. There is no index file: what is there is read from the headers at the start. Files appear whole (written aside,
synced, renamed) and only ever lose tags.

The engine's thread looks up, reads and purges; block_saver's thread writes. One lock is over the index.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from inference.kvcache import kv_folder
from inference.kvcache.cached_blocks import Place, num_common
from inference.kvcache.kv_folder import OPEN_FLAGS, SUFFIX, UNFINISHED_SUFFIX
from inference.kvcache.segment import BadSegment, BlockRecord, KVIdentity, SavedBlock, Segment, make_segment, read_rows
from inference.kvcache.segment_index import SegmentFile, SegmentIndex, StoredBlock
from inference.types import I32

logger = logging.getLogger(__name__)

NUM_READERS = min(4, os.cpu_count() or 1)
MAX_REFUSED = 1 << 14  # keys of blocks that had no place in the budget


class DiskTierUnavailable(Exception):
    """The folder cannot be used; the engine runs without."""


class WriteJob:
    """A run of blocks on its way into a file. Void once its owner has purged it: then no file appears."""

    def __init__(self, blocks: Sequence[SavedBlock]) -> None:
        self.blocks = blocks
        self.tags = blocks[0].tags
        self.num_bytes = sum(len(block.data) for block in blocks)
        self.is_void = False


class DiskTier:
    """Opens the model's folder in root, making it if need be, and reads what is there. Raises DiskTierUnavailable.

    max_bytes is a hard bound on the files of all models in root, the one being written included. label: for people,
    what the model's folder is for.
    """

    def __init__(self, root: Path, max_bytes: int, identity: KVIdentity, *, label: str = "") -> None:
        self.folder = root / identity.name
        self.max_bytes = max_bytes
        self.failures: Counter[str] = Counter()  # files that could not be used, by cause
        self.num_evicted_files = 0
        self._root = root
        self._identity = identity
        self._lock = threading.RLock()
        self._index = SegmentIndex()
        self._num_unfinished_bytes = 0
        self._refused: OrderedDict[bytes, None] = OrderedDict()  # what hangs on these could not be read back
        self._useless: list[BlockRecord] = []  # of files that could not be read back; see take_useless()
        self._touched: dict[SegmentFile, None] = {}  # their time of use is not yet written down
        self._buffers = threading.local()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with kv_folder.budget_turn(root):  # who looks which folders are in use holds it for a moment as well
                self._lock_fd = kv_folder.lock(self.folder, label)
        except BlockingIOError as error:
            raise DiskTierUnavailable(f"{self.folder} is in use by another process") from error
        except OSError as error:
            raise DiskTierUnavailable(f"{self.folder} cannot be used: {error.strerror}") from error
        try:
            self._scan()
        except OSError as error:
            os.close(self._lock_fd)
            raise DiskTierUnavailable(f"{self.folder} cannot be read: {error.strerror}") from error
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="kv reader")

    # --- looking up and reading, on the engine's thread ---------------------------------------------------------------

    @property
    def num_files(self) -> int:
        return len(self._index)

    @property
    def num_bytes(self) -> int:
        """Of this model's files, the unfinished one included."""
        return self._index.num_bytes + self._num_unfinished_bytes

    def find(self, key: bytes) -> StoredBlock | None:
        with self._lock:
            return self._index.find(key)

    def siblings(self, place: Place) -> list[StoredBlock]:
        """The blocks that hang at this place: under this parent and salt."""
        with self._lock:
            return self._index.siblings(place)

    def has(self, place: Place, key: bytes, token_ids: I32) -> bool:
        """Whether a block is here, or one that contains it."""
        if key:
            return self.find(key) is not None
        return any(num_common(s.record.token_ids, token_ids) == len(token_ids) for s in self.siblings(place))

    def read(self, blocks: Sequence[StoredBlock], sink: Callable[[int, memoryview], None]) -> int:
        """Read blocks, which follow each other, from several threads; sink(n, bytes) takes the n-th.

        Returns how many leading ones are right. The bytes are only lent. Files that are not what they were are removed.
        """
        files = list(dict.fromkeys(stored.file for stored in blocks))
        fds: dict[SegmentFile, int] = {}
        try:
            with self._lock:  # so that the writer evicts none of them before it is open
                for file in files:
                    fds[file] = os.open(file.path, os.O_RDONLY | OPEN_FLAGS)
                self._touch(reversed(files))
        except OSError as error:
            self._useless += files[len(fds)].segment.records
            self._fail(files[len(fds)], "missing" if isinstance(error, FileNotFoundError) else "unreadable")
            blocks = [stored for stored in blocks if stored.file in fds]
        try:
            problems = list(self._readers.map(lambda n: self._read_one(fds, n, blocks[n], sink), range(len(blocks))))
        finally:
            for fd in fds.values():
                os.close(fd)
        for n, problem in enumerate(problems):
            if problem:
                self._useless += blocks[n].file.segment.records
                self._fail(blocks[n].file, problem)
                return n
        return len(blocks)

    def take_useless(self) -> list[BlockRecord]:
        """The blocks of files that read() has found to be of no use since the last call."""
        useless, self._useless = self._useless, []
        return useless

    def is_gone(self) -> bool:
        """Whether somebody has removed the folder: nothing can be written any more, and another process may take it."""
        try:
            status = (self.folder / kv_folder.LOCK_NAME).lstat()
        except OSError:
            return True
        return not os.path.samestat(status, os.fstat(self._lock_fd))

    def go_on_counting(self, before: DiskTier) -> None:
        """Begin with the counts of a tier whose folder has been removed. Its files are missing, whoever wants them."""
        self.failures, self.num_evicted_files = before.failures, before.num_evicted_files
        self.failures["missing"] += before.num_files

    def touch(self, keys: Sequence[bytes]) -> None:
        """Blocks with these keys, parents first, have been used in memory: their files count as used."""
        with self._lock:
            found = (self._index.find(key) for key in reversed(keys))
            self._touch(dict.fromkeys(stored.file for stored in found if stored is not None))

    def save_order(self) -> None:
        """Write down which files have been used, for the next start."""
        with self._lock:
            touched, self._touched = list(self._touched), {}
        for file in touched:
            try:
                os.utime(file.path, follow_symlinks=False)
            except OSError:  # evicted meanwhile
                continue

    # --- removing -----------------------------------------------------------------------------------------------------

    def purge(self, tag: str, jobs: Collection[WriteJob]) -> None:
        """Remove what only this tag owns; files that others own as well lose the tag. jobs: what is being written."""
        with self._lock:
            for job in jobs:
                job.is_void |= tag in job.tags
            for file in self._index.files():
                if tag in file.segment.tags:
                    left = kv_folder.remove_tags(file.path, [tag])
                    if left is None:
                        self._remove(file)
                    else:
                        file.segment = left

    def discard(self, keys: Collection[bytes]) -> None:
        """Remove the files with these blocks: what they hold is not to be trusted."""
        with self._lock:
            found = [self._index.find(key) for key in keys]
            for file in {stored.file for stored in found if stored is not None}:
                self._fail(file, "distrusted")

    def clear(self, jobs: Collection[WriteJob]) -> None:
        with self._lock:
            for job in jobs:
                job.is_void = True
            for file in self._index.files():
                self._remove(file)

    def close(self) -> None:
        """Give the folder back."""
        self.save_order()
        self._readers.shutdown()
        os.close(self._lock_fd)

    # --- writing, on a thread of its own ------------------------------------------------------------------------------

    def write(self, job: WriteJob) -> bool:
        """Write a job into a file. False when it is void or has no place in the budget. Raises OSError, BadSegment.

        Room is made by old files, but never by those that it hangs on: without them nobody could read it. So it is on a
        full disk; the error comes when that did not help.
        """
        segment = make_segment(job.blocks, self._identity)
        parts: list[bytes | memoryview] = [segment.header(), *(block.data for block in job.blocks)]
        file = SegmentFile(self.folder / (secrets.token_hex(16) + SUFFIX), segment)
        unfinished = file.path.with_suffix(UNFINISHED_SUFFIX)
        with kv_folder.budget_turn(self._root):
            num_own = self._index.num_bytes + file.num_bytes
            num_others = kv_folder.make_room_beside(self._root, self.folder.name, num_own, self.max_bytes)
            with self._lock:
                if job.is_void or not self._make_room(segment, num_others + num_own - self.max_bytes):
                    return False
                self._num_unfinished_bytes = file.num_bytes
            try:
                self._write_aside(unfinished, parts, segment)
                return self._publish(job, unfinished, file)
            finally:
                with self._lock:
                    self._num_unfinished_bytes = 0
                unfinished.unlink(missing_ok=True)

    def _publish(self, job: WriteJob, unfinished: Path, file: SegmentFile) -> bool:
        """Give a finished file its name, unless the job is void by now."""
        with self._lock:  # a purge comes before, and finds it void, or after, and finds the file
            if job.is_void:
                return False
            os.rename(unfinished, file.path)
            self._add(file)
        _sync(self.folder)
        return True

    def _make_room(self, segment: Segment, num_bytes: int) -> bool:
        """Evict so many bytes for a segment; False, and nothing is evicted, when there is no place for it."""
        spared = self._index.ancestors(segment)
        num_spared = sum(file.num_bytes for file in spared)
        keys = [record.key for record in segment.records if record.key]
        if segment.records[0].place.parent in self._refused or num_bytes > self._index.num_bytes - num_spared:
            self._refused.update(dict.fromkeys(keys))
            while len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
            return False
        for key in keys:
            self._refused.pop(key, None)
        self._evict(num_bytes, spared)
        return True

    def _write_aside(self, path: Path, parts: Sequence[bytes | memoryview], segment: Segment) -> None:
        try:
            _write_synced(path, parts)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            with self._lock:
                self._evict(sum(map(len, parts)), self._index.ancestors(segment))
            _write_synced(path, parts)

    def _evict(self, num_bytes: int, spared: AbstractSet[SegmentFile] = frozenset()) -> None:
        """Remove so many bytes (none if negative), the least recently used files first, children before parents."""
        while num_bytes > 0 and (leaf := self._index.oldest_leaf(spared)) is not None:
            num_bytes -= leaf.num_bytes
            self.num_evicted_files += 1
            self._remove(leaf)

    # --- the index, under the lock ------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Read the headers of all files, remove what is unfinished or unusable, and keep to the budget."""
        found: list[tuple[int, Path]] = []
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):  # purged meanwhile, by another process
                found.append((path.lstat().st_mtime_ns, path))
        for _, path in sorted(found):
            if path.suffix == UNFINISHED_SUFFIX:
                _unlink(path)
            elif path.suffix == SUFFIX:
                self._scan_file(path)
        self._evict(self._index.num_bytes - self.max_bytes)

    def _scan_file(self, path: Path) -> None:
        try:
            fd, segment = kv_folder.open_segment(path)
            os.close(fd)
            self._identity.check(segment.identity)
        except FileNotFoundError:  # as above
            return
        except (BadSegment, OSError) as error:
            cause = error.cause if isinstance(error, BadSegment) else "unreadable"
            self.failures[cause] += 1
            logger.warning("removing a KV file that cannot be used: %s", cause)
            _unlink(path)
            return
        self._add(SegmentFile(path, segment))

    def _add(self, file: SegmentFile) -> None:
        """Make the blocks of a file findable; partly filled blocks that it contains whole are done with."""
        for superseded in self._index.superseded_by(file.segment):
            self._remove(superseded)
        self._index.add(file)

    def _remove(self, file: SegmentFile) -> None:
        """Forget a file and delete it. A second call does nothing."""
        if file not in self._index:
            return
        self._index.remove(file)
        self._touched.pop(file, None)
        _unlink(file.path)

    def _fail(self, file: SegmentFile, cause: str) -> None:
        """A file that was found is not usable after all."""
        with self._lock:
            if file in self._index:
                self.failures[cause] += 1
                logger.warning("removing a KV file that cannot be used: %s", cause)
                self._remove(file)

    def _touch(self, files: Iterable[SegmentFile]) -> None:
        for file in files:
            self._index.touch(file)
            self._touched.pop(file, None)
            self._touched[file] = None

    def _read_one(
        self, fds: dict[SegmentFile, int], n: int, stored: StoredBlock, sink: Callable[[int, memoryview], None]
    ) -> str:
        """On a reader's thread. Returns the problem, "" if there is none."""
        if not hasattr(self._buffers, "view"):
            num_bytes = self._identity.block_size * self._identity.bytes_per_token
            self._buffers.view = np.empty(num_bytes, np.uint8).data
        try:
            sink(n, read_rows(fds[stored.file], stored.file.segment, stored.i, self._buffers.view))
        except BadSegment as error:
            return error.cause
        except OSError:
            return "unreadable"
        return ""

    def check_integrity(self) -> None:
        """Assert that the index agrees with itself."""
        with self._lock:
            self._index.check_integrity()


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:  # a folder by this name, or one that cannot be written to
        logger.error("a KV file could not be removed: %s", error)


def _write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write parts to a file that was not there, or that an earlier attempt has left, and wait for the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | OPEN_FLAGS, 0o600)
    with open(fd, "wb", buffering=0) as file:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[file.write(view) :]
        os.fsync(fd)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | OPEN_FLAGS)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
