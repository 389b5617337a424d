"""Causal attention over the pool of integers, in one order of operations however it is spread over threads.

Keys are taken in chunks of 256 by absolute position. Of a chunk a row has a maximum, a sum of weights and a weighted
sum of values, its "part". Products are sums of integers, exact over a span of 64 components or keys; spans are added up
ascending, weights in 16 lanes by key. Parts are folded together in ascending order of chunks. So a (row, chunk) is
computed alike by whoever computes it, alone or beside others. Keys that a row does not see weigh exactly zero, and what
lies beyond the context is not read. A key whose scale is NaN makes NaN of the rows that see it, and of no others; no
value has such a scale, for zero times NaN is not zero. Scores of a chunk that all overflow make NaN as well.

A row is one head of one token; the heads of a token that share a kv head come one after another. Tiles of rows share
every load of a key or value.

Source of the folding: Milakov and Gimelshein, arXiv:1805.02867.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inference.kernels.jit import attention_tiles as tiles
from inference.kernels.jit.attention_tiles import (
    AHEAD,
    CHUNK,
    DIRECT_WIDTH,
    MAX_DIRECT,
    ROW_BYTES,
    SCALES_AT,
    SPAN,
    TILE_ROWS,
    TILE_WIDTH,
)
from inference.kernels.jit.elementwise import group_bytes, padded, word_factor, word_scale
from inference.kernels.jit.kernel_cache import entry, kernel
from inference.kernels.jit.vectors import (
    LANE_BYTES,
    NUM_LANES,
    ask,
    exp_rest,
    exp_scalar,
    get_f32,
    get_i32,
    get_i64,
    keep_between,
    load,
    max_lanes,
    maximum,
    set_f32,
    set_i64,
    splat,
    store,
    store_first,
    store_words,
    sum_lanes,
    weight_of,
    widest,
    widest_lane,
)
from inference.kernels.kv_storage import KEY_GROUP

NUM_GROUPS = CHUNK // KEY_GROUP
MINUS_INFINITY, NAN = np.float32(-np.inf), np.float32(np.nan)
ZERO, ONE = np.float32(0), np.float32(1)
SPAN_GROUPS = SPAN // KEY_GROUP
# What attend_chunk() has of a thread's memory, by offset.
KEYS_AT, VALUES_AT, FOLLOWING_AT, SCORES_AT = 0, 8 * NUM_GROUPS, 16 * NUM_GROUPS, 24 * NUM_GROUPS
RESTS_AT = SCORES_AT + TILE_ROWS * ROW_BYTES
SCRATCH_BYTES = RESTS_AT + ROW_BYTES


@entry
def part_bytes(dim: int) -> int:
    """The weighted sum (D, padded), then the maximum and the sum of weights."""
    return 4 * padded(dim) + LANE_BYTES


@entry
def part_rows(num_rows: int) -> int:
    """Rows for which there must be parts: tiles are always whole."""
    return num_rows if num_rows <= MAX_DIRECT else -(-num_rows // TILE_ROWS) * TILE_ROWS


@kernel
def attend_chunk(
    queries: int,
    num_rows: int,
    group: int,
    position: int,
    window: int,
    chunk: int,
    table: int,
    block_size: int,
    keys: int,
    values: int,
    dim: int,
    scratch: int,
    parts: int,
) -> None:
    """Parts of all rows for one chunk, at `parts`, part_rows() of them.

    queries   address of the addresses of queries (D) int16 with their scale (attention_tiles.query_scale_at), those
              behind num_rows up to a whole tile included
    group     rows of one token; the first token has this position, the others follow
    window    of how many positions a token sees the newest; 0: all
    table     address of the block ids, int32
    keys      address of the pool of one layer and kv head (storage.py), like values
    """
    start = chunk * CHUNK
    low = max(0, position - window + 1 - start) if window else 0
    high = min(CHUNK, position + (num_rows - 1) // group + 1 - start)
    size = part_bytes(dim)
    if low >= high:
        for row in range(num_rows):
            set_f32(parts + row * size + 4 * padded(dim), MINUS_INFINITY)
        return
    first_group, end_group = low // KEY_GROUP, -(-high // KEY_GROUP)
    _find_groups(start, first_group, end_group, table, block_size, keys, values, dim, scratch)
    if num_rows <= MAX_DIRECT:
        _direct_scores(queries, num_rows, first_group, end_group, dim, scratch)
        for row in range(num_rows):
            newest = position + row // group - start
            _weigh(row, newest, window, first_group, end_group, scratch, parts + row * size, dim, True)
        _direct_values(num_rows, first_group, end_group, dim, scratch, parts)
        return
    for first in range(0, num_rows, TILE_ROWS):
        # What no row of the tile sees would weigh zero, and change no bit.
        end = min(high, position + (min(first + TILE_ROWS, num_rows) - 1) // group + 1 - start)
        end_group = max(first_group, -(-end // KEY_GROUP))
        for g in range(first_group // TILE_WIDTH * TILE_WIDTH, end_group, TILE_WIDTH):
            tiles.scores(
                queries + 8 * first, scratch + KEYS_AT + 8 * g, dim, scratch + SCORES_AT + LANE_BYTES * g, 0, 0
            )
        for row in range(TILE_ROWS):
            newest = position + min(first + row, num_rows - 1) // group - start
            part = parts + (first + row) * size
            _weigh(row, newest, window, first_group, end_group, scratch, part, dim, False)
        _tile_values(first_group, end_group, dim, scratch, parts + first * size)


@kernel
def expect(chunk: int, context: int, table: int, block_size: int, keys: int, dim: int, scratch: int) -> None:
    """Has the next attend_chunk() of few rows ask for the keys of another chunk, which the thread will read then.

    context: the tokens there are; the rest is as there.
    """
    first = chunk * NUM_GROUPS
    last = (context - 1) // KEY_GROUP
    for group in range(NUM_GROUPS):
        position = min(first + group, last) * KEY_GROUP
        slot = get_i32(table + 4 * (position // block_size)) * block_size + position % block_size
        set_i64(scratch + FOLLOWING_AT + 8 * group, keys + slot // KEY_GROUP * group_bytes(dim))


@kernel
def _find_groups(
    start: int, first: int, end: int, table: int, block_size: int, keys: int, values: int, dim: int, scratch: int
) -> None:
    """Addresses of the groups first .. end - 1 of a chunk, and of any other one for what fills a tile up."""
    for group in range(first, end):
        position = start + group * KEY_GROUP
        slot = get_i32(table + 4 * (position // block_size)) * block_size + position % block_size
        at = slot // KEY_GROUP * group_bytes(dim)
        set_i64(scratch + KEYS_AT + 8 * group, keys + at)
        set_i64(scratch + VALUES_AT + 8 * group, values + at)
    _fill_up(first, end, scratch)


@kernel
def _fill_up(first: int, end: int, scratch: int) -> None:
    """Has the places of other groups point to the first one."""
    for at in (KEYS_AT, VALUES_AT):
        other = get_i64(scratch + at + 8 * first)
        for group in range(first):
            set_i64(scratch + at + 8 * group, other)
        for group in range(end, NUM_GROUPS):
            set_i64(scratch + at + 8 * group, other)


@kernel
def _weigh(
    row: int, newest: int, window: int, first: int, end: int, scratch: int, part: int, dim: int, is_direct: bool
) -> None:
    """Scores of a tile's row -> weights in place, exp(score - maximum); the maximum and their sum into the part.

    Weights times the scales of their values become words (elementwise.py), with a scale for each span behind them.

    newest: the last key that the row sees, counted from the start of the chunk, perhaps beyond its end. is_direct: asks
    for some values once more, which came too fast while keys were read: what has no place in the queue gets lost.
    """
    scores = scratch + SCORES_AT + row * ROW_BYTES
    low, high = max(0, newest - window + 1) if window else 0, newest + 1
    peak = splat(MINUS_INFINITY)
    for group in range(first, end):
        at, key = scores + group * LANE_BYTES, group * KEY_GROUP
        if low > key or high < key + KEY_GROUP:
            store(at, keep_between(load(at), low - key, high - key, MINUS_INFINITY))
        peak = maximum(peak, load(at))
    is_blind = low >= min(high, CHUNK) or high <= 0
    top = max_lanes(peak)
    if top == MINUS_INFINITY and not is_blind:
        top = NAN  # else fold() takes this for a chunk of which the row sees nothing
    set_f32(part + 4 * padded(dim), top)
    total = splat(ZERO)
    if is_blind:
        for group in range(first, end):
            store_words(scores + group * LANE_BYTES // 2, total, ZERO, NUM_LANES)
            set_f32(scores + SCALES_AT + group // SPAN_GROUPS * 4, ZERO)
    else:  # two loops: the steps of an exponential wait for each other, and a CPU sees only so many at once
        for group in range(first, end):
            at = group * LANE_BYTES
            store(scores + at, load(scores + at) - splat(top))
            store(scratch + RESTS_AT + at, exp_rest(load(scores + at)))
        for start in range(first // SPAN_GROUPS * SPAN_GROUPS, end, SPAN_GROUPS):
            from_group, to_group = max(first, start), min(end, start + SPAN_GROUPS)
            widest_weight = splat(ZERO)
            for group in range(from_group, to_group):
                if is_direct:
                    _ask_for_values(scratch, row * NUM_GROUPS + group, group_bytes(dim) // 4)
                at = group * LANE_BYTES
                weights = weight_of(load(scores + at), load(scratch + RESTS_AT + at))
                total = total + weights
                weights = weights * load(get_i64(scratch + VALUES_AT + 8 * group))
                store(scores + at, weights)
                widest_weight = widest(widest_weight, weights)
            largest = widest_lane(widest_weight)
            set_f32(scores + SCALES_AT + start, word_scale(largest))  # four bytes for four groups
            factor = word_factor(largest)
            for group in range(from_group, to_group):
                words = load(scores + group * LANE_BYTES)
                store_words(scores + group * LANE_BYTES // 2, words, factor, NUM_LANES)
    set_f32(part + 4 * padded(dim) + 4, sum_lanes(total))


@kernel
def _ask_for_values(scratch: int, number: int, num_bytes: int) -> None:
    """Asks for the number-th quarter of a group, of so many bytes."""
    at = get_i64(scratch + VALUES_AT + 8 * (number // 4)) + number % 4 * num_bytes
    for offset in range(0, num_bytes, LANE_BYTES):
        ask(at + offset)


@kernel
def _direct_scores(queries: int, num_rows: int, first: int, end: int, dim: int, scratch: int) -> None:
    for group in range(first // DIRECT_WIDTH * DIRECT_WIDTH, end, DIRECT_WIDTH):
        keys, out = scratch + KEYS_AT + 8 * group, scratch + SCORES_AT + LANE_BYTES * group
        ahead = scratch + KEYS_AT + 8 * min(group + AHEAD, NUM_GROUPS - DIRECT_WIDTH)
        values = scratch + VALUES_AT + 8 * group  # wanted after all keys
        if num_rows == 1:
            tiles.scores_1(queries, keys, dim, out, ahead, values)
        elif num_rows == 2:
            tiles.scores_2(queries, keys, dim, out, ahead, values)
        elif num_rows == 3:
            tiles.scores_3(queries, keys, dim, out, ahead, values)
        else:
            tiles.scores_4(queries, keys, dim, out, ahead, values)


@kernel
def _direct_values(num_rows: int, first: int, end: int, dim: int, scratch: int, parts: int) -> None:
    weights, groups, following = scratch + SCORES_AT, scratch + VALUES_AT, scratch + FOLLOWING_AT
    row_bytes, size = 4 * padded(dim), part_bytes(dim)
    offset = 0
    while offset + LANE_BYTES * DIRECT_WIDTH <= row_bytes:
        out = parts + offset
        if num_rows == 1:
            tiles.values_1(weights, groups, row_bytes, offset, first, end, out, size, following)
        elif num_rows == 2:
            tiles.values_2(weights, groups, row_bytes, offset, first, end, out, size, following)
        elif num_rows == 3:
            tiles.values_3(weights, groups, row_bytes, offset, first, end, out, size, following)
        else:
            tiles.values_4(weights, groups, row_bytes, offset, first, end, out, size, following)
        offset += LANE_BYTES * DIRECT_WIDTH
    while offset < row_bytes:
        out = parts + offset
        if num_rows == 1:
            tiles.values_1_last(weights, groups, row_bytes, offset, first, end, out, size, following)
        elif num_rows == 2:
            tiles.values_2_last(weights, groups, row_bytes, offset, first, end, out, size, following)
        elif num_rows == 3:
            tiles.values_3_last(weights, groups, row_bytes, offset, first, end, out, size, following)
        else:
            tiles.values_4_last(weights, groups, row_bytes, offset, first, end, out, size, following)
        offset += LANE_BYTES


@kernel
def _tile_values(first: int, end: int, dim: int, scratch: int, parts: int) -> None:
    weights, groups = scratch + SCORES_AT, scratch + VALUES_AT
    row_bytes, size = 4 * padded(dim), part_bytes(dim)
    offset = 0
    while offset + LANE_BYTES * TILE_WIDTH <= row_bytes:
        tiles.values(weights, groups, row_bytes, offset, first, end, parts + offset, size, 0)
        offset += LANE_BYTES * TILE_WIDTH
    while offset < row_bytes:
        tiles.values_last(weights, groups, row_bytes, offset, first, end, parts + offset, size, 0)
        offset += LANE_BYTES


@kernel
def begin(state: int, dim: int) -> None:
    """An empty part, to fold others into."""
    set_f32(state + 4 * padded(dim), MINUS_INFINITY)


@kernel
def fold(state: int, part: int, dim: int) -> None:
    """Takes the part of the next chunk into the state, which is of the same form."""
    size = 4 * padded(dim)
    top = get_f32(part + size)
    before = get_f32(state + size)
    if top == MINUS_INFINITY:
        return
    if before == MINUS_INFINITY:
        for at in range(0, size + LANE_BYTES, LANE_BYTES):
            store(state + at, load(part + at))
        return
    old: Any = ONE  # which is what exp gives for the higher one
    new: Any = ONE
    if top > before:
        old = exp_scalar(before - top)
        set_f32(state + size, top)
    else:
        new = exp_scalar(top - before)
    set_f32(state + size + 4, get_f32(state + size + 4) * old + get_f32(part + size + 4) * new)
    for at in range(0, size, LANE_BYTES):
        store(state + at, load(state + at) * splat(old) + load(part + at) * splat(new))


@kernel
def finish(state: int, dim: int, out: int) -> None:
    """The weighted mean of the values, (D,) f32."""
    total = splat(get_f32(state + 4 * padded(dim) + 4))
    for at in range(0, dim, NUM_LANES):
        store_first(out + 4 * at, load(state + 4 * at) / total, dim - at)
