"""Products of many tokens with an IntegerForm where registers are few: weights unpacked once, then met by all tokens.

With 16 registers a tile cannot hold enough tokens to make up for unpacking its weights. So a part of a panel is
unpacked into the thread's scratch, small enough for the nearest cache: its steps one after another, each as [16 pairs
of k x 16 rows, int16][for each group: 16 scales, 16 minimums, float32], pairs in the order of the activations. From
there on all forms are alike. Float sums wait in the scratch as well, so that the integer ones have the registers.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from inference.kernels.jit.cpu import Tier
from inference.kernels.jit.ir import F32, I32, I64, PTR, Emitter, Value
from inference.kernels.jit.linear_integer import PANEL, GroupReader, add_group, group_bytes
from inference.kernels.jit.linear_output import write_rows
from inference.kernels.jit.linear_rows import BLOCK, CODE_BYTES, STEP, STEP_BYTES, emit_block_bytes, sums_offset
from inference.kernels.quantized import IntegerForm

LINE = 4 * PANEL  # bytes of a vector of all rows
PAIRS = STEP // 2
MAX_STEPS = 18  # of a part: 576 k, which with the activations of a tile fit 32 KB
MAX_ROWS = 64  # tokens that meet a panel before the next one comes: their activations stay in the second cache
SUMS_AT = MAX_STEPS * LINE * (PAIRS + 4)
UNPACKED_BYTES = SUMS_AT + MAX_ROWS * LINE
VECTORS = 2  # of rows, in a tile: with four tokens eight sums

UNPACK_PARAMETERS: tuple[ir.Type, ...] = (PTR, PTR, I64, I64)
TILE_PARAMETERS: tuple[ir.Type, ...] = (PTR, I64, PTR, PTR, I64)


def unpacked_bytes(form: IntegerForm) -> int:
    """Bytes of a step."""
    return LINE * (PAIRS + 2 * STEP // form.group)


def emit_unpack(
    e: Emitter, form: IntegerForm, convert: Callable[[Emitter, Value], Value] = lambda _, words: words
) -> ir.Function:
    """void (part of a panel, scratch, number of steps, how far ahead memory is asked for).

    convert: what becomes of each pair of int16, if anything else of four bytes.
    """
    panel, scratch, num_steps, ahead = e.arguments
    per_step, group_size = STEP // form.group, group_bytes(form)
    width = PANEL // e.tier.lanes

    def step(_: Value, source: Value, target: Value) -> list[Value]:
        e.prefetch(source, ahead, per_step * group_size)
        for part in range(per_step):
            reader = GroupReader(e, form, source, part * group_size)
            for v in range(width):
                at = 4 * v * e.tier.lanes
                for place, words in reader.words(v):
                    e.store(
                        convert(e, words),
                        target,
                        LINE * (place // 4 + part * form.group // 2) + at,
                        align=4 * e.tier.lanes,
                    )
                scales = LINE * (PAIRS + 2 * part) + at
                e.store(reader.scales(v), target, scales, align=4 * e.tier.lanes)
                if form.has_minimum:
                    e.store(reader.minimums(v), target, scales + LINE, align=4 * e.tier.lanes)
        return [e.at(source, per_step * group_size), e.at(target, unpacked_bytes(form))]

    e.loop(e.i64(0), num_steps, 1, [panel, scratch], step)
    return e.finish()


def emit_tile(e: Emitter, form: IntegerForm) -> ir.Function:
    """void (unpacked part, number of steps, codes of a block, its sums so far (4, 16) f32, whether there are any)."""
    totals, has_totals = e.arguments[3:]
    with e.when(e.b.icmp_signed("==", has_totals, e.i64(0))):
        for at in range(0, BLOCK * LINE, 4 * e.tier.lanes):
            e.store(e.constant(0.0, F32), totals, at, align=4 * e.tier.lanes)
    for first in range(0, PANEL // e.tier.lanes, VECTORS):
        _emit_vectors(e, form, first)
    return e.finish()


def _emit_vectors(e: Emitter, form: IntegerForm, first: int) -> None:
    """The tile's work for the vectors of rows first .. first + VECTORS - 1."""
    unpacked, num_steps, codes, totals, _ = e.arguments
    size = 4 * e.tier.lanes

    def step(_: Value, weights: Value, data: Value) -> list[Value]:
        for part in range(STEP // form.group):
            exact = _exact(e, form, weights, data, part, first)
            at = LINE * (PAIRS + 2 * part) + size * first
            scales = [e.load(weights, at + size * v, e.vector(F32), size) for v in range(VECTORS)]
            minimums: list[Value] = [None] * VECTORS
            if form.has_minimum:
                minimums = [e.load(weights, at + LINE + size * v, e.vector(F32), size) for v in range(VECTORS)]
            for t in range(BLOCK):
                token_sum = e.load(data, sums_offset(form.group, part, t), F32, align=4)
                for v in range(VECTORS):
                    place = e.at(totals, LINE * t + size * (first + v))
                    total = e.load(place, 0, e.vector(F32), size)
                    total = add_group(e, total, exact[t * VECTORS + v], scales[v], minimums[v], token_sum)
                    e.store(total, place, 0, align=size)
        return [e.at(weights, unpacked_bytes(form)), e.at(data, STEP_BYTES)]

    e.loop(e.i64(0), num_steps, 1, [unpacked, codes], step)


def _exact(e: Emitter, form: IntegerForm, weights: Value, data: Value, part: int, first: int) -> list[Value]:
    """Integer sums of a group: per token, per vector of rows."""
    lanes = e.tier.lanes
    exact: list[Value] = [e.constant(0, I32)] * (BLOCK * VECTORS)
    for pair in range(part * form.group // 2, (part + 1) * form.group // 2):
        at = LINE * pair + 4 * lanes * first
        words = [e.load(weights, at + 4 * lanes * v, e.vector(I32), 4 * lanes) for v in range(VECTORS)]
        for t in range(BLOCK):
            activations = e.load(data, t * CODE_BYTES + 4 * pair, I32, align=4)
            for v in range(VECTORS):
                index = t * VECTORS + v
                exact[index] = e.add_products(exact[index], words[v], activations)
    return exact


class UnpackedProduct:
    """Emits a product's walk over many tokens, into a function with linear_kernel.PARAMETERS."""

    def __init__(self, module: ir.Module, tier: Tier, form: IntegerForm, name: str) -> None:
        self.form = form
        self.unpack = emit_unpack(Emitter(module, tier, f"{name}_unpack", UNPACK_PARAMETERS, public=False), form)
        self.tile = emit_tile(Emitter(module, tier, f"{name}_unpacked", TILE_PARAMETERS, public=False), form)

    def walk(self, e: Emitter) -> None:
        """All rows with all panels."""
        first, end, _, _, first_panel, end_panel = e.arguments[-6:]

        def rows(row: Value) -> list[Value]:
            last = least(e, e.b.add(row, e.i64(MAX_ROWS)), end)
            e.loop(first_panel, end_panel, 1, [], lambda panel: self._panel(e, panel, row, last))
            return []

        e.loop(first, end, MAX_ROWS, [], rows)

    def _panel(self, e: Emitter, panel: Value, row: Value, last: Value) -> list[Value]:
        b = e.b
        data, panel_bytes, _, num_inner, _, _, codes, _, scratch = e.arguments[:9]
        num_steps = b.udiv(num_inner, e.i64(STEP))
        block_bytes = emit_block_bytes(e, num_steps)
        source, totals = e.at(data, b.mul(panel, panel_bytes)), e.at(scratch, SUMS_AT)
        step_bytes = e.i64(STEP // self.form.group * group_bytes(self.form))

        def part(step: Value) -> list[Value]:
            count = least(e, b.sub(num_steps, step), e.i64(MAX_STEPS))
            b.call(self.unpack, [e.at(source, b.mul(step, step_bytes)), scratch, count, panel_bytes])

            def tile(block: Value, place: Value) -> list[Value]:
                begun = e.at(block, b.mul(step, e.i64(STEP_BYTES)))
                b.call(self.tile, [scratch, count, begun, place, step])
                return [e.at(block, block_bytes), e.at(place, BLOCK * LINE)]

            e.loop(row, last, BLOCK, [blocks, totals], lambda _, *state: tile(*state))
            return []

        blocks = e.at(codes, b.mul(b.udiv(row, e.i64(BLOCK)), block_bytes))
        e.loop(e.i64(0), num_steps, MAX_STEPS, [], part)
        finish_rows(e, panel, row, last, totals)
        return []


def finish_rows(e: Emitter, panel: Value, row: Value, last: Value, totals: Value) -> None:
    """Writes the rows row .. last - 1 of a panel: their sums over all groups, 64 bytes each, by their scales."""
    b = e.b
    num_rows, num_inner, codes, out, out_stride = (e.arguments[index] for index in (2, 3, 6, 11, 12))
    num_steps = b.udiv(num_inner, e.i64(STEP))
    block_bytes = emit_block_bytes(e, num_steps)
    column = b.mul(panel, e.i64(PANEL))

    def finish(index: Value, place: Value) -> list[Value]:
        block = e.at(codes, b.mul(b.udiv(index, e.i64(BLOCK)), block_bytes))
        at = b.add(b.mul(num_steps, e.i64(STEP_BYTES)), b.mul(b.and_(index, e.i64(BLOCK - 1)), e.i64(4)))
        scale = e.splat(e.load(block, at, F32, align=4))
        size = 4 * e.tier.lanes
        values = [b.fmul(e.load(place, v, e.vector(F32), size), scale) for v in range(0, LINE, size)]
        target = e.at(out, b.mul(b.add(b.mul(index, out_stride), column), e.i64(4)))
        write_rows(e, [values], target, out_stride, b.sub(num_rows, column))
        return [e.at(place, LINE)]

    e.loop(row, last, 1, [totals], finish)


def least(e: Emitter, left: Value, right: Value) -> Value:
    return e.b.select(e.b.icmp_signed("<", left, right), left, right)
