"""Jobs that nobody waits for: newest first, one for each key, few at a time, and never many that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from chatapp.turn import spare_time
from chatapp.turn.spare_time import MAX_RUNNING, MAX_WAITING, MAX_WAITING_OF_PERSON, SpareTime
from tests.chatapp.conftest import until


class Jobs:
    """Jobs that go on until they are let."""

    def __init__(self) -> None:
        self.begun: list[object] = []
        self.cancelled: list[object] = []
        self._gates: dict[object, asyncio.Event] = {}

    def job(self, name: object) -> Callable[[], Coroutine[Any, Any, None]]:
        return partial(self._run, name)

    def let(self, name: object) -> None:
        self._gates[name].set()

    async def _run(self, name: object) -> None:
        self.begun.append(name)
        self._gates[name] = asyncio.Event()
        try:
            await self._gates[name].wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise


async def test_few_run_at_a_time_and_the_newest_goes_first() -> None:
    jobs, spare = Jobs(), SpareTime()
    for number in range(5):
        spare.put(number, 1, jobs.job(number))
    await until(lambda: len(jobs.begun) == MAX_RUNNING)
    assert spare.num_waiting == 5 - MAX_RUNNING
    while not spare.is_idle:
        jobs.let(jobs.begun[-1])
        begun = len(jobs.begun)
        await until(lambda begun=begun: len(jobs.begun) > begun or spare.num_waiting == 0)  # type: ignore[misc]
        if spare.num_waiting == 0:
            for name in jobs.begun:
                jobs.let(name)
            await until(lambda: spare.is_idle)
    assert jobs.begun == [0, 1, 4, 3, 2]
    assert jobs.cancelled == []


async def test_another_job_takes_the_place_of_the_one_with_its_key() -> None:
    jobs, spare = Jobs(), SpareTime()
    spare.put("a", 1, jobs.job("first"))
    await until(lambda: jobs.begun == ["first"])
    spare.put("a", 1, jobs.job("second"))
    await until(lambda: jobs.begun == ["first", "second"])
    assert jobs.cancelled == ["first"]
    spare.drop("a")
    await until(lambda: jobs.cancelled == ["first", "second"])
    assert spare.is_idle
    spare.drop("a")  # a second time does nothing


async def test_nobodys_job_takes_the_place_of_somebody_elses() -> None:
    jobs, spare = Jobs(), SpareTime()
    spare.put("a", 1, jobs.job("mine"))
    spare.put("a", 2, jobs.job("theirs"))
    await until(lambda: len(jobs.begun) == 2)
    spare.drop("a", 2)
    await until(lambda: jobs.cancelled == ["theirs"])
    assert "a" in spare
    spare.put("a", 2, jobs.job("again"))
    await until(lambda: len(jobs.begun) == 3)
    spare.drop("a")
    await until(lambda: jobs.cancelled == ["theirs", "mine", "again"])
    assert spare.is_idle


async def test_one_person_does_not_fill_the_list_and_all_together_do_not_fill_memory() -> None:
    jobs, spare = Jobs(), SpareTime()
    for number in range(50):
        spare.put((1, number), 1, jobs.job((1, number)), after_s=60)
    assert spare.num_waiting == MAX_WAITING_OF_PERSON
    assert (1, 49) in spare
    assert (1, 0) not in spare
    for person in range(2, 200):
        spare.put(person, person, jobs.job(person), after_s=60)
    assert spare.num_waiting == MAX_WAITING
    assert 199 in spare
    spare.drop_all()
    assert spare.is_idle


async def test_what_is_dropped_within_its_pause_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, spare = Jobs(), SpareTime()
    for number in range(30):  # as somebody does who leafs through a list
        spare.put(number, 1, jobs.job(number), after_s=0.01)
        if number < 29:
            spare.drop(number)
    await until(lambda: jobs.begun == [29])
    jobs.let(29)
    await until(lambda: spare.is_idle)


async def test_a_job_that_fails_makes_room_for_the_next() -> None:
    jobs, spare = Jobs(), SpareTime()

    async def fail() -> None:
        raise ZeroDivisionError

    for number in range(spare_time.MAX_RUNNING):
        spare.put(number, 1, fail)
    failing = [job.task for job in spare._jobs.values() if job.task]
    spare.put("next", 1, jobs.job("next"))
    await until(lambda: jobs.begun == ["next"])
    assert [type(task.exception()) for task in failing] == [ZeroDivisionError] * MAX_RUNNING
    jobs.let("next")
