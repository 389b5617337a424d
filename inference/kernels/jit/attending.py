"""The stages of attention: which thread attends for which rows, kv head and chunk.

With many rows a task is a kv head of a job and walks through all its chunks. With few, one conversation that writes
above all, a task is a single chunk, so that there is work for every thread; what they found is folded together after.
"""

from __future__ import annotations

from inference.kernels.jit.attention import (
    SCRATCH_BYTES,
    attend_chunk,
    begin,
    expect,
    finish,
    fold,
    part_bytes,
    part_rows,
)
from inference.kernels.jit.elementwise import pool_at
from inference.kernels.jit.kernel_cache import entry, kernel
from inference.kernels.jit.records import JOB_FIELDS, Record
from inference.kernels.jit.stages import quantise_input
from inference.kernels.jit.team import done, take, wait
from inference.kernels.jit.vectors import get_i64, set_i64

JOB_BYTES = 8 * len(JOB_FIELDS)
FIRST_ROW, NUM_ROWS, POSITION, TABLE, NUM_CHUNKS, FIRST_TASK, PARTS = range(0, JOB_BYTES, 8)


@entry
def thread_bytes(num_rows: int, dim: int) -> int:
    """Memory of a thread, for jobs of so many rows: scratch, addresses of queries, parts, parts folded together."""
    return SCRATCH_BYTES + part_rows(num_rows) * (8 + 2 * part_bytes(dim))


