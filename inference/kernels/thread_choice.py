"""On how many BLAS threads a small step runs: all of them, or one while the cores are busy with something else.

A product on two threads ends when the slower thread ends, and OpenBLAS spins while it waits. On idle cores two threads
decode 1.6 times as fast as one; with another process on the same cores they wait for its time slices, a hundred times
per token, and are 2.5 to 3.5 times slower. The bits are the same (see call_plan), so this may be found out by trying.
"""

from __future__ import annotations

MIN_INTERVAL, MAX_INTERVAL = 4, 64  # steps from one trial of the other way to the next
MIN_GAIN = 0.8  # a trial must take less than this share of the usual time
SMOOTHING = 0.2  # weight of the newest step in the usual time


class ThreadChoice:
    """Keeps to what was faster lately. Ask num_threads before each step, report its duration after it.

    Trials come soon after a change and ever more rarely while nothing changes.
    """

    def __init__(self, num_threads: int) -> None:
        self._current, self._other = num_threads, 1
        self._usual_s = 0.0  # 0: not known yet
        self._interval = MIN_INTERVAL
        self._num_before_trial = MIN_INTERVAL

    @property
    def num_threads(self) -> int:
        """For the step to come."""
        return self._current if self._num_before_trial else self._other

    def record(self, seconds: float) -> None:
        """Takes the duration of the step that num_threads was asked for."""
        if self._num_before_trial:
            self._num_before_trial -= 1
            self._usual_s += SMOOTHING * (seconds - self._usual_s) if self._usual_s else seconds
            return
        if seconds < MIN_GAIN * self._usual_s:
            self._current, self._other = self._other, self._current
            self._usual_s = seconds
            self._interval = MIN_INTERVAL
        else:
            self._interval = min(2 * self._interval, MAX_INTERVAL)
        self._num_before_trial = self._interval
