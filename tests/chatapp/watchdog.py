"""How long the interpreter stood still: what hostile text must not bring about."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# 30 ms was measured; a text that holds the interpreter does so for seconds.
MAX_LAG_S = 1.0


@contextmanager
def going_on() -> Iterator[None]:
    """Fails when a thread that only wants to sleep for 2 ms stood still during the body.

    Counted in the time that this process computes: what others do to the machine is no fault of the text.
    """
    lags = [0.0]
    done = threading.Event()

    def watch() -> None:
        last = time.process_time()
        while not done.wait(0.002):
            now = time.process_time()
            lags.append(now - last)
            last = now

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert max(lags) < MAX_LAG_S
