"""Activations as integers: quantising float32 rows, and the layout that the integer products read.

Rows lie in blocks of four, so that the inner loops find all four at constant distances. A block is K / 32 steps of
[4 rows x 32 int16][4 float32: sums over 32 k][4 float32: over the first 16][4 float32: over the last 16][padding to
320], and at its end 4 float32 scales, padded to 64. Of four neighbouring k the order is 0, 2, 1, 3 (linear_integer).

For tiles (linear_tiles) a row is written once more, as bfloat16, which are exact: K / 32 steps of [32 multiples of 128]
[32 rests 0 .. 127], whose sums are the integers, in the same order; then 64 bytes of nothing, so that rows, which are
all equally far apart, do not meet in the same sets of a cache.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from inference.kernels.jit.cpu import Tier
from inference.kernels.jit.ir import F32, I16, I32, I64, PTR, Emitter, Value

BLOCK = 4  # rows
STEP = 32  # k
CODE_BYTES = 2 * STEP  # of a step of a row
SUM_BYTES = 4
STEP_BYTES = BLOCK * (CODE_BYTES + 3 * SUM_BYTES) + 16
SCALES_BYTES = 64
MAX_CODE = 16383
LEAST = 1e-30  # a row whose largest magnitude is below counts as zeros
ROUND = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits, ties to even

TILE_TOKENS = 16  # rows that a tile takes at once
HIGH_MASK = -128  # of an integer: what its first bfloat16 holds

# x, stride, K, data, tiles, first row, end row
QUANTISE_PARAMETERS: tuple[ir.Type, ...] = (PTR, I64, I64, PTR, PTR, I64, I64)


def block_bytes(num_inner: int) -> int:
    """Bytes of a block of four rows."""
    return num_inner // STEP * STEP_BYTES + SCALES_BYTES


def quantised_bytes(num_rows: int, num_inner: int) -> int:
    """Bytes that so many rows take, and those that a tile reads behind them."""
    return (-(-num_rows // BLOCK) + TILE_TOKENS // BLOCK) * block_bytes(num_inner)


def tile_row_bytes(num_inner: int) -> int:
    """Bytes from a row of the tiles to the next."""
    return 2 * num_inner // STEP * CODE_BYTES + 64


def tile_rows_bytes(num_rows: int, num_inner: int) -> int:
    """Bytes of the tiles of so many rows, and of those that a tile reads behind them."""
    return (num_rows + TILE_TOKENS) * tile_row_bytes(num_inner)


def sums_offset(group: int, part: int, row: int) -> int:
    """Where in a step the sum of a group lies: the part-th of its size, of a row of the block."""
    place = 0 if group == STEP else 1 + part
    return BLOCK * CODE_BYTES + (place * BLOCK + row) * SUM_BYTES


def emit_block_bytes(e: Emitter, num_steps: Value) -> Value:
    """block_bytes(), of so many steps, in compiled code."""
    return e.b.add(e.b.mul(num_steps, e.i64(STEP_BYTES)), e.i64(SCALES_BYTES))


def emit_tile_row_bytes(e: Emitter, num_steps: Value) -> Value:
    """tile_row_bytes() in compiled code."""
    return e.b.add(e.b.mul(num_steps, e.i64(2 * CODE_BYTES)), e.i64(64))


def emit_quantise(module: ir.Module, tier: Tier, name: str) -> None:
    """void name(x, x_stride, K, data, tiles, first, end): rows of x (float32, stride in elements) into blocks at data,
    and into tiles unless that is null."""
    e = Emitter(module, tier, name, QUANTISE_PARAMETERS, public=True)
    b = e.b
    x, stride, num_inner, data, tiles, first, end = e.arguments
    num_steps = b.udiv(num_inner, e.i64(STEP))
    size = emit_block_bytes(e, num_steps)

    def row(index: Value) -> list[Value]:
        source = e.at(x, b.mul(b.mul(index, stride), e.i64(4)))
        within = b.and_(index, e.i64(BLOCK - 1))
        block = e.at(data, b.mul(b.udiv(index, e.i64(BLOCK)), size))
        factor, scale = _factors(e, _largest(e, source, num_steps))
        e.store(scale, block, b.add(b.mul(num_steps, e.i64(STEP_BYTES)), b.mul(within, e.i64(4))), align=4)
        _convert(e, source, block, within, num_steps, factor)
        if tier.has_tiles:
            with e.when(b.icmp_unsigned("!=", b.ptrtoint(tiles, I64), e.i64(0))):
                target = e.at(tiles, b.mul(index, emit_tile_row_bytes(e, num_steps)))
                _split(e, block, within, num_steps, target)
        return []

    e.loop(first, end, 1, [], row)
    e.finish()


def _largest(e: Emitter, source: Value, num_steps: Value) -> Value:
    """Bits of the largest magnitude of a row; above those of infinity when a NaN is among them."""
    b, wide = e.b, e.vector(I32, 16)
    mask = e.constant(0x7FFFFFFF, I32, 16)

    def step(index: Value, *largest: Value) -> list[Value]:
        results = []
        for part, value in enumerate(largest):
            bits = b.and_(e.load(source, b.add(b.mul(index, e.i64(4 * STEP)), e.i64(64 * part)), wide), mask)
            results.append(e.call("llvm.smax.v16i32", wide, value, bits))
        return results

    zero = e.constant(0, I32, 16)
    low, high = e.loop(e.i64(0), num_steps, 1, [zero, zero], step)
    return e.call("llvm.vector.reduce.smax.v16i32", I32, e.call("llvm.smax.v16i32", wide, low, high))


def _factors(e: Emitter, bits: Value) -> tuple[Value, Value]:
    """(what activations are multiplied by, scale of their integers) for the bits of the largest magnitude."""
    b = e.b
    largest = b.bitcast(bits, F32)
    top = ir.Constant(F32, float(MAX_CODE))
    zero, nan = ir.Constant(F32, 0.0), ir.Constant(F32, float("nan"))
    is_usual = b.and_(
        b.fcmp_ordered("<", largest, ir.Constant(F32, float("inf"))),
        b.fcmp_ordered(">=", largest, _f32(LEAST)),
    )
    is_small = b.fcmp_ordered("<", largest, _f32(LEAST))
    factor = b.select(is_usual, b.fdiv(top, largest), zero)
    scale = b.select(is_usual, b.fdiv(largest, top), b.select(is_small, zero, nan))
    return factor, scale


def _f32(value: float) -> ir.Constant:
    """The float32 next to value."""
    return ir.Constant(F32, float(np.float32(value)))


def _convert(e: Emitter, source: Value, block: Value, within: Value, num_steps: Value, factor: Value) -> None:
    b = e.b
    factors = e.splat(factor, 16)
    magic = e.constant(ROUND, F32, 16)
    order = [4 * k4 + k for k4 in range(8) for k in (0, 2, 1, 3)]

    def step(index: Value) -> list[Value]:
        target = e.at(block, b.mul(index, e.i64(STEP_BYTES)))
        halves, sums = [], []
        for part in range(2):
            offset = b.add(b.mul(index, e.i64(4 * STEP)), e.i64(64 * part))
            scaled = b.fmul(e.load(source, offset, e.vector(F32, 16)), factors)
            bits = b.bitcast(b.fadd(scaled, magic), e.vector(I32, 16))
            codes = b.sub(bits, b.bitcast(magic, e.vector(I32, 16)))
            halves.append(b.trunc(codes, e.vector(I16, 16)))
            sums.append(e.call("llvm.vector.reduce.add.v16i32", I32, codes))
        mask = ir.Constant(e.vector(I32, STEP), order)
        codes = b.shuffle_vector(*halves, mask)
        e.store(codes, target, b.mul(within, e.i64(CODE_BYTES)))
        row = b.mul(within, e.i64(4))
        for place, total in enumerate((b.add(*sums), *sums)):
            e.store(
                b.sitofp(total, F32),
                target,
                b.add(row, e.i64(sums_offset(STEP, 0, 0) + BLOCK * SUM_BYTES * place)),
                align=4,
            )
        return []

    e.loop(e.i64(0), num_steps, 1, [], step)


def _split(e: Emitter, block: Value, within: Value, num_steps: Value, target: Value) -> None:
    """The integers of a row as pairs of bfloat16."""
    b = e.b
    wide, row = e.vector(I32, STEP), b.mul(within, e.i64(CODE_BYTES))

    def step(index: Value) -> list[Value]:
        codes = e.load(block, b.add(b.mul(index, e.i64(STEP_BYTES)), row), e.vector(I16, STEP))
        codes = b.sext(codes, wide)
        place = b.mul(index, e.i64(2 * CODE_BYTES))
        for half, mask in enumerate((HIGH_MASK, ~HIGH_MASK)):
            floats = b.sitofp(b.and_(codes, e.constant(mask, I32, STEP)), e.vector(F32, STEP))
            upper = b.lshr(b.bitcast(floats, wide), e.constant(16, I32, STEP))
            e.store(b.trunc(upper, e.vector(I16, STEP)), target, b.add(place, e.i64(half * CODE_BYTES)), align=64)
        return []

    e.loop(e.i64(0), num_steps, 1, [], step)
