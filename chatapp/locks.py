"""Which processes of this data folder run turns: one server, and beside it any number of `manage.py ask`.

Locks of the kernel on files, so a process that is killed holds none. They say whether open turns in the database are
somebody's or left over from a crash.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from chatapp.services import turns


class ServerRuns(Exception):
    """Another server runs on the same data folder."""

    def __init__(self, folder: Path, process_id: str) -> None:
        self.folder = folder
        self.process_id = process_id
        super().__init__(f"a server already runs on the data folder {folder} (process {process_id or 'unknown'})")


@contextmanager
def only_server(folder: Path) -> Iterator[None]:
    """For the one server of a data folder. Raises ServerRuns."""
    with _open(folder / "server.lock") as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServerRuns(folder, os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield


@contextmanager
def beside_server(folder: Path) -> Iterator[None]:
    """For an `ask`, around all its work: as long as it lives, a server leaves open turns that are not its own alone."""
    with _open(folder / "ask.lock") as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def recover_abandoned(folder: Path, message_id: UUID) -> bool:
    """For the server: mark an open turn that is not its own as interrupted. False while an `ask` may be writing it."""
    with _open(folder / "ask.lock") as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        turns.recover_interrupted(message_id=message_id)
        return True


@contextmanager
def turns_allowed(folder: Path) -> Iterator[int]:
    """For every process that runs turns, before its first. Gives the number of turns that a crash had left open.

    Alone, it marks those as interrupted. Beside another process it must not: open turns may be that one's.
    """
    with _open(folder / "turns.lock") as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            num_recovered = 0
        else:
            num_recovered = turns.recover_interrupted()
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield num_recovered


@contextmanager
def _open(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
