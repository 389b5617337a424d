"""The stages of matrix products: which thread computes which panels of a weight."""

from __future__ import annotations

from inference.kernels.jit.kernel_cache import kernel
from inference.kernels.jit.linear import MATRIX, OFFSETS, linear
from inference.kernels.jit.records import Record
from inference.kernels.jit.team import done, take, wait
from inference.kernels.jit.vectors import get_i64

MATRIX_BYTES = MATRIX.itemsize
NUM_PANELS_AT = OFFSETS["num_panels"]
NUM_ROWS_AT = OFFSETS["num_rows"]
TASKS_PER_THREAD = 4
TILE_PANELS = 6  # whole tiles, two or three panels wide, fit a multiple of so many
MAX_PORTION = 66  # panels of one task: a tenth of a millisecond


@kernel
def portion(total: int, num_threads: int) -> int:
    """Panels of one task, so that threads finish at about the same time."""
    if num_threads == 1:
        return MAX_PORTION
    share = total // (num_threads * TASKS_PER_THREAD)
    return min(MAX_PORTION, max(1, share // TILE_PANELS) * TILE_PANELS)


@kernel
def portion_of(task: int, num_tasks: int, num_threads: int) -> int:
    """Which portion a task is, 0 .. num_tasks - 1: threads that take turns find theirs one behind the other in memory.

    What a product asks for at the end of a portion is then what the thread reads next.
    """
    share = num_tasks // num_threads
    return task % num_threads * share + task // num_threads if task < share * num_threads else task


@kernel
def num_panels(matrix: int) -> int:
    return get_i64(matrix + NUM_PANELS_AT)


@kernel
def product(
    p: Record,
    matrices: int,
    count: int,
    num_rows: int,
    out: int,
    out_bytes: int,
    thread: int,
    counters: int,
    stage: int,
) -> int:
    """out = weights @ input for the first num_rows rows.

    matrices: address of `count` MATRIX records, whose rows come one after another: parts of a weight in several forms.
    """
    total = 0
    for index in range(count):
        total += num_panels(matrices + index * MATRIX_BYTES)
    step = portion(total, p.num_threads)
    num_tasks = 0
    for index in range(count):
        num_tasks += -(-num_panels(matrices + index * MATRIX_BYTES) // step)
    task = take(counters, stage, num_tasks)
    while task >= 0:
        matrix, rest, target = matrices, portion_of(task, num_tasks, p.num_threads), out
        while rest >= -(-num_panels(matrix) // step):
            rest -= -(-num_panels(matrix) // step)
            target += 4 * get_i64(matrix + NUM_ROWS_AT)
            matrix += MATRIX_BYTES
        first, end = rest * step, min((rest + 1) * step, num_panels(matrix))
        scratch, x_stride = p.scratch + thread * p.scratch_bytes, p.input_bytes // 4
        rows, width = p.input, out_bytes // 4
        linear(matrix, rows, x_stride, p.quantised, p.tiles, scratch, 0, num_rows, target, width, first, end)
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return stage + 1
