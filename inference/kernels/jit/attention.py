"""Causal attention over the float16 pool, in one order of operations however it is spread over threads.

Keys are taken in chunks of 256 by absolute position. Of a chunk a row has a maximum, a sum of weights and a weighted
sum of values, its "part": scores are added up by component, weights in 16 lanes by key, values by key. Parts are folded
together in ascending order of chunks. So a (row, chunk) is computed alike by whoever computes it, alone or beside
others. Keys that a row does not see weigh exactly zero, and what lies beyond the context is not read. A key that is NaN
makes NaN of the rows that see it, and of no others: values are never NaN in the pool, for zero times NaN is not zero.
So do scores of a chunk that all overflow.

A row is one head of one token; the heads of a token that share a kv head come one after another. Tiles of rows share
every load of a key or value; more than a few rows have the chunk converted to float32 once, for all of them.

Source of the folding: Milakov and Gimelshein, arXiv:1805.02867.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inference.kernels.jit import attention_tiles as tiles
from inference.kernels.jit.attention_tiles import CHUNK, DIRECT_WIDTH, MAX_DIRECT, ROW_BYTES, TILE_ROWS, TILE_WIDTH
from inference.kernels.jit.elementwise import padded
from inference.kernels.jit.kernel_cache import entry, kernel
from inference.kernels.jit.vectors import (
    LANE_BYTES,
    NUM_LANES,
    exp_rest,
    exp_scalar,
    get_f32,
    get_i32,
    get_i64,
    keep_between,
    load,
    load_half,
    max_lanes,
    maximum,
    set_f32,
    set_i64,
    splat,
    store,
    store_first,
    sum_lanes,
    weight_of,
)
from inference.kernels.kv_storage import KEY_GROUP

NUM_GROUPS = CHUNK // KEY_GROUP
AHEAD = 4  # groups from the keys that are read to those that are asked for
MINUS_INFINITY, NAN = np.float32(-np.inf), np.float32(np.nan)
ZERO, ONE = np.float32(0), np.float32(1)
# What attend_chunk() has of a thread's memory, by offset; then the chunk as float32, keys and values.
KEYS_AT, VALUES_AT, FOLLOWING_AT, SCORES_AT = 0, 8 * NUM_GROUPS, 16 * NUM_GROUPS, 24 * NUM_GROUPS
RESTS_AT = SCORES_AT + TILE_ROWS * ROW_BYTES
CONVERTED_AT = RESTS_AT + ROW_BYTES


@entry
def part_bytes(dim: int) -> int:
    """The weighted sum (D, padded), then the maximum and the sum of weights."""
    return 4 * padded(dim) + LANE_BYTES


@entry
def part_rows(num_rows: int) -> int:
    """Rows for which there must be parts: tiles are always whole."""
    return num_rows if num_rows <= MAX_DIRECT else -(-num_rows // TILE_ROWS) * TILE_ROWS


@kernel
def scratch_bytes(dim: int) -> int:
    """Of a thread, for attend_chunk()."""
    return CONVERTED_AT + 4 * CHUNK * (dim + padded(dim))


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

    queries   addresses of the addresses of scaled queries (D) f32, those behind num_rows up to a whole tile included
    group     rows of one token; the first token has this position, the others follow
    window    of how many positions a token sees the newest; 0: all
    table     address of the block ids, int32
    keys      address of (slots / 16, D, 16) f16, values of (slots, padded D) f16, of one layer and kv head
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
            _weigh(
                row, position + row // group - start, window, first_group, end_group, scratch, parts + row * size, dim
            )
        _direct_values(num_rows, low, high, dim, scratch, parts)
        return
    _convert(first_group, end_group, dim, scratch)
    for first in range(0, num_rows, TILE_ROWS):
        # What no row of the tile sees would weigh zero, and change no bit.
        end = max(low, min(high, position + (min(first + TILE_ROWS, num_rows) - 1) // group + 1 - start))
        end_group = max(first_group, -(-end // KEY_GROUP))
        for g in range(first_group // TILE_WIDTH * TILE_WIDTH, end_group, TILE_WIDTH):
            tiles.scores(queries + 8 * first, scratch + KEYS_AT + 8 * g, dim, scratch + SCORES_AT + LANE_BYTES * g)
        for row in range(TILE_ROWS):
            newest = position + min(first + row, num_rows - 1) // group - start
            _weigh(row, newest, window, first_group, end_group, scratch, parts + (first + row) * size, dim)
        _tile_values(low, end, dim, scratch, parts + first * size)


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
        set_i64(scratch + FOLLOWING_AT + 8 * group, keys + 2 * slot * dim)


@kernel
def _find_groups(
    start: int, first: int, end: int, table: int, block_size: int, keys: int, values: int, dim: int, scratch: int
) -> None:
    """Addresses of the groups first .. end - 1 of a chunk, and of any other one for what fills a tile up."""
    for group in range(first, end):
        position = start + group * KEY_GROUP
        slot = get_i32(table + 4 * (position // block_size)) * block_size + position % block_size
        set_i64(scratch + KEYS_AT + 8 * group, keys + 2 * slot * dim)
        set_i64(scratch + VALUES_AT + 8 * group, values + 2 * slot * padded(dim))
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
def _convert(first: int, end: int, dim: int, scratch: int) -> None:
    """Takes the groups as float32 into the scratch, values behind keys, and points to the keys there."""
    key_size, value_size = KEY_GROUP * dim, KEY_GROUP * padded(dim)
    for group in range(first, end):
        source = get_i64(scratch + KEYS_AT + 8 * group)
        target = scratch + CONVERTED_AT + 4 * group * key_size
        for at in range(0, key_size, NUM_LANES):
            store(target + 4 * at, load_half(source + 2 * at))
        set_i64(scratch + KEYS_AT + 8 * group, target)
        source = get_i64(scratch + VALUES_AT + 8 * group)
        target = scratch + CONVERTED_AT + 4 * (CHUNK * dim + group * value_size)
        for at in range(0, value_size, NUM_LANES):
            store(target + 4 * at, load_half(source + 2 * at))
    _fill_up(first, end, scratch)


@kernel
def _weigh(row: int, newest: int, window: int, first: int, end: int, scratch: int, part: int, dim: int) -> None:
    """Scores of a tile's row -> weights in place, exp(score - maximum); the maximum and their sum into the part.

    newest: the last key that the row sees, counted from the start of the chunk, perhaps beyond its end.
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
            store(scores + group * LANE_BYTES, total)
    else:  # two loops: the steps of an exponential wait for each other, and a CPU sees only so many at once
        for group in range(first, end):
            at = group * LANE_BYTES
            store(scores + at, load(scores + at) - splat(top))
            store(scratch + RESTS_AT + at, exp_rest(load(scores + at)))
        for group in range(first, end):
            at = group * LANE_BYTES
            weights = weight_of(load(scores + at), load(scratch + RESTS_AT + at))
            store(scores + at, weights)
            total = total + weights
    set_f32(part + 4 * padded(dim) + 4, sum_lanes(total))


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
def _direct_values(num_rows: int, low: int, high: int, dim: int, scratch: int, parts: int) -> None:
    weights, groups, following = scratch + SCORES_AT, scratch + VALUES_AT, scratch + FOLLOWING_AT
    row_bytes, size = 2 * padded(dim), part_bytes(dim)
    offset = 0  # in bytes of float16
    while offset + 32 * DIRECT_WIDTH <= row_bytes:
        out = parts + 2 * offset
        if num_rows == 1:
            tiles.values_1(weights, groups, row_bytes, offset, low, high, out, size, following)
        elif num_rows == 2:
            tiles.values_2(weights, groups, row_bytes, offset, low, high, out, size, following)
        elif num_rows == 3:
            tiles.values_3(weights, groups, row_bytes, offset, low, high, out, size, following)
        else:
            tiles.values_4(weights, groups, row_bytes, offset, low, high, out, size, following)
        offset += 32 * DIRECT_WIDTH
    while offset < row_bytes:
        out = parts + 2 * offset
        if num_rows == 1:
            tiles.values_1_last(weights, groups, row_bytes, offset, low, high, out, size, following)
        elif num_rows == 2:
            tiles.values_2_last(weights, groups, row_bytes, offset, low, high, out, size, following)
        elif num_rows == 3:
            tiles.values_3_last(weights, groups, row_bytes, offset, low, high, out, size, following)
        else:
            tiles.values_4_last(weights, groups, row_bytes, offset, low, high, out, size, following)
        offset += 32


@kernel
def _tile_values(low: int, high: int, dim: int, scratch: int, parts: int) -> None:
    weights, values = scratch + SCORES_AT, scratch + CONVERTED_AT + 4 * CHUNK * dim
    row_bytes, size = 4 * padded(dim), part_bytes(dim)
    offset = 0
    while offset + LANE_BYTES * TILE_WIDTH <= row_bytes:
        tiles.values(weights, values + offset, row_bytes, low, high, parts + offset, size)
        offset += LANE_BYTES * TILE_WIDTH
    while offset < row_bytes:
        tiles.values_last(weights, values + offset, row_bytes, low, high, parts + offset, size)
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
