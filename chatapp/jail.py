"""One killable child process for work on hostile input: a job, its JSON payload, a deadline, JSON answers.

A regular expression that runs for ever holds the interpreter: no timeout in a thread can end it, only a kill can.
Knows nothing about the jobs: they are registered in chatapp.jail_worker, which runs in the child. Answers are JSON,
never pickle.

The child ends with its parent: its stdin ends, or, in a job that never comes back, its processor time does.
(PDEATHSIG would be sent when the *thread* that started the child ends, and callers are threads that come and go.)
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

START_S = 10.0  # interpreter and imports: 0.3 s on an idle machine
RETRY_S = 10.0  # after a child that did not start
WAIT_S = 5.0  # for the calls of other threads
LOG_EVERY_S = 60.0
KILL_EVERY_S = 0.05  # while close() waits for a call to let go
MAX_FRAME_BYTES = 8 * 1024 * 1024

_ROOT = Path(__file__).resolve().parent.parent
_COUNTERS = {"timeout": "timeouts", "died": "deaths", "failed": "failures", "unavailable": "refused"}
_BOOT = "import sys, importlib; sys.path.insert(0, sys.argv[1]); importlib.import_module(sys.argv[2]).main()"


class JailError(Exception):
    """The job gave no answer. `reason`: timeout, died, failed (the job raised), unavailable (no child), busy."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job has answered, and why it has not answered more (None: it is complete)."""

    values: tuple[Any, ...]
    error: JailError | None


@dataclass(frozen=True, slots=True)
class JailStats:
    """Counters since the process started. A kill ends a child that runs; a death is a child that ended or broke off."""

    num_calls: int
    num_timeouts: int
    num_kills: int
    num_deaths: int
    num_spawns: int
    num_failures: int
    num_refused: int
    is_running: bool


