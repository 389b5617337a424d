"""One killable child process for work on hostile input: a job, its JSON payload, a deadline, a JSON answer.

Knows nothing about the jobs: those are registered in chatapp.jail_worker, which runs in the child.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class JailError(Exception):
    """The job gave no answer. `reason`: timeout, died, failed (the job raised), unavailable (no child), busy (no turn)."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class JailStats:
    """Counters since the process started."""

    num_calls: int
    num_timeouts: int
    num_kills: int
    num_spawns: int
    num_failures: int
    is_running: bool


class Jail:
    """The child and the way to it. Thread-safe: one job at a time, and no caller waits longer than its bounds."""

    def call(self, job: str, payload: Any, deadline_s: float) -> Any:
        """The answer of the job. Raises JailError; a child that is late is killed."""
        raise NotImplementedError

    def stats(self) -> JailStats:
        raise NotImplementedError

    def close(self) -> None:
        """Kill the child and remove its folder. A later call starts a new one."""
        raise NotImplementedError
