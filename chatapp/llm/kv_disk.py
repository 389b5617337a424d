"""Cached KV in the data folder: what is there, and forgetting what has been deleted, wherever it is.

It lies in the memory of an engine, on its way to the disk, and in files of models that may not be loaded, or not in
this process. A purge reaches all of them, and never makes anybody wait who has only deleted something.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from django.conf import settings

from chatapp import kv_requests
from chatapp.llm.host import handle
from inference.kvcache import kv_folder
from inference.kvcache.kv_folder import FileSummary, FolderSummary

logger = logging.getLogger(__name__)

SETTLE_S = 10.0  # for the engine to come round to it: it looks up between two steps

_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kv purge")  # what it has begun, a process ends
_waiting: dict[Path, set[str]] = {}  # by folder
_lock = threading.Lock()  # over _waiting


def kv_root() -> Path:
    """Where the files are."""
    return Path(settings.RECOLLECT_DATA) / "kv"


def purge(conversation_id: UUID) -> None:
    """Forget the cached KV of a conversation: an engine of this process before its next step, all else soon after.

    Returns at once, and may be called anywhere. When the process is killed before it is done, the next server finds
    what is left (see kv_keeper).
    """
    tag = str(conversation_id)
    if handle.worker is not None:
        handle.worker.purge(tag)
    root = kv_root()
    with _lock:
        is_first = root not in _waiting
        _waiting.setdefault(root, set()).add(tag)
    if is_first:
        _executor.submit(_purge_waiting, root)


def purge_now(conversation_ids: Collection[str] | None) -> tuple[int, bool]:
    """The same for several, or for everything (None), done when this returns. Blocking. Raises OSError.

    Returns how many files are gone, and whether the server, which is another process, has been asked as well: see
    wait_for_server().
    """
    worker = handle.worker
    if worker is not None:
        if conversation_ids is None:
            worker.clear_cache()
        for tag in conversation_ids or ():
            worker.purge(tag)
    return _purge_elsewhere(kv_root(), conversation_ids)


@contextmanager
def taking_requests() -> Iterator[None]:
    """For the server: other processes ask it to forget, and answer_requests() does so. Raises OSError."""
    with kv_requests.listening(settings.RECOLLECT_DATA):
        handle.is_server = True
        try:
            yield
        finally:
            handle.is_server = False


def answer_requests() -> None:
    """Forget what other processes have asked for since the last call. Blocking. Raises OSError."""
    everything = kv_requests.EVERYTHING
    kv_requests.answer(settings.RECOLLECT_DATA, lambda names: purge_now(None if everything in names else names))


def wait_for_server(timeout_s: float) -> bool:
    """Whether the server has done within so many seconds what it was asked for. Blocking. Raises OSError."""
    return kv_requests.wait(settings.RECOLLECT_DATA, timeout_s)


def wait_for_purges() -> None:
    """Until what purge() was asked for has been done. Blocking."""
    _executor.submit(lambda: None).result()


def kv_folders() -> list[FolderSummary]:
    """What is there, by model, the one used last at the end. Blocking. Raises OSError."""
    return kv_folder.survey(kv_root()) if kv_root().is_dir() else []


def kv_files(*, is_whole: bool = False) -> Iterator[FileSummary]:
    """Every file, with the conversations it belongs to; is_whole: read and checked to the last byte. Blocking. Raises
    OSError."""
    return kv_folder.files(kv_root(), is_whole=is_whole)


def _purge_waiting(root: Path) -> None:
    """On the thread: all that has been asked for until now."""
    with _lock:
        tags = _waiting.pop(root)
    try:
        _purge_elsewhere(root, tags)
    except OSError as error:
        logger.error("KV files of %d conversations could not be removed: %s", len(tags), error)


def _purge_elsewhere(root: Path, tags: Collection[str] | None) -> tuple[int, bool]:
    """In folders that no engine of this process uses, and in the server's memory. An engine of ours comes first: a
    model that leaves in this very moment writes what it has."""
    if handle.worker is not None and not handle.worker.settle(SETTLE_S):
        logger.warning("the engine is busy: KV files of what has been deleted may appear until it comes round to it")
    names = [kv_requests.EVERYTHING] if tags is None else tags
    is_asked = not handle.is_server and kv_requests.ask(settings.RECOLLECT_DATA, names)  # first: the rest may fail
    num_removed = kv_folder.purge(root, tags)
    if num_removed:
        logger.info("removed %d KV files of %s", num_removed, "all" if tags is None else f"{len(tags)} conversations")
    return num_removed, is_asked