class Jail:
    """The child and the way to it; `worker` is the module whose main() runs there.

    Thread-safe: one job at a time, others wait for at most WAIT_S. A call takes at most WAIT_S + START_S + its own
    time.
    """

    def __init__(self, worker: str = "chatapp.jail_worker", *, wait_s: float = WAIT_S) -> None:
        self._worker = worker
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._no_start_before = 0.0
        self._no_log_before = 0.0
        self._counts_lock = threading.Lock()
        self._counts = dict.fromkeys(("calls", "timeouts", "kills", "deaths", "spawns", "failures", "refused"), 0)

    def call(self, job: str, payload: Any, deadline_s: float) -> Any:
        """The one answer of a job that gives one. Raises JailError; a child that is late is killed."""
        outcome = self.collect(job, payload, deadline_s=deadline_s, total_s=deadline_s)
        if outcome.error is not None:
            raise outcome.error
        if len(outcome.values) != 1:
            raise JailError("failed", f"job {job} gave {len(outcome.values)} answers instead of one")
        return outcome.values[0]

    def collect(self, job: str, payload: Any, *, deadline_s: float, total_s: float) -> Outcome:
        """All answers of a job: each within deadline_s of the one before, all within total_s. Raises no JailError."""
        self._count("calls")
        if not self._lock.acquire(timeout=self._wait_s):
            self._count("refused")
            return Outcome((), JailError("busy", f"the jail was taken for {self._wait_s} s"))
        values: list[Any] = []
        try:
            child = self._ready_child()
            self._converse(child, {"job": job, "payload": payload}, values, deadline_s, time.monotonic() + total_s)
        except JailError as error:
            self._count(_COUNTERS[error.reason])
            if error.reason != "unavailable":  # which _refuse_starts has logged
                logger.warning("jail: job %s broke off after %d answers: %s", job, len(values), error)
            if error.reason in ("timeout", "died"):
                self._replace()
            return Outcome(tuple(values), error)
        except BaseException:
            self._discard()  # in the middle of an exchange: the next caller must not read this one's answers
            raise
        finally:
            self._lock.release()
        return Outcome(tuple(values), None)

    def stats(self) -> JailStats:
        child = self._child
        return JailStats(
            **{f"num_{name}": count for name, count in self._counts.items()},
            is_running=child is not None and child.process.poll() is None,
        )

    def close(self) -> None:
        """Kill the child, also in the middle of a job. A later call starts a new one."""
        while not self._lock.acquire(timeout=KILL_EVERY_S):
            # Whoever talks to the child sees it die and lets go; pipes are closed under the lock only. More than once:
            # a call that found the first child dead may have started another.
            child = self._child
            if child is not None:
                child.process.kill()
        try:
            self._discard()
        finally:
            self._lock.release()

    @staticmethod
    def _converse(child: _Child, request: Any, values: list[Any], deadline_s: float, until: float) -> None:
        child.send(request, min(time.monotonic() + deadline_s, until))
        while True:
            frame = child.receive(min(time.monotonic() + deadline_s, until))
            if "value" in frame:
                values.append(frame["value"])
            elif "error" in frame:
                raise JailError("failed", f"job {request['job']} raised {frame['error']}")
            else:
                return

    def _ready_child(self) -> _Child:
        """The child, started and ready. Raises JailError("unavailable")."""
        if self._child is not None and not (self._child.is_ours() and self._child.process.poll() is None):
            self._discard()  # it died while idle, or we are a fork and it is our parent's
        if self._child is None:
            self._start()
        if self._child is None:
            raise JailError("unavailable", "no child process could be started")
        if not self._child.is_ready:
            try:
                self._child.receive(time.monotonic() + START_S)
                self._child.is_ready = True
            except JailError as error:
                self._discard()
                self._refuse_starts(f"child process did not start: {error}")
                raise JailError("unavailable", str(error)) from error
        return self._child

    def _start(self) -> None:
        """Start a child, without waiting until it is ready; leaves none where that fails or has just failed."""
        if time.monotonic() < self._no_start_before:
            return
        try:
            self._child = _Child(self._worker)
            self._count("spawns")
        except OSError as error:
            self._refuse_starts(f"child process cannot be started: {error}")

    def _refuse_starts(self, message: str) -> None:
        now = time.monotonic()
        self._no_start_before = now + RETRY_S
        if now >= self._no_log_before:
            self._no_log_before = now + LOG_EVERY_S
            logger.error("jail: %s; text is shown plain until it can", message)

    def _replace(self) -> None:
        """A new child at once: it gets ready while the caller goes on."""
        self._discard()
        self._start()

    def _discard(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            if child.is_ours() and child.process.poll() is None:
                self._count("kills")
            child.end()

    def _count(self, name: str) -> None:
        with self._counts_lock:
            self._counts[name] += 1


class _Child:
    """One process, its pipes and its empty folder. Ended by end(), at the latest when this process exits."""

    def __init__(self, worker: str) -> None:
        """Raises OSError."""
        folder = tempfile.TemporaryDirectory(prefix="recollect-jail-")
        try:
            # A session of its own: Ctrl-C in a terminal is for the server, which still needs the jail while it drains.
            self.process = subprocess.Popen(  # noqa: S603  our own interpreter and module
                [sys.executable, "-I", "-c", _BOOT, str(_ROOT), worker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None,  # tells why it cannot start; serve() closes it before the first job
                cwd=folder.name,
                env={},
                bufsize=0,
                start_new_session=True,
            )
        except OSError:
            folder.cleanup()
            raise
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin = self.process.stdin.fileno()
        self._stdout = self.process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._pid = os.getpid()
        self._received = bytearray()
        self.is_ready = False
        self.end = weakref.finalize(self, _end_child, self.process, folder, self._pid)

    def is_ours(self) -> bool:
        return self._pid == os.getpid()

    def send(self, frame: Any, until: float) -> None:
        """Raises JailError."""
        data = json.dumps(frame).encode()
        left = memoryview(struct.pack("!I", len(data)) + data)
        while left:
            _wait(self._stdin, select.POLLOUT, until)
            try:
                left = left[os.write(self._stdin, left) :]
            except OSError as error:
                raise JailError("died", "the child closed its pipe") from error

    def receive(self, until: float) -> dict[str, Any]:
        """The next frame. Raises JailError."""
        (num_bytes,) = struct.unpack("!I", self._take(4, until))
        if num_bytes > MAX_FRAME_BYTES:
            raise JailError("died", f"the child announced {num_bytes} bytes")
        try:
            frame = json.loads(self._take(num_bytes, until))
        except ValueError as error:
            raise JailError("died", "the child wrote something that is not JSON") from error
        if not isinstance(frame, dict):
            raise JailError("died", "the child wrote something that is not a frame")
        return frame

    def _take(self, num_bytes: int, until: float) -> bytes:
        while len(self._received) < num_bytes:
            _wait(self._stdout, select.POLLIN, until)
            chunk = os.read(self._stdout, 65_536)
            if not chunk:
                raise JailError("died", "the child ended")
            self._received += chunk
        taken = bytes(self._received[:num_bytes])
        del self._received[:num_bytes]
        return taken


def _wait(fd: int, event: int, until: float) -> None:
    """Until fd is ready. Raises JailError("timeout"). poll, because select knows no descriptor above 1023."""
    poll = select.poll()
    poll.register(fd, event)
    left_s = until - time.monotonic()
    if left_s <= 0 or not poll.poll(math.ceil(left_s * 1000)):
        raise JailError("timeout", "no answer within the deadline")


def _end_child(process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str], pid: int) -> None:
    if pid != os.getpid():
        return  # a fork: not ours to end
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: reaped when it comes out
        process.wait(timeout=5)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    folder.cleanup()


class CircuitBreaker:
    """Which keys have failed too often of late: `max_trips` within `window_s` opens a key for `open_s`. Thread-safe."""

    def __init__(self, *, max_trips: int = 3, window_s: float = 60.0, open_s: float = 600.0) -> None:
        self._max_trips = max_trips
        self._window_s = window_s
        self._open_s = open_s
        self._lock = threading.Lock()
        self._trips: dict[str, deque[float]] = {}
        self._open_until: dict[str, float] = {}

    def trip(self, key: str, now: float) -> None:
        """`key` has failed at `now` (of a monotonic clock)."""
        with self._lock:
            self._trips = {k: trips for k, trips in self._trips.items() if now - trips[-1] < self._window_s}
            trips = self._trips.setdefault(key, deque(maxlen=self._max_trips))
            trips.append(now)
            if len(trips) == self._max_trips and now - trips[0] < self._window_s:
                self._open_until[key] = now + self._open_s
                del self._trips[key]

    def open_keys(self, now: float) -> list[str]:
        with self._lock:
            self._open_until = {key: until for key, until in self._open_until.items() if until > now}
            return sorted(self._open_until)


JAIL = Jail()  # the one child of this process; it starts with the first call
