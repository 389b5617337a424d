"""The team: every task of a pass is carried out once, stage after stage, and nobody is needed for it but the caller."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from inference.kernels.jit.kernel_cache import kernel
from inference.kernels.jit.team import STOP, Team, add_atomic, done, enter, leave, next_pass, take, wait
from inference.kernels.jit.vectors import get_i64, set_i64
from tests.patience import PATIENCE_S

NUM_STAGES, NUM_TASKS = 50, 7
COUNTERS, OUT = 0, 16 * NUM_STAGES  # bytes in each half
HALF = OUT + 8 * NUM_STAGES * NUM_TASKS


@kernel
def run(memory: int) -> None:
    """Each task adds to its own number; it counts as wrong when a task of the stage before is missing."""
    for stage in range(NUM_STAGES):
        task = take(memory + COUNTERS, stage, NUM_TASKS)
        while task >= 0:
            is_ready = True
            for before in range(NUM_TASKS):
                if stage > 0:
                    is_ready = is_ready and get_i64(memory + OUT + 8 * ((stage - 1) * NUM_TASKS + before)) == 1
            place = stage * NUM_TASKS + task
            add_atomic(memory + OUT, place, 1 if is_ready else 1000)
            done(memory + COUNTERS, stage)
            task = take(memory + COUNTERS, stage, NUM_TASKS)
        wait(memory + COUNTERS, stage, NUM_TASKS)


@kernel
def serve(state: int, index: int, seen: int, memory: int) -> int:
    while True:
        number = next_pass(state, index, seen)
        if number in (seen, STOP):
            return number
        seen = number
        if enter(state, number):
            set_i64(memory + 2 * HALF + 8 * index, number)
            run(memory + number % 2 * HALF)
        leave(state, number)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_task_is_done_once_and_after_the_stage_before_it(num_threads: int) -> None:
    memory = np.zeros(2 * HALF // 8 + num_threads, np.int64)
    address = int(memory.ctypes.data)
    team = Team(num_threads, lambda state, index, seen: serve(state, index, seen, address))
    for _ in range(300):
        half = team.prepare()
        memory[half * HALF // 8 : (half + 1) * HALF // 8] = 0
        team.start()
        run(address + half * HALF)
        assert (memory[(half * HALF + OUT) // 8 : (half + 1) * HALF // 8] == 1).all()
    team.close()


def test_threads_sleep_when_there_is_nothing_to_do_and_come_back() -> None:
    memory = np.zeros(2 * HALF // 8 + 1, np.int64)
    address, slept = int(memory.ctypes.data), threading.Semaphore(0)

    def serve_and_tell(state: int, index: int, seen: int) -> int:
        number = serve(state, index, seen, address)
        slept.release()
        return number

    team = Team(2, serve_and_tell)
    for number in range(1, 4):
        assert slept.acquire(timeout=PATIENCE_S)
        memory[team.prepare() * HALF // 8 :][: HALF // 8] = 0
        team.start()
        deadline = time.monotonic() + PATIENCE_S
        while memory[-1] != number:  # the thread itself says that it has come
            assert time.monotonic() < deadline
        run(address + number % 2 * HALF)
    team.close()
    assert not any(thread.name.startswith("kernels-") and thread.is_alive() for thread in team._threads)