@kernel
def attend(p: Record, w: Record, layer: int, thread: int, counters: int, stage: int) -> int:
    """Attention of all rows over their contexts, as the input of the output projection."""
    num_tasks = p.num_tasks if p.is_split else p.num_jobs * p.num_kv_heads
    task = take(counters, stage, num_tasks)
    while task >= 0:
        if p.is_split:
            _attend_one(p, w, layer, thread, task)
        else:
            _attend_all(p, w, layer, thread, p.jobs + (p.num_jobs - 1 - task // p.num_kv_heads) * JOB_BYTES, task)
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return _collect(p, thread, counters, stage + 1)


@kernel
def _attend_one(p: Record, w: Record, layer: int, thread: int, task: int) -> None:
    job = _job_of(p, task)
    num_chunks = get_i64(job + NUM_CHUNKS)
    index = task - get_i64(job + FIRST_TASK)
    rows = part_rows(get_i64(job + NUM_ROWS) * (p.num_heads // p.num_kv_heads))
    parts = get_i64(job + PARTS) + index * rows * part_bytes(p.dim)
    _find_queries(p, thread, job, index // num_chunks)
    # The others take those in between, as a rule: a wrong guess costs time, no more.
    _expect(p, layer, thread, task + p.num_threads if task + p.num_threads < p.num_tasks else task)
    _attend_chunk(p, w, layer, thread, job, index // num_chunks, index % num_chunks, parts)


@kernel
def _job_of(p: Record, task: int) -> int:
    job = p.jobs
    while job + JOB_BYTES < p.jobs + p.num_jobs * JOB_BYTES and task >= get_i64(job + JOB_BYTES + FIRST_TASK):
        job += JOB_BYTES
    return job


@kernel
def _expect(p: Record, layer: int, thread: int, task: int) -> None:
    """Has the keys of that task asked for while the thread attends."""
    job = _job_of(p, task)
    num_chunks = get_i64(job + NUM_CHUNKS)
    index = task - get_i64(job + FIRST_TASK)
    _expect_chunk(p, layer, thread, job, index // num_chunks, index % num_chunks)


@kernel
def _expect_chunk(p: Record, layer: int, thread: int, job: int, head: int, chunk: int) -> None:
    context = get_i64(job + POSITION) + get_i64(job + NUM_ROWS)
    keys = p.keys + pool_at(layer * p.num_kv_heads + head, p.num_slots, p.dim)
    scratch = p.scratch + thread * p.scratch_bytes
    expect(chunk, context, get_i64(job + TABLE), p.block_size, keys, p.dim, scratch)


@kernel
def _attend_all(p: Record, w: Record, layer: int, thread: int, job: int, task: int) -> None:
    """All chunks of a job for one kv head."""
    head, group, size = task % p.num_kv_heads, p.num_heads // p.num_kv_heads, part_bytes(p.dim)
    num_rows = get_i64(job + NUM_ROWS) * group
    parts = p.scratch + thread * p.scratch_bytes + SCRATCH_BYTES + 8 * part_rows(num_rows)
    states = parts + part_rows(num_rows) * size
    _find_queries(p, thread, job, head)
    for row in range(num_rows):
        begin(states + row * size, p.dim)
    first = max(0, get_i64(job + POSITION) - w.window + 1) // 256 if w.window else 0
    for chunk in range(first, get_i64(job + NUM_CHUNKS)):
        _expect_chunk(p, layer, thread, job, head, min(chunk + 1, get_i64(job + NUM_CHUNKS) - 1))
        _attend_chunk(p, w, layer, thread, job, head, chunk, parts)
        for row in range(num_rows):
            fold(states + row * size, parts + row * size, p.dim)
    for row in range(num_rows):
        out = p.input + (get_i64(job + FIRST_ROW) + row // group) * p.input_bytes
        finish(states + row * size, p.dim, out + 4 * (head * group + row % group) * p.dim)


@kernel
def _find_queries(p: Record, thread: int, job: int, head: int) -> None:
    """Addresses of the queries of a job's rows that read a kv head; the last one fills up the tile."""
    group = p.num_heads // p.num_kv_heads
    num_rows = get_i64(job + NUM_ROWS) * group
    places = p.scratch + thread * p.scratch_bytes + SCRATCH_BYTES
    for row in range(part_rows(num_rows)):
        which = min(row, num_rows - 1)
        at = p.qkv + (get_i64(job + FIRST_ROW) + which // group) * p.qkv_bytes
        set_i64(places + 8 * row, at + 4 * (head * group + which % group) * p.dim)


@kernel
def _attend_chunk(p: Record, w: Record, layer: int, thread: int, job: int, head: int, chunk: int, parts: int) -> None:
    group = p.num_heads // p.num_kv_heads
    pool = pool_at(layer * p.num_kv_heads + head, p.num_slots, p.dim)
    scratch = p.scratch + thread * p.scratch_bytes
    attend_chunk(
        scratch + SCRATCH_BYTES,
        get_i64(job + NUM_ROWS) * group,
        group,
        get_i64(job + POSITION),
        w.window,
        chunk,
        get_i64(job + TABLE),
        p.block_size,
        p.keys + pool,
        p.values + pool,
        p.dim,
        scratch,
        parts,
    )


@kernel
def _collect(p: Record, thread: int, counters: int, stage: int) -> int:
    """The next input: what the parts of each row come to, where they are not folded yet."""
    num_tasks = -(-p.num_tokens // p.row_step)
    task = take(counters, stage, num_tasks)
    while task >= 0:
        first, end = task * p.row_step, min((task + 1) * p.row_step, p.num_tokens)
        if p.is_split:
            for row in range(first, end):
                _fold_row(p, thread, row)
        quantise_input(p, p.num_heads * p.dim, first, end)
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return stage + 1


@kernel
def _fold_row(p: Record, thread: int, row: int) -> None:
    job = p.jobs
    while row >= get_i64(job + FIRST_ROW) + get_i64(job + NUM_ROWS):
        job += JOB_BYTES
    group, size = p.num_heads // p.num_kv_heads, part_bytes(p.dim)
    num_chunks, rows = get_i64(job + NUM_CHUNKS), part_rows(get_i64(job + NUM_ROWS) * group)
    state = p.scratch + thread * p.scratch_bytes + SCRATCH_BYTES
    for head in range(p.num_heads):
        begin(state, p.dim)
        part = get_i64(job + PARTS) + head // group * num_chunks * rows * size
        part += ((row - get_i64(job + FIRST_ROW)) * group + head % group) * size
        for _ in range(num_chunks):
            fold(state, part, p.dim)
            part += rows * size
        finish(state, p.dim, p.input + row * p.input_bytes + 4 * head * p.dim)
