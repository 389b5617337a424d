"""DiskTier: cached blocks in files, found by the same keys as in memory.

Best effort: a file that is damaged, foreign or gone is a miss and a counter, and is removed; nothing here raises on a
turn. The folder belongs to one DiskTier of one process, which holds a lock on it. There is no index file: what is there
is read from the headers at the start. Files appear whole (written aside, synced, renamed) and only ever lose tags.

The engine's thread looks up, reads and purges; block_saver's thread writes. One lock is over the index.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import stat
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from inference.kvcache.cached_blocks import Place, num_common
from inference.kvcache.segment import (
    BadSegment,
    KVIdentity,
    SavedBlock,
    encode_header,
    make_segment,
    read_rows,
    read_segment,
)
from inference.kvcache.segment_index import SegmentFile, SegmentIndex, StoredBlock
from inference.types import I32

logger = logging.getLogger(__name__)

SUFFIX = ".kv"
UNFINISHED_SUFFIX = ".tmp"
NUM_READERS = min(4, os.cpu_count() or 1)
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


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
    """Opens the folder, making it if need be, and reads what is there. Raises DiskTierUnavailable.

    max_bytes is a hard bound on the files, those being written included.
    """

    def __init__(self, folder: Path, max_bytes: int, identity: KVIdentity) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.failures: Counter[str] = Counter()  # files that could not be used, by cause
        self.num_evicted_files = 0
        self._identity = identity
        self._lock = threading.RLock()
        self._index = SegmentIndex()
        self._num_unfinished_bytes = 0
        self._touched: dict[Path, None] = {}  # files whose time of use is not yet theirs on disk
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="kv reader")
        self._buffers = threading.local()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o600)
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._scan()
            except OSError:
                os.close(self._lock_fd)
                raise
        except BlockingIOError as error:
            raise DiskTierUnavailable(f"{folder} is in use by another process") from error
        except OSError as error:
            raise DiskTierUnavailable(f"{folder} cannot be used: {error.strerror}") from error

    # --- looking up and reading, on the engine's thread ---------------------------------------------------------------

    @property
    def num_files(self) -> int:
        return len(self._index)

    @property
    def num_bytes(self) -> int:
        """Of all files, the unfinished one included."""
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
                    fds[file] = os.open(file.path, os.O_RDONLY | _OPEN_FLAGS)
                self._touch(reversed(files))
        except OSError:
            self._fail(files[len(fds)], "missing")
            blocks = [stored for stored in blocks if stored.file in fds]
        try:
            problems = list(self._readers.map(lambda n: self._read_one(fds, n, blocks[n], sink), range(len(blocks))))
        finally:
            for fd in fds.values():
                os.close(fd)
        for n, problem in enumerate(problems):
            if problem:
                self._fail(blocks[n].file, problem)
                return n
        return len(blocks)

    def touch(self, keys: Collection[bytes]) -> None:
        """Blocks with these keys, parents first, have been used in memory: their files count as used."""
        with self._lock:
            stored = (self._index.find(key) for key in reversed(list(keys)))
            self._touch(dict.fromkeys(block.file for block in stored if block is not None))

    def save_order(self) -> None:
        """Write down which files have been used, for the next start."""
        with self._lock:
            touched, self._touched = list(self._touched), {}
        for path in touched:
            try:
                os.utime(path, follow_symlinks=False)
            except OSError:  # evicted meanwhile
                continue

    # --- removing -----------------------------------------------------------------------------------------------------

    def purge(self, tag: str, jobs: Collection[WriteJob]) -> None:
        """Remove what only this tag owns; files that others own as well lose the tag. jobs: what is being written."""
        with self._lock:
            for job in jobs:
                job.is_void |= tag in job.tags
            for file in [file for file in self._index.files() if tag in file.segment.tags]:
                if file.segment.tags == {tag} or not self._rewrite_tags(file, file.segment.tags - {tag}):
                    self._remove(file)

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

        On a full disk old files go first; the error comes when that did not help.
        """
        segment = make_segment(job.blocks, self._identity)
        header = encode_header(segment, self._identity).ljust(segment.payload_start, b"\0")
        num_bytes = len(header) + job.num_bytes
        file = SegmentFile(self.folder / (secrets.token_hex(16) + SUFFIX), segment, num_bytes)
        unfinished = file.path.with_suffix(UNFINISHED_SUFFIX)
        with self._lock:
            if job.is_void or not self._make_room(num_bytes):
                return False
            self._num_unfinished_bytes = num_bytes
        try:
            parts: list[bytes | memoryview] = [header, *(block.data for block in job.blocks)]
            try:
                _write_synced(unfinished, parts)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                with self._lock:
                    self._evict(num_bytes)
                _write_synced(unfinished, parts)
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
        self._sync_folder()
        return True

    def _sync_folder(self) -> None:
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | _OPEN_FLAGS)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _make_room(self, num_bytes: int) -> bool:
        """Evict files until so many bytes fit the budget; False if they never will."""
        if num_bytes > self.max_bytes:
            return False
        self._evict(self._index.num_bytes + num_bytes - self.max_bytes)
        return True

    def _evict(self, num_bytes: int) -> None:
        """Remove so many bytes, the least recently used files first, children before parents."""
        while num_bytes > 0 and (leaf := self._index.oldest_leaf()) is not None:
            num_bytes -= leaf.num_bytes
            self.num_evicted_files += 1
            self._remove(leaf)

    # --- the index, under the lock ------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Read the headers of all files, remove what is unfinished or unusable, and keep to the budget."""
        found = [(path.lstat(), path) for path in self.folder.iterdir()]
        for status, path in sorted(found, key=lambda item: item[0].st_mtime_ns):
            if path.suffix == UNFINISHED_SUFFIX and stat.S_ISREG(status.st_mode):
                path.unlink()
            elif path.suffix == SUFFIX:
                self._scan_file(path)
        self._make_room(0)

    def _scan_file(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _OPEN_FLAGS)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise BadSegment("format")
                segment = read_segment(fd, self._identity)
            finally:
                os.close(fd)
        except (BadSegment, OSError) as error:
            self.failures[error.cause if isinstance(error, BadSegment) else "unreadable"] += 1
            logger.warning("removing a KV file that cannot be used: %s", error)
            try:
                path.unlink()
            except OSError:  # a folder by this name
                logger.warning("%s is in the way", path.name)
            return
        self._add(SegmentFile(path, segment, segment.num_bytes(self._identity.bytes_per_token)))

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
        self._touched.pop(file.path, None)
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            logger.error("a KV file could not be removed: %s", error)

    def _fail(self, file: SegmentFile, cause: str) -> None:
        """A file that was found is not usable after all."""
        with self._lock:
            if file in self._index:
                self.failures[cause] += 1
                logger.warning("removing a KV file that cannot be used: %s", cause)
                self._remove(file)

    def _touch(self, files: Iterable[SegmentFile]) -> None:
        for file in files:
            if file in self._index:
                self._index.touch([file])
                self._touched.pop(file.path, None)
                self._touched[file.path] = None

    def _rewrite_tags(self, file: SegmentFile, tags: frozenset[str]) -> bool:
        """Put a header with fewer tags in the place of the old one. Half of it on disk is a miss."""
        segment = replace(file.segment, tags=tags)
        header = encode_header(segment, self._identity).ljust(segment.payload_start, b"\0")
        try:
            fd = os.open(file.path, os.O_WRONLY | _OPEN_FLAGS)
            try:
                os.pwrite(fd, header, 0)
                os.fdatasync(fd)
            finally:
                os.close(fd)
        except OSError:
            return False
        file.segment = segment
        return True

    def _read_one(
        self, fds: dict[SegmentFile, int], n: int, stored: StoredBlock, sink: Callable[[int, memoryview], None]
    ) -> str:
        """On a reader's thread. Returns the problem, "" if there is none."""
        if not hasattr(self._buffers, "view"):
            self._buffers.view = np.empty(self._identity.block_size * self._identity.bytes_per_token, np.uint8).data
        try:
            sink(
                n,
                read_rows(
                    fds[stored.file], stored.file.segment, stored.i, self._buffers.view, self._identity.bytes_per_token
                ),
            )
        except BadSegment as error:
            return error.cause
        except OSError:
            return "unreadable"
        return ""

    def check_integrity(self) -> None:
        """Assert that the index agrees with itself and with the folder, as long as nothing is being written."""
        with self._lock:
            self._index.check_integrity()


def _write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write parts to a file that was not there, or that an earlier attempt has left, and wait for the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _OPEN_FLAGS, 0o600)
    with open(fd, "wb", buffering=0) as file:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[file.write(view) :]
        os.fsync(fd)
