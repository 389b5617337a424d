"""Small steps run on as many threads as is faster at the time."""

from __future__ import annotations

from inference.kernels.thread_choice import TRIAL_INTERVAL, ThreadChoice


def run(choice: ThreadChoice, num_steps: int, seconds: dict[int, float]) -> list[int]:
    """The thread counts of so many steps that take as long as `seconds` says."""
    used = []
    for _ in range(num_steps):
        used.append(choice.num_threads)
        choice.record(seconds[used[-1]])
    return used


def test_idle_cores_are_used() -> None:
    used = run(ThreadChoice(2), 10 * TRIAL_INTERVAL, {2: 0.03, 1: 0.05})
    assert used.count(1) == 10


def test_busy_cores_are_left_alone_and_taken_up_again() -> None:
    choice = ThreadChoice(2)
    run(choice, 2 * TRIAL_INTERVAL, {2: 0.03, 1: 0.05})
    busy = run(choice, 4 * TRIAL_INTERVAL, {2: 0.4, 1: 0.15})
    assert busy[: TRIAL_INTERVAL - 1] == [2] * (TRIAL_INTERVAL - 1)
    assert busy[TRIAL_INTERVAL:].count(2) == 3
    idle = run(choice, 2 * TRIAL_INTERVAL, {2: 0.03, 1: 0.05})
    assert idle[TRIAL_INTERVAL:].count(2) == TRIAL_INTERVAL - 1


def test_a_small_difference_changes_nothing() -> None:
    used = run(ThreadChoice(2), 4 * TRIAL_INTERVAL, {2: 0.050, 1: 0.045})
    assert used.count(1) == 4
