"""The stages of a feed-forward part that is a choice of experts.

Every (token, chosen expert) is a "pair". Pairs lie by expert, each expert's from a row on that begins a block of the
quantised rows (linear_rows.BLOCK): so the product with an expert is one over consecutive rows, and experts that nobody
chose are not read. What a token's experts return is added up in ascending order of the experts.
"""

from __future__ import annotations

from inference.kernels.jit import elementwise
from inference.kernels.jit.kernel_cache import kernel
from inference.kernels.jit.linear import linear
from inference.kernels.jit.linear_rows import BLOCK
from inference.kernels.jit.products import MATRIX_BYTES, num_panels, portion
from inference.kernels.jit.records import Record
from inference.kernels.jit.stages import quantise_rows
from inference.kernels.jit.team import done, take, wait
from inference.kernels.jit.vectors import get_f32, get_i32, get_i64, load_first, set_i32, set_i64, store_first

EXPERT_BYTES = 3 * MATRIX_BYTES  # gate_up, or gate and up if their forms differ; down
UP_AT, DOWN_AT = MATRIX_BYTES, 2 * MATRIX_BYTES
SEGMENTS_BYTES = 16  # in front of the segments: their number, the number of rows of pairs
SEGMENT_BYTES = 24  # expert, first pair, number of pairs
EMPTY = -1


def segments_bytes(num_experts: int) -> int:
    """Bytes of a layer's segments. Each layer has its own: they say how many tasks there are, and a thread that comes
    late to the stages of a layer must find none of another one's."""
    return SEGMENTS_BYTES + SEGMENT_BYTES * num_experts


@kernel
def choose(p: Record, w: Record, counters: int, stage: int) -> int:
    """Where each token goes, by its router scores, and where the pairs lie."""
    task = take(counters, stage, 1)
    if task == 0:
        odds = p.scores + p.num_tokens * p.scores_bytes
        for row in range(p.num_tokens):
            elementwise.choose_experts(
                p.scores + row * p.scores_bytes,
                w.num_experts,
                p.num_chosen,
                p.is_normalised != 0,
                odds,
                p.chosen + 4 * row * p.num_chosen,
                p.shares + 4 * row * p.num_chosen,
            )
        _lay_out(p, w.num_experts, p.segments + w.segments)
        done(counters, stage)
    wait(counters, stage, 1)
    return stage + 1


