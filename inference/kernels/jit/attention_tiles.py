"""The inner loops of attention: tiles of rows against keys and values, with all sums in registers.

A sum is one chain of additions, by component or by key, whatever the size of the tile: bits do not depend on it.
Products are exact, for queries and weights are short numbers (vectors.py), so fused instructions change nothing either.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types

from inference.kernels.jit.kernel_cache import instruction
from inference.kernels.jit.vectors import (
    F32,
    F32X16,
    I64,
    LANE_BYTES,
    ask_for_line,
    call,
    constant,
    load_vector,
    pointer,
    splat_of,
)
from inference.kernels.kv_storage import KEY_GROUP

CHUNK = 256  # keys
ROW_BYTES = 4 * CHUNK  # of one row of scores
MAX_DIRECT = 4  # rows that read float16 as it lies
# So many sums stay in registers: 16 of 32 wide ones, or 12 of 16 narrow ones.
IS_ARM = llvm.get_process_triple().startswith(("aarch64", "arm64"))
CAN_FUSE = IS_ARM or bool(llvm.get_host_cpu_features().get("fma", False))
IS_WIDE = bool(llvm.get_host_cpu_features().get("avx512f", False))
TILE_ROWS, TILE_WIDTH, DIRECT_WIDTH = (8, 2, 4) if IS_WIDE else (6, 1, 1)
UNROLLED = 2  # keys or components between two looks at the end


# Tiles


def _emit_tile(
    builder: Any, rows: int, width: int, first: Any, end: Any, vectors_of: Any, scalar_of: Any, ask: Any = None
) -> list[Any]:
    """Emits sums[row][w] += scalar_of(row, i) * vectors_of(i)[w] for i in first .. end - 1.

    ask(i), if given, is emitted once for UNROLLED of them: memory asked for a little at a time does not hold up what is
    read meanwhile.
    """
    sums = [constant(0.0)] * (rows * width)
    whole = builder.and_(builder.sub(end, first), ir.Constant(I64, -UNROLLED))
    middle = builder.add(first, whole)
    for start, stop, step in ((first, middle, UNROLLED), (middle, end, 1)):
        before = builder.block
        head, body, done = (builder.append_basic_block(name) for name in ("tile", "tile_body", "tile_done"))
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(start, before)
        totals = [builder.phi(F32X16) for _ in sums]
        for total, value in zip(totals, sums, strict=True):
            total.add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", index, stop), body, done)
        builder.position_at_end(body)
        results: list[Any] = list(totals)
        for i in range(step):
            at = builder.add(index, ir.Constant(I64, i)) if i else index
            if ask is not None and i == 0:
                ask(at)
            vectors = vectors_of(at)
            for row in range(rows):
                scalar = splat_of(builder, scalar_of(row, at))
                for w, vector in enumerate(vectors):
                    place = row * width + w
                    results[place] = _added(builder, results[place], scalar, vector)
        index.add_incoming(builder.add(index, ir.Constant(I64, step)), builder.block)
        for total, result in zip(totals, results, strict=True):
            total.add_incoming(result, builder.block)
        builder.branch(head)
        builder.position_at_end(done)
        sums = totals
    return sums


def _added(builder: Any, total: Any, scalar: Any, vector: Any) -> Any:
    """total + scalar * vector. The product is exact, so that one rounding or two is the same."""
    if CAN_FUSE:
        return call(builder, "llvm.fma.v16f32", F32X16, scalar, vector, total)
    return builder.fadd(total, builder.fmul(scalar, vector))


def _offset(builder: Any, at: Any, index: Any, size: int) -> Any:
    return builder.add(at, builder.mul(index, ir.Constant(I64, size)))


def _offset_by(builder: Any, at: Any, num_bytes: int) -> Any:
    return builder.add(at, ir.Constant(I64, num_bytes))


def _read(builder: Any, at: Any, index: int) -> Any:
    return builder.load(pointer(builder, _offset(builder, at, ir.Constant(I64, index), 8), I64), align=8)


def _scores_tile(rows: int, width: int, *, is_half: bool) -> Any:
    """(queries, groups, D, out): products of `rows` queries with the keys of `width` groups.

    queries, groups: addresses of as many addresses, of D float32 and of (D, 16) keys. out: rows of scores. Of float16
    there are two more, (..., ahead, values): addresses of `width` addresses each, of groups of keys and of values that
    are asked for meanwhile.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        queries, groups, dim, out, *asked = args
        starts = [_read(builder, queries, row) for row in range(rows)]
        keys = [_read(builder, groups, w) for w in range(width)]

        def ask(d: Any) -> None:
            for table in asked:
                for w in range(width):
                    ask_for_line(builder, _offset(builder, _read(builder, table, w), d, LANE_BYTES // 2))

        sums = _emit_tile(
            builder,
            rows,
            width,
            ir.Constant(I64, 0),
            dim,
            lambda d: [
                load_vector(builder, _offset(builder, at, d, LANE_BYTES // (1 + is_half)), is_half=is_half)
                for at in keys
            ],
            lambda row, d: builder.load(pointer(builder, _offset(builder, starts[row], d, 4), F32), align=4),
            ask,
        )
        for index, total in enumerate(sums):
            place = index // width * ROW_BYTES + index % width * LANE_BYTES
            builder.store(total, pointer(builder, _offset_by(builder, out, place), F32X16), align=4)
        return context.get_dummy_value()

    @instruction
    def tile(typingctx: Any, queries: Any, groups: Any, dim: Any, out: Any) -> Any:
        return types.void(*[types.int64] * 4), emit

    @instruction
    def asking(typingctx: Any, queries: Any, groups: Any, dim: Any, out: Any, ahead: Any, values: Any) -> Any:
        return types.void(*[types.int64] * 6), emit

    return asking if is_half else tile


def _values_tile(rows: int, width: int) -> Any:
    """(weights, values, row_bytes, first, end, out, out_bytes): float32 values weighted and added up.

    weights: rows of CHUNK float32; values: row_bytes from one key's to the next, 16 * width components are taken; keys
    first .. end - 1 of the chunk. out: rows of out_bytes.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        weights, values, row_bytes, first, end, out, out_bytes = args

        def vectors_of(key: Any) -> list[Any]:
            at = builder.add(values, builder.mul(key, row_bytes))
            return [load_vector(builder, _offset_by(builder, at, w * LANE_BYTES)) for w in range(width)]

        sums = _emit_tile(builder, rows, width, first, end, vectors_of, _weights_of(builder, weights))
        _store_rows(builder, sums, width, out, out_bytes)
        return context.get_dummy_value()

    @instruction
    def tile(
        typingctx: Any, weights: Any, values: Any, row_bytes: Any, first: Any, end: Any, out: Any, size: Any
    ) -> Any:
        return types.void(*[types.int64] * 7), emit

    return tile


def _direct_values_tile(rows: int, width: int) -> Any:
    """(weights, groups, row_bytes, offset, first, end, out, out_bytes, following): the same of float16 as it lies.

    groups: addresses of 16 values of row_bytes each, of which 16 * width components are taken from `offset` (in bytes)
    on. following: addresses of groups of keys of which as much is asked for meanwhile, so that all of it is when all
    components are done.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        weights, groups, row_bytes, offset, first, end, out, out_bytes, following = args

        def place_of(key: Any, table: Any) -> tuple[Any, Any]:
            """The address of a key's group, and its number there."""
            at = _offset(builder, table, builder.lshr(key, ir.Constant(I64, 4)), 8)
            return builder.load(pointer(builder, at, I64), align=8), builder.and_(key, ir.Constant(I64, 15))

        def ask(key: Any) -> None:
            at, number = place_of(key, following)
            at = _offset(builder, at, offset, KEY_GROUP)
            at = _offset(builder, at, number, width * LANE_BYTES // 2)
            for w in range(width):
                ask_for_line(builder, _offset_by(builder, at, w * LANE_BYTES))

        def vectors_of(key: Any) -> list[Any]:
            at, number = place_of(key, groups)
            at = builder.add(builder.add(at, builder.mul(number, row_bytes)), offset)
            places = [_offset_by(builder, at, w * LANE_BYTES // 2) for w in range(width)]
            return [load_vector(builder, place, is_half=True) for place in places]

        sums = _emit_tile(builder, rows, width, first, end, vectors_of, _weights_of(builder, weights), ask)
        _store_rows(builder, sums, width, out, out_bytes)
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


def _weights_of(builder: Any, weights: Any) -> Any:
    """Emits the weight of a key for a row."""

    def scalar_of(row: int, key: Any) -> Any:
        at = _offset_by(builder, _offset(builder, weights, key, 4), row * ROW_BYTES)
        return builder.load(pointer(builder, at, F32), align=4)

    return scalar_of


def _store_rows(builder: Any, sums: list[Any], width: int, out: Any, out_bytes: Any) -> None:
    for index, total in enumerate(sums):
        at = _offset_by(builder, _offset(builder, out, out_bytes, index // width), index % width * LANE_BYTES)
        builder.store(total, pointer(builder, at, F32X16), align=4)


scores = _scores_tile(TILE_ROWS, TILE_WIDTH, is_half=False)
scores_1 = _scores_tile(1, DIRECT_WIDTH, is_half=True)
scores_2 = _scores_tile(2, DIRECT_WIDTH, is_half=True)
scores_3 = _scores_tile(3, DIRECT_WIDTH, is_half=True)
scores_4 = _scores_tile(4, DIRECT_WIDTH, is_half=True)
values = _values_tile(TILE_ROWS, TILE_WIDTH)
values_last = _values_tile(TILE_ROWS, 1)
values_1 = _direct_values_tile(1, DIRECT_WIDTH)
values_2 = _direct_values_tile(2, DIRECT_WIDTH)
values_3 = _direct_values_tile(3, DIRECT_WIDTH)
values_4 = _direct_values_tile(4, DIRECT_WIDTH)
values_1_last = _direct_values_tile(1, 1)
values_2_last = _direct_values_tile(2, 1)
values_3_last = _direct_values_tile(3, 1)
values_4_last = _direct_values_tile(4, 1)
