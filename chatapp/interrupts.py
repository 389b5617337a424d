"""Ctrl-C that is not lost, however unluckily it comes: for commands, whose main thread it has to end.

Python notes the signal, and the main thread raises KeyboardInterrupt when it next looks. That is lost in two ways. It
has just looked, and goes into a call that blocks, such as a read from a network: it looks again when that has ended. Or
it looks inside a destructor, a weakref's callback or a function that C calls: what is raised there goes nowhere. So a
thread knocks until the main thread has looked, and what was raised in vain is raised again.

Begins before Django is imported, and so imports next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

EXIT_INTERRUPTED = 130  # what a shell shows for Ctrl-C
KNOCK_S = 0.05
# Nobody else's, and without a handler it does nothing. Above SIGINT: of those that wait, Python runs lower ones first,
# so that a knock is answered after what it was for.
_KNOCK = signal.SIGURG
_OWED = 0  # among the numbers of signals, which begin at 1


@contextmanager
def heard() -> Iterator[None]:
    """In the block no Ctrl-C for the main thread is lost. Does nothing on other threads, and where it is ignored, as
    for `command &` in a script, or means something else already."""
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    listener = _Listener()
    listener.begin()
    try:
        yield
    finally:
        listener.end()


class _Listener:
    """Python itself writes a byte for each signal into a pipe, at once, whatever the main thread is at.

    Not while an event loop has taken that over, as `ask` and `serve` let theirs do: then it is the loop that looks.
    """

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._ear, self._mouth = os.pipe()
        os.set_blocking(self._mouth, False)  # as Python wants it
        self._has_looked = threading.Event()
        self._is_owed = False  # a KeyboardInterrupt that was raised in vain
        self._thread = threading.Thread(target=self._listen, name="interrupts", daemon=True)

    def begin(self) -> None:
        self._hook, sys.unraisablehook = sys.unraisablehook, self._take_unraisable
        self._former, self._fd = signal.signal(_KNOCK, self._look), signal.set_wakeup_fd(self._mouth)
        self._thread.start()

    def end(self) -> None:
        signal.set_wakeup_fd(self._fd)
        sys.unraisablehook = self._hook
        os.close(self._mouth)
        while self._thread.is_alive():  # its last knocks are answered, too
            self._thread.join(KNOCK_S)
        os.close(self._ear)
        signal.signal(_KNOCK, self._former)

    def _listen(self) -> None:
        """The life of the thread."""
        while numbers := os.read(self._ear, 64):
            if signal.SIGINT in numbers or _OWED in numbers:
                # Twice: the first answer may be one that was on its way before the signal came.
                for _ in range(2):
                    self._has_looked.clear()
                    while not self._has_looked.is_set():
                        signal.pthread_kill(self._main, _KNOCK)  # any call that blocks ends, and goes on after a look
                        self._has_looked.wait(KNOCK_S)

    def _look(self, number: int, frame: FrameType | None) -> None:
        """The main thread answers a knock."""
        if self._is_owed:
            if _is_inside(frame, self._take_unraisable.__code__):  # what is raised here would be lost again
                return
            self._is_owed = False
            self._has_looked.set()
            signal.raise_signal(signal.SIGINT)
        self._has_looked.set()

    def _take_unraisable(self, unraisable: Any) -> None:
        """Called where an exception has nowhere to go."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._is_owed = True
            os.write(self._mouth, bytes([_OWED]))
        else:
            self._hook(unraisable)


def _is_inside(frame: FrameType | None, code: Any) -> bool:
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None
