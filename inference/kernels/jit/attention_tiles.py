"""The inner loops of attention: tiles of rows against keys and values, with all sums in registers.

Queries, keys, values and weights are int16 of at most MAX_WORD with scales (elementwise.py), so the products of SPAN of
them add up exactly, whatever the tile and the order. What follows is one chain of rounded operations for each span.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types

from inference.kernels.jit.ir import emit_loop
from inference.kernels.jit.kernel_cache import instruction, kernel
from inference.kernels.jit.vectors import (
    F32,
    F32X16,
    I32,
    I32X16,
    I64,
    LANE_BYTES,
    NUM_LANES,
    add_products,
    ask_for_line,
    constant,
    load_vector,
    pointer,
    splat_of,
)

CHUNK = 256  # keys
SPAN = 64  # components or keys whose products are added up as integers
SCALES_AT = 4 * CHUNK  # of the spans of a row of weights, float32, behind the scores that were in their place
ROW_BYTES = SCALES_AT + LANE_BYTES  # of one row of scores
MAX_DIRECT = 4  # rows that wait for memory, and ask for it
# So many sums stay in registers: 16 of 32 wide ones, or 12 of 16 narrow ones.
IS_WIDE = bool(llvm.get_host_cpu_features().get("avx512bw", False))
TILE_ROWS, TILE_WIDTH, DIRECT_WIDTH = (8, 2, 4) if IS_WIDE else (6, 1, 1)
PAIRS = NUM_LANES // 2  # of the values of a group
AHEAD = 4  # groups from what is read to what is asked for


@kernel
def query_scale_at(dim: int) -> int:
    """Where the scale of a query lies: behind its int16, an even number of them."""
    return (dim + 1) // 2 * 4


# Emitting


def _offset(builder: Any, at: Any, index: Any, size: int) -> Any:
    return builder.add(at, builder.mul(index, ir.Constant(I64, size)))


def _offset_by(builder: Any, at: Any, num_bytes: int) -> Any:
    return builder.add(at, ir.Constant(I64, num_bytes)) if num_bytes else at


def _read(builder: Any, at: Any, index: Any) -> Any:
    return builder.load(pointer(builder, _offset(builder, at, index, 8), I64), align=8)


def _smaller(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def _added(
    builder: Any, sums: Sequence[Any], width: int, places: list[Any], pair_of: Callable[[int], Any]
) -> list[Any]:
    """sums[row][w] + the products of pair_of(row), two words, with those of the w-th place, in each lane."""
    vectors = [builder.load(pointer(builder, place, I32X16), align=4) for place in places]
    results = []
    for index, total in enumerate(sums):
        if index % width == 0:
            pair = builder.load(pointer(builder, pair_of(index // width), I32), align=4)
        results.append(add_products(builder, total, vectors[index % width], pair))
    return results


def _take_in(builder: Any, sums: Sequence[Any], is_first: Any, place_of: Callable[[int], Any], scaled: Any) -> None:
    """Adds scaled(index, float of a sum) to what lies at place_of(index); there is nothing yet if is_first."""
    for index, total in enumerate(sums):
        place = pointer(builder, place_of(index), F32X16)
        before = builder.select(is_first, constant(0.0), builder.load(place, align=4))
        number = scaled(index, builder.sitofp(total, F32X16))
        builder.store(builder.fadd(before, number), place, align=4)


def _zeros(count: int) -> list[Any]:
    return [ir.Constant(I32X16, [0] * NUM_LANES)] * count


# Tiles


def _scores_tile(rows: int, width: int) -> Any:
    """(queries, groups, D, out, ahead, values): products of `rows` queries with the keys of `width` groups.

    queries, groups: addresses of as many addresses, of queries and of groups (storage.py). out: rows of scores.
    ahead, values: addresses of `width` addresses each, of groups of keys and of values that up to MAX_DIRECT rows ask
    for meanwhile, a line at a time: many at once would hold up what is read.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        queries, groups, dim, out, *asked = args
        asked = asked if rows <= MAX_DIRECT else []
        starts = [_read(builder, queries, ir.Constant(I64, row)) for row in range(rows)]
        keys = [_read(builder, groups, ir.Constant(I64, w)) for w in range(width)]
        wanted = [_read(builder, table, ir.Constant(I64, w)) for table in asked for w in range(width)]
        num_pairs = builder.lshr(_offset_by(builder, dim, 1), ir.Constant(I64, 1))
        scales = [load_vector(builder, at) for at in keys]
        for at in wanted:
            ask_for_line(builder, at)

        def add_pair(pair: Any, *sums: Any) -> list[Any]:
            line = builder.mul(_offset_by(builder, pair, 1), ir.Constant(I64, LANE_BYTES))
            for at in wanted:
                ask_for_line(builder, builder.add(at, line))
            places = [builder.add(at, line) for at in keys]
            return _added(builder, sums, width, places, lambda row: _offset(builder, starts[row], pair, 4))

        def add_span(first: Any) -> list[Any]:
            end = _smaller(builder, _offset_by(builder, first, SPAN // 2), num_pairs)
            sums = emit_loop(builder, first, end, 1, _zeros(rows * width), add_pair)
            is_first = builder.icmp_signed("==", first, ir.Constant(I64, 0))

            def place_of(index: int) -> Any:
                return _offset_by(builder, out, index // width * ROW_BYTES + index % width * LANE_BYTES)

            def scaled(index: int, number: Any) -> Any:
                at = _offset(builder, starts[index // width], num_pairs, 4)
                scale = splat_of(builder, builder.load(pointer(builder, at, F32), align=4))
                return builder.fmul(builder.fmul(number, scales[index % width]), scale)

            _take_in(builder, sums, is_first, place_of, scaled)
            return []

        emit_loop(builder, ir.Constant(I64, 0), num_pairs, SPAN // 2, [], add_span)
        return context.get_dummy_value()

    @instruction
    def tile(typingctx: Any, queries: Any, groups: Any, dim: Any, out: Any, ahead: Any, values: Any) -> Any:
        return types.void(*[types.int64] * 6), emit

    return tile


def _values_tile(rows: int, width: int) -> Any:
    """(weights, groups, row_bytes, offset, first, end, out, out_bytes, following): values weighted and added up.

    weights: rows of CHUNK int16 with the scales of spans behind; groups: addresses of groups of values, of which first
    .. end - 1 are taken. row_bytes: from one pair of values to the next; 16 * width components from `offset` on, in
    bytes of these. out: rows of out_bytes. following: addresses of groups of keys, of which up to MAX_DIRECT rows ask
    for as much meanwhile, so that all of it is when all components are done, and for values ahead.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        weights, groups, row_bytes, offset, first, end, out, out_bytes, following = args
        is_direct = rows <= MAX_DIRECT

        def add_group(group: Any, *sums: Any) -> Sequence[Any]:
            at = _offset_by(builder, builder.add(_read(builder, groups, group), offset), LANE_BYTES)
            wanted = []
            if is_direct:
                # Behind the values' addresses lie those of the following keys.
                wanted = [
                    _read(builder, groups, _offset_by(builder, group, AHEAD)),
                    _read(builder, following, group),
                ]
            share = _offset_by(builder, builder.mul(offset, ir.Constant(I64, PAIRS)), LANE_BYTES)
            wanted = [builder.add(other, share) for other in wanted]
            pairs = _offset(builder, weights, group, 4 * PAIRS)

            def add_pairs(first_pair: Any, *sums: Any) -> Sequence[Any]:
                for number in range(step):
                    pair = _offset_by(builder, first_pair, number)
                    line = builder.mul(pair, ir.Constant(I64, width * LANE_BYTES))
                    for other in wanted:
                        for w in range(width):
                            ask_for_line(builder, _offset_by(builder, builder.add(other, line), w * LANE_BYTES))
                    start = builder.add(at, builder.mul(pair, row_bytes))
                    places = [_offset_by(builder, start, w * LANE_BYTES) for w in range(width)]

                    def pair_of(row: int, pair: Any = pair) -> Any:
                        return _offset_by(builder, _offset(builder, pairs, pair, 4), row * ROW_BYTES)

                    sums = tuple(_added(builder, sums, width, places, pair_of))
                return sums

            # LLVM puts all that is asked for in a piece of code in front: few lines at a time hold nothing up.
            step = 2 if is_direct else PAIRS
            return emit_loop(builder, ir.Constant(I64, 0), ir.Constant(I64, PAIRS), step, sums, add_pairs)

        groups_of_span = SPAN // NUM_LANES

        def add_span(start: Any) -> list[Any]:
            low = builder.select(builder.icmp_signed(">", first, start), first, start)
            high = _smaller(builder, _offset_by(builder, start, groups_of_span), end)
            sums = emit_loop(builder, low, high, 1, _zeros(rows * width), add_group)
            scales = _offset_by(builder, builder.add(weights, start), SCALES_AT)  # four bytes for four groups

            def place_of(index: int) -> Any:
                at = _offset(builder, out, out_bytes, index // width)
                return _offset_by(builder, at, index % width * LANE_BYTES)

            def scaled(index: int, number: Any) -> Any:
                at = _offset_by(builder, scales, index // width * ROW_BYTES)
                return builder.fmul(number, splat_of(builder, builder.load(pointer(builder, at, F32), align=4)))

            is_first = builder.icmp_signed("<=", start, first)
            _take_in(builder, sums, is_first, place_of, scaled)
            return []

        span = builder.and_(first, ir.Constant(I64, -groups_of_span))
        emit_loop(builder, span, end, groups_of_span, [], add_span)
        return context.get_dummy_value()

    @instruction
    def tile(
        typingctx: Any,
        weights: Any,
        groups: Any,
        row_bytes: Any,
        offset: Any,
        first: Any,
        end: Any,
        out: Any,
        size: Any,
        following: Any,
    ) -> Any:
        return types.void(*[types.int64] * 9), emit

    return tile


scores = _scores_tile(TILE_ROWS, TILE_WIDTH)
scores_1 = _scores_tile(1, DIRECT_WIDTH)
scores_2 = _scores_tile(2, DIRECT_WIDTH)
scores_3 = _scores_tile(3, DIRECT_WIDTH)
scores_4 = _scores_tile(4, DIRECT_WIDTH)
values = _values_tile(TILE_ROWS, TILE_WIDTH)
values_last = _values_tile(TILE_ROWS, 1)
values_1 = _values_tile(1, DIRECT_WIDTH)
values_2 = _values_tile(2, DIRECT_WIDTH)
values_3 = _values_tile(3, DIRECT_WIDTH)
values_4 = _values_tile(4, DIRECT_WIDTH)
values_1_last = _values_tile(1, 1)
values_2_last = _values_tile(2, 1)
values_3_last = _values_tile(3, 1)
values_4_last = _values_tile(4, 1)
