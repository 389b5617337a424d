"""The folder of KV files: one folder inside for each model (and template, KV format, ...), one budget over all.

    <folder>/budget            held while a file is written: the budget is counted by one writer at a time
    <folder>/<identity>/lock   held by the process whose engine uses this folder inside
    <folder>/<identity>/*.kv   segments

What is here works on any of them from any process, whether or not an engine runs: a running engine takes a file that is
gone for a miss.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from inference.kvcache.segment import BadSegment, Segment, read_rows, read_segment

SUFFIX = ".kv"
UNFINISHED_SUFFIX = ".tmp"
LOCK_NAME = "lock"
OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class FolderSummary:
    """One folder inside."""

    name: str
    num_files: int
    num_bytes: int
    is_in_use: bool  # by a running engine
    used_at: float  # seconds since the epoch, of the file used last; 0 without any


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
        summaries.append(FolderSummary(inside.name, len(sizes) - 1, sum(sizes), _is_locked(inside), max(times)))
    return sorted(summaries, key=lambda summary: summary.used_at)


def verify(root: Path) -> Counter[str]:
    """Read every file whole. Counts by what is wrong with them, the sound ones under "". Removes nothing."""
    causes: Counter[str] = Counter()
    for inside in _folders(root):
        for path in _files(inside, SUFFIX):
            with suppress(FileNotFoundError):  # evicted meanwhile
                causes[_problem_of(path)] += 1
    return causes


def purge(root: Path, tag: str | None = None) -> int:
    """Remove the files that only this tag owns (all, without a tag), and the tag from the others; how many are gone.

    What is unfinished in a folder that nobody uses goes as well. Raises OSError.
    """
    num_removed = 0
    with budget_turn(root):
        for inside in _folders(root):
            for path in _files(inside, SUFFIX):
                if tag is None or not _may_stay(path, tag):
                    path.unlink(missing_ok=True)
                    num_removed += 1
            if not _is_locked(inside):
                for path in _files(inside, UNFINISHED_SUFFIX):
                    path.unlink(missing_ok=True)
    return num_removed


def lock(inside: Path) -> int:
    """Take a folder inside for this process; closing the descriptor gives it back. Raises OSError."""
    fd = os.open(inside / LOCK_NAME, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def remove_tag(path: Path, segment: Segment, tag: str) -> Segment | None:
    """The segment without a tag, written into its file. None when nobody owns it any more, and the file is to go.

    The header is overwritten where it lies. A crash in the middle leaves one that is refused: a miss.
    """
    left = replace(segment, tags=segment.tags - {tag})
    if not left.tags:
        return None
    try:
        fd = os.open(path, os.O_WRONLY | OPEN_FLAGS)
        try:
            os.pwrite(fd, left.header(), 0)
            os.fdatasync(fd)
        finally:
            os.close(fd)
    except OSError:
        return None
    return left


def open_segment(path: Path) -> tuple[int, Segment]:
    """The descriptor and the header of a file, which must be a plain one. Raises BadSegment, OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | OPEN_FLAGS)  # no waiting at a pipe
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadSegment("format")
        return fd, read_segment(fd)
    except BaseException:
        os.close(fd)
        raise


def _problem_of(path: Path) -> str:
    try:
        fd, segment = open_segment(path)
        try:
            buffer = np.empty(segment.identity.block_size * segment.identity.bytes_per_token, np.uint8).data
            for i in range(len(segment.records)):
                read_rows(fd, segment, i, buffer)
        finally:
            os.close(fd)
    except BadSegment as error:
        return error.cause
    except FileNotFoundError:
        raise
    except OSError:
        return "unreadable"
    return ""


def _may_stay(path: Path, tag: str) -> bool:
    """Whether others own a file as well, or the tag never did. What cannot be read may hold anything: it goes."""
    try:
        fd, segment = open_segment(path)
    except (BadSegment, OSError):
        return False
    os.close(fd)
    return tag not in segment.tags or remove_tag(path, segment, tag) is not None


def _folders(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())


def _files(inside: Path, suffix: str) -> Iterator[Path]:
    yield from sorted(path for path in inside.iterdir() if path.suffix == suffix and not path.is_dir())


def _is_locked(inside: Path) -> bool:
    try:
        os.close(lock(inside))
    except BlockingIOError:
        return True
    return False
