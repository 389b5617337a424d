"""Ctrl-C at the worst moments, for a process of a test's own."""

from __future__ import annotations

import signal
import sys
import threading
import time

STILL_S = 0.2


def interrupt_soon() -> None:
    """Just before the main thread's next call that blocks: as if it came then. Another thread takes the signal, and the
    main one, which is to act on it, is in the call already."""
    threading.Thread(target=interrupt_when_blocked, daemon=True).start()


def interrupt_when_blocked() -> None:
    """Waits until the main thread has stood at one place for a while, in a call that does not end: there it does not
    look for signals."""
    since, before = time.monotonic(), None
    while time.monotonic() < since + STILL_S:
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        if (place := (id(frame), frame.f_lasti)) != before:
            since, before = time.monotonic(), place
        time.sleep(STILL_S / 10)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


def raise_in_vain() -> None:
    """In a destructor, out of which nothing can be raised."""
    _Unlucky()


class _Unlucky:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)
