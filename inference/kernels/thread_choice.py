"""On how many BLAS threads a small step runs: all of them, or one while the cores are busy with something else.

A product on two threads ends when the slower thread ends, and OpenBLAS spins while it waits. On idle cores two threads
decode 1.6 times as fast as one; with another process on the same cores they wait for its time slices, a hundred times
per token, and are 2.5 to 3.5 times slower. The bits are the same (see call_plan), so this may be found out by trying.
"""

from __future__ import annotations

TRIAL_INTERVAL = 32  # steps; every so often one step runs the other way
MIN_GAIN = 0.8  # a trial must take less than this share of the usual time
SMOOTHING = 0.2  # weight of the newest step in the usual time


class ThreadChoice:
    """Keeps to what was faster lately. Ask num_threads before each step, report its duration after it."""

    def __init__(self, num_threads: int) -> None:
        self._options = (num_threads, 1)
        self._usual_s = 0.0  # 0: not known yet
        self._num_steps = 0

    @property
    def num_threads(self) -> int:
        """For the step to come."""
        return self._options[self._is_trial]

    def record(self, seconds: float) -> None:
        """Takes the duration of the step that num_threads was asked for."""
        if not self._is_trial:
            self._usual_s += SMOOTHING * (seconds - self._usual_s) if self._usual_s else seconds
        elif seconds < MIN_GAIN * self._usual_s:
            self._options = (self._options[1], self._options[0])
            self._usual_s = seconds
        self._num_steps += 1

    @property
    def _is_trial(self) -> bool:
        return self._num_steps % TRIAL_INTERVAL == TRIAL_INTERVAL - 1
