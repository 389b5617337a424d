"""The folder of KV files: one folder inside for each model (and template, KV format, ...), one budget over all.

    <folder>/budget            held while a file is written: the budget is counted by one writer at a time
    <folder>/<identity>/lock   held by the process whose engine uses this folder inside; says what the folder is for
    <folder>/<identity>/*.kv   segments

What is here works on any of them from any process, whether or not an engine runs: a running engine takes a file that is
gone for a miss.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections import Counter
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from inference.kvcache.segment import BadSegment, Segment, read_rows, read_segment

SUFFIX = ".kv"
UNFINISHED_SUFFIX = ".tmp"
LOCK_NAME = "lock"
MAX_LABEL_BYTES = 512
OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class FolderSummary:
    """One folder inside."""

    name: str
    num_files: int
    num_bytes: int
    is_in_use: bool  # by a running engine
    used_at: float  # seconds since the epoch, of the file used last; 0 without any
    label: str  # what its last user has called it


@dataclass(frozen=True, slots=True)
class FileSummary:
    """One file of the folder. problem: why it cannot be used, in one word; then tags is empty."""

    path: Path
    num_bytes: int
    tags: frozenset[str] = frozenset()
    problem: str = ""


def survey(root: Path) -> list[FolderSummary]:
    """What is in the folder, the least recently used first. Raises OSError."""
    with budget_turn(root):
        return _survey(root)


def _survey(root: Path) -> list[FolderSummary]:
    summaries = []
    for inside in _folders(root):
        sizes, times = [0], [0.0]
        for path in _files(inside, SUFFIX):
            with suppress(FileNotFoundError):
                status = path.lstat()
                sizes.append(status.st_size)
                times.append(status.st_mtime)
        facts = (inside.name, len(sizes) - 1, sum(sizes), _is_locked(inside), max(times))
        summaries.append(FolderSummary(*facts, label=_label_of(inside)))
    return sorted(summaries, key=lambda summary: summary.used_at)


def files(root: Path, *, is_whole: bool = False) -> Iterator[FileSummary]:
    """Every file, of which the header is read, or all of it (is_whole). Removes nothing. Raises OSError."""
    for inside in _folders(root):
        for path in _files(inside, SUFFIX):
            with suppress(FileNotFoundError):  # evicted meanwhile
                yield _look_at(path, is_whole)


def verify(root: Path) -> Counter[str]:
    """Read every file whole. Counts by what is wrong with them, the sound ones under "". Removes nothing."""
    return Counter(file.problem for file in files(root, is_whole=True))


def purge(root: Path, tags: Collection[str] | None = None) -> int:
    """Remove the files that only these tags own (all files, with None), and the tags from the others; how many are
    gone.

    What is unfinished in a folder that nobody uses goes as well. Raises OSError.
    """
    if not root.is_dir():
        return 0
    num_removed = 0
    with budget_turn(root):
        for inside in _folders(root):
            for path in _files(inside, SUFFIX):
                if tags is None or remove_tags(path, tags) is None:
                    path.unlink(missing_ok=True)
                    num_removed += 1
            if not _is_locked(inside):
                for path in _files(inside, UNFINISHED_SUFFIX):
                    path.unlink(missing_ok=True)
    return num_removed


def lock(inside: Path, label: str = "") -> int:
    """Take a folder inside for this process; closing the descriptor gives it back. Raises OSError.

    label: for people, what the folder is for.
    """
    fd = os.open(inside / LOCK_NAME, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if label:
            os.ftruncate(fd, 0)
            os.pwrite(fd, label.encode()[:MAX_LABEL_BYTES], 0)
    except OSError:
        os.close(fd)
        raise
    return fd


@contextmanager
def budget_turn(root: Path) -> Generator[None]:
    """Wait until nobody else writes a file. Makes the folder if need be. Raises OSError."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(root / "budget", os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def make_room_beside(root: Path, name: str, num_bytes: int, max_bytes: int) -> int:
    """Remove files of models that do not run, until the own num_bytes fit beside. Returns what the others take then.

    name: the caller's own folder, which is left alone and not counted. The caller has the turn. Raises OSError.
    """
    others = [summary for summary in _survey(root) if summary.name != name]
    taken = sum(summary.num_bytes for summary in others)
    for summary in others:
        if taken + num_bytes > max_bytes and not summary.is_in_use:
            for path in _files(root / summary.name, SUFFIX):
                path.unlink(missing_ok=True)
            taken -= summary.num_bytes
    return taken


def remove_tags(path: Path, tags: Collection[str]) -> Segment | None:
    """The segment in a file without these tags, written there. None when the file is to go: nobody else owns it, or it
    cannot be read, and may hold anything.

    The header is overwritten where it lies, under a lock: an engine and whoever purges from outside may do so at once,
    and each goes by what is in the file. A crash in the middle leaves a header that is refused: a miss.
    """
    try:
        fd, segment = open_segment(path, os.O_RDWR, fcntl.LOCK_EX)
        try:
            left = replace(segment, tags=segment.tags.difference(tags))
            if not left.tags and segment.tags:
                return None
            if left != segment:
                os.pwrite(fd, left.header(), 0)
                os.fdatasync(fd)
        finally:
            os.close(fd)
    except (BadSegment, OSError):
        return None
    return left


def open_segment(path: Path, mode: int = os.O_RDONLY, lock_kind: int = fcntl.LOCK_SH) -> tuple[int, Segment]:
    """The descriptor and the header of a file, which must be a plain one. Raises BadSegment, OSError.

    A shared lock is for the reading of the header only, an exclusive one is held until the descriptor is closed.
    """
    fd = os.open(path, mode | os.O_NONBLOCK | OPEN_FLAGS)  # no waiting at a pipe
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadSegment("format")
        fcntl.flock(fd, lock_kind)
        segment = read_segment(fd)
        if lock_kind == fcntl.LOCK_SH:
            fcntl.flock(fd, fcntl.LOCK_UN)
        return fd, segment
    except BaseException:
        os.close(fd)
        raise


def _look_at(path: Path, is_whole: bool) -> FileSummary:
    num_bytes = path.lstat().st_size
    try:
        fd, segment = open_segment(path)
        try:
            if segment.identity.name != path.parent.name:
                raise BadSegment("misplaced")
            buffer = np.empty(segment.identity.block_size * segment.identity.bytes_per_token, np.uint8).data
            for i in range(len(segment.records) if is_whole else 0):
                read_rows(fd, segment, i, buffer)
        finally:
            os.close(fd)
    except BadSegment as error:
        return FileSummary(path, num_bytes, problem=error.cause)
    except FileNotFoundError:
        raise
    except OSError:
        return FileSummary(path, num_bytes, problem="unreadable")
    return FileSummary(path, num_bytes, segment.tags)


def _folders(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())


def _files(inside: Path, suffix: str) -> Iterator[Path]:
    yield from sorted(path for path in inside.iterdir() if path.suffix == suffix and not path.is_dir())


def _label_of(inside: Path) -> str:
    try:
        fd = os.open(inside / LOCK_NAME, os.O_RDONLY | os.O_NONBLOCK | OPEN_FLAGS)
    except FileNotFoundError:
        return ""
    try:
        return os.pread(fd, MAX_LABEL_BYTES, 0).decode(errors="replace")
    finally:
        os.close(fd)


def _is_locked(inside: Path) -> bool:
    try:
        os.close(lock(inside))
    except BlockingIOError:
        return True
    return False
