"""Jobs that nobody waits for: the newest first, few at a time, a bounded number for each person and in all.

One job for each key of a person: another one takes its place, and nobody's that of somebody else. A job may be dropped
at any moment. Runs on the event loop; knows nothing of what the jobs do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any

MAX_RUNNING = 2  # one that waits for a model to be loaded does not hold up the other
MAX_WAITING = 64
MAX_WAITING_OF_PERSON = 6


@dataclass(slots=True, eq=False)
class _Job:
    key: Hashable
    user_id: int
    work: Callable[[], Coroutine[Any, Any, None]]
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None


class SpareTime:
    """put() a job, drop() it. What waits while too much waits is dropped, the oldest first: it was a guess."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[Hashable, int], _Job] = {}  # by key and person, the newest last; with those that run

    def __contains__(self, key: Hashable) -> bool:
        return any(job.key == key for job in self._jobs.values())

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._jobs

    @property
    def num_running(self) -> int:
        return sum(job.task is not None for job in self._jobs.values())

    @property
    def num_waiting(self) -> int:
        return len(self._jobs) - self.num_running

    def put(
        self, key: Hashable, user_id: int, work: Callable[[], Coroutine[Any, Any, None]], *, after_s: float = 0.0
    ) -> None:
        """Run work() in after_s seconds at the earliest, in place of what this person has put under this key before."""
        self.drop(key, user_id)
        job = self._jobs[key, user_id] = _Job(key, user_id, work)
        if after_s:
            job.timer = asyncio.get_running_loop().call_later(after_s, self._ripen, job)
        self._bound(user_id)
        self._fill()

    def drop(self, key: Hashable, user_id: int | None = None) -> None:
        """It is no longer wanted, by this person or by anybody. A job that runs is cancelled."""
        for job in list(self._jobs.values()):
            if job.key == key and user_id in (None, job.user_id):
                self._drop(job)

    def drop_all(self) -> None:
        for job in list(self._jobs.values()):
            self._drop(job)

    def _drop(self, job: _Job) -> None:
        if self._jobs.get((job.key, job.user_id)) is not job:
            return
        del self._jobs[job.key, job.user_id]
        if job.timer is not None:
            job.timer.cancel()
        if job.task is not None:
            job.task.cancel()
            self._fill()

    def _ripen(self, job: _Job) -> None:
        job.timer = None
        self._fill()

    def _bound(self, user_id: int) -> None:
        waiting = [job for job in self._jobs.values() if job.task is None]
        own = [job for job in waiting if job.user_id == user_id]
        for job in (*own[:-MAX_WAITING_OF_PERSON], *waiting[:-MAX_WAITING]):
            self._drop(job)

    def _fill(self) -> None:
        for job in reversed(list(self._jobs.values())):
            if self.num_running >= MAX_RUNNING:
                return
            if job.task is None and job.timer is None:
                job.task = asyncio.create_task(self._run(job))

    async def _run(self, job: _Job) -> None:
        try:
            await job.work()
        finally:
            if self._jobs.get((job.key, job.user_id)) is job:
                del self._jobs[job.key, job.user_id]
            self._fill()
