"""KVKeeper: a thread of the server that forgets cached KV on behalf of others.

Of other processes, which ask for it (kv_requests); and of conversations that are gone and left KV behind, whatever the
reason: a process that was killed between its commit and its purge, rows that were deleted on another machine or past
the services, a backup that was put back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

from django.db import close_old_connections

from chatapp import llm, selectors
from chatapp.errors import StorageUnavailable

logger = logging.getLogger(__name__)

POLL_S = 1.0
SWEEP_S = 600.0


def sweep() -> int:
    """Forget cached KV of conversations that are not in the database; returns of how many. Blocking.

    What is in the files comes first: a conversation is in the database before it has KV. Raises OSError,
    StorageUnavailable.
    """
    tags = {tag for file in llm.kv_files() for tag in file.tags}
    ids = {tag: conversation_id for tag in tags if (conversation_id := _uuid_of(tag)) is not None}
    known = selectors.conversation_owners(ids.values())
    gone = {tag for tag in tags if ids.get(tag) not in known}
    if gone:
        llm.purge_now(gone)
        logger.info("KV of %d conversations that are no longer there has been removed", len(gone))
    return len(gone)


@contextmanager
def running() -> Iterator[None]:
    """Runs the thread beside the block."""
    is_over = threading.Event()
    thread = threading.Thread(target=_run, args=(is_over,), name="kv keeper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(POLL_S)


def _run(is_over: threading.Event) -> None:
    """The life of the thread."""
    try:
        with llm.taking_requests():
            sweep_at = 0.0
            while not is_over.is_set():
                _try(llm.answer_requests)
                if time.monotonic() >= sweep_at:
                    _try(sweep)
                    sweep_at = time.monotonic() + SWEEP_S
                is_over.wait(POLL_S)
    except OSError as error:
        logger.error("the folder of KV files cannot be used: %s", error)


def _try(work: Callable[[], object]) -> None:
    """It is tried again later: nobody waits for it."""
    close_old_connections()
    try:
        work()
    except (OSError, StorageUnavailable) as error:
        logger.warning("KV of deleted conversations is not removed yet: %s", error)
    finally:
        close_old_connections()


def _uuid_of(tag: str) -> UUID | None:
    with suppress(ValueError):
        return UUID(tag)
    return None
