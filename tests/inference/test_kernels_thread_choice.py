"""Small steps run on as many threads as is faster at the time."""

from __future__ import annotations

from inference.kernels.thread_choice import MAX_INTERVAL, MIN_INTERVAL, ThreadChoice

IDLE = {2: 0.03, 1: 0.05}  # seconds of a step by number of threads
BUSY = {2: 0.4, 1: 0.15}


def run(choice: ThreadChoice, num_steps: int, seconds: dict[int, float]) -> list[int]:
    """The thread counts of so many steps that take as long as `seconds` says."""
    used = []
    for _ in range(num_steps):
        used.append(choice.num_threads)
        choice.record(seconds[used[-1]])
    return used


def test_idle_cores_are_used_and_trials_grow_rare() -> None:
    choice = ThreadChoice(2)
    run(choice, 2 * MAX_INTERVAL, IDLE)
    assert run(choice, 10 * (MAX_INTERVAL + 1), IDLE).count(1) == 10


def test_busy_cores_are_noticed_within_a_few_steps() -> None:
    assert run(ThreadChoice(2), 40, BUSY)[MIN_INTERVAL:].count(2) <= 3


def test_a_change_is_followed_both_ways() -> None:
    choice = ThreadChoice(2)
    run(choice, 3 * MAX_INTERVAL, IDLE)
    assert run(choice, 3 * MAX_INTERVAL, BUSY)[-MIN_INTERVAL:] == [1] * MIN_INTERVAL
    assert run(choice, 3 * MAX_INTERVAL, IDLE)[-MIN_INTERVAL:] == [2] * MIN_INTERVAL


def test_a_small_difference_changes_nothing() -> None:
    used = run(ThreadChoice(2), 4 * MAX_INTERVAL, {2: 0.050, 1: 0.045})
    assert used.count(1) < 10
    assert used[-2 * MIN_INTERVAL :].count(2) >= 2 * MIN_INTERVAL - 1