@kernel
def _lay_out(p: Record, num_experts: int, segments: int) -> None:
    """segments: the two numbers in front, then SEGMENT_BYTES each. pairs: for each (token, rank) its
    row, then for each row its token, EMPTY where there is none."""
    num_choices = p.num_tokens * p.num_chosen
    token_of = p.pairs + 4 * num_choices
    segment, first = segments + SEGMENTS_BYTES, 0
    for expert in range(num_experts):
        count = 0
        for choice in range(num_choices):
            if get_i32(p.chosen + 4 * choice) == expert:
                set_i32(p.pairs + 4 * choice, first + count)
                set_i32(token_of + 4 * (first + count), choice // p.num_chosen)
                count += 1
        if count:
            set_i64(segment, expert)
            set_i64(segment + 8, first)
            set_i64(segment + 16, count)
            segment += SEGMENT_BYTES
            end = -(-(first + count) // BLOCK) * BLOCK
            for row in range(first + count, end):
                set_i32(token_of + 4 * row, EMPTY)
            first = end
    set_i64(segments, (segment - segments - SEGMENTS_BYTES) // SEGMENT_BYTES)
    set_i64(segments + 8, first)


@kernel
def fill_pairs(p: Record, w: Record, counters: int, stage: int) -> int:
    """Every pair gets its token's input."""
    num_rows = get_i64(p.segments + w.segments + 8)
    num_tasks = -(-num_rows // p.row_step)
    token_of = p.pairs + 4 * p.num_tokens * p.num_chosen
    task = take(counters, stage, num_tasks)
    while task >= 0:
        first, end = task * p.row_step, min((task + 1) * p.row_step, num_rows)
        for row in range(first, end):
            token = get_i32(token_of + 4 * row)
            if token != EMPTY:
                source = p.input + token * p.input_bytes
                for at in range(0, p.hidden, 16):
                    part = load_first(source + 4 * at, p.hidden - at)
                    store_first(p.pair_input + row * p.input_bytes + 4 * at, part, p.hidden - at)
        quantise_rows(p, p.pair_input, p.pair_quantised, p.pair_tiles, p.hidden, first, end)
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return stage + 1


@kernel
def multiply_pairs(p: Record, w: Record, offset: int, column: int, thread: int, counters: int, stage: int) -> int:
    """pair_wide, from a column on, = weights @ pair_input, with the weights at `offset` of each expert's record."""
    num_segments = get_i64(p.segments + w.segments)
    panels = num_panels(w.experts + offset)
    step = portion(panels, p.num_threads)
    per_segment = -(-panels // step)
    num_tasks = num_segments * per_segment
    task = take(counters, stage, num_tasks)
    while task >= 0:
        segment = p.segments + w.segments + SEGMENTS_BYTES + task // per_segment * SEGMENT_BYTES
        matrix = w.experts + get_i64(segment) * EXPERT_BYTES + offset
        first, start = get_i64(segment + 8), task % per_segment * step
        last = first + get_i64(segment + 16)
        end = min(start + step, panels)
        x_stride, out, out_stride = p.input_bytes // 4, p.pair_wide + 4 * column, p.wide_bytes // 4
        scratch = p.scratch + thread * p.scratch_bytes
        rows, codes, tiles = p.pair_input, p.pair_quantised, p.pair_tiles
        linear(matrix, rows, x_stride, codes, tiles, scratch, first, last, out, out_stride, start, end)
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return stage + 1


@kernel
def activate_pairs(p: Record, w: Record, counters: int, stage: int) -> int:
    """The gated activation of pair_wide as the next input of the pairs."""
    num_rows = get_i64(p.segments + w.segments + 8)
    num_tasks = -(-num_rows // p.row_step)
    token_of = p.pairs + 4 * p.num_tokens * p.num_chosen
    task = take(counters, stage, num_tasks)
    while task >= 0:
        first, end = task * p.row_step, min((task + 1) * p.row_step, num_rows)
        for row in range(first, end):
            if get_i32(token_of + 4 * row) != EMPTY:
                gate = p.pair_wide + row * p.wide_bytes
                out = p.pair_input + row * p.input_bytes
                elementwise.activate(gate, gate + 4 * w.width, p.activation, w.width, out)
        quantise_rows(p, p.pair_input, p.pair_quantised, p.pair_tiles, w.width, first, end)
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return stage + 1


@kernel
def mix_pairs(p: Record, counters: int, stage: int) -> int:
    """wide: what each token's experts return, by their shares."""
    num_tasks = -(-p.num_tokens // p.row_step)
    task = take(counters, stage, num_tasks)
    while task >= 0:
        for row in range(task * p.row_step, min((task + 1) * p.row_step, p.num_tokens)):
            mixed = p.wide + row * p.wide_bytes
            elementwise.clear(mixed, p.hidden)
            for choice in range(row * p.num_chosen, (row + 1) * p.num_chosen):
                returned = p.pair_wide + get_i32(p.pairs + 4 * choice) * p.wide_bytes
                elementwise.add_scaled(mixed, returned, get_f32(p.shares + 4 * choice), p.hidden)
        done(counters, stage)
        task = take(counters, stage, num_tasks)
    wait(counters, stage, num_tasks)
    return stage + 1


@kernel
def feed_forward(p: Record, w: Record, thread: int, counters: int, stage: int) -> int:
    """`wide` out of the router's scores and the normalised input."""
    stage = choose(p, w, counters, stage)
    stage = fill_pairs(p, w, counters, stage)
    stage = multiply_pairs(p, w, 0, 0, thread, counters, stage)
    if w.num_gate_up > 1:
        stage = multiply_pairs(p, w, UP_AT, w.width, thread, counters, stage)
    stage = activate_pairs(p, w, counters, stage)
    stage = multiply_pairs(p, w, DOWN_AT, 0, thread, counters, stage)
    return mix_pairs(p, counters, stage)
