"""How a product is shared out among threads."""

from __future__ import annotations

import pytest

from inference.kernels.jit.products import portion_of


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
@pytest.mark.parametrize("num_tasks", [0, 1, 2, 7, 8, 10, 46, 47])
def test_every_portion_is_a_task_and_neighbours_follow_each_other(num_tasks: int, num_threads: int) -> None:
    portions = [portion_of(task, num_tasks, num_threads) for task in range(num_tasks)]
    assert sorted(portions) == list(range(num_tasks))
    whole = num_tasks // num_threads * num_threads
    for thread in range(num_threads):
        mine = portions[thread:whole:num_threads]
        assert mine == list(range(mine[0], mine[0] + len(mine))) if mine else whole == 0
