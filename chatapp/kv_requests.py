"""How a process asks the server to forget cached KV: its memory, and the files that it uses, are its own.

A file of lines, each the id of a conversation or EVERYTHING, under a lock. The server empties it when it has done what
it says; what it has not done when it ends, the next one does before anything else. Without a server nothing is written:
then there is no such memory.

It lies in the data folder, not among the files of KV: those may be deleted at any time, and the memory is still there.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

EVERYTHING = "*"
_REQUESTS = "kv.requests"
_LISTENER = "kv.listener"
_POLL_S = 0.05


@contextmanager
def listening(folder: Path) -> Iterator[None]:
    """For the server, as long as it takes requests. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _open(folder / _LISTENER) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # there is one server: at most somebody is just asking whether it is
        yield


def ask(folder: Path, names: Collection[str]) -> bool:
    """Ask for it to be done soon. False when nobody listens. Raises OSError."""
    if not _is_heard(folder):
        return False
    with _open(folder / _REQUESTS) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.lseek(descriptor, 0, os.SEEK_END)
        os.write(descriptor, "".join(f"{name}\n" for name in names).encode())
    return True


def wait(folder: Path, timeout_s: float) -> bool:
    """Whether all that was asked for has been done within so many seconds. Raises OSError."""
    deadline = time.monotonic() + timeout_s
    while (folder / _REQUESTS).stat().st_size:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def answer(folder: Path, do: Callable[[set[str]], object]) -> None:
    """Do what has been asked for since the last call. What raises is asked for again. Raises OSError."""
    with _open(folder / _REQUESTS) as descriptor:
        if not os.fstat(descriptor).st_size:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        lines = os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace").split()
        do(set(lines))
        os.ftruncate(descriptor, 0)


def _is_heard(folder: Path) -> bool:
    try:
        with _open(folder / _LISTENER, os.O_RDWR) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others who ask are no listener
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


@contextmanager
def _open(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
