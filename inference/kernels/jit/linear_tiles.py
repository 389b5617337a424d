"""Products of many tokens with an IntegerForm by the tile instructions of AMX: exact, the same bits as without them.

A tile instruction adds products of bfloat16 to a 16 x 16 tile of float32 sums: 16 tokens by the 16 rows of a panel,
over the k of a group. An integer of 15 bits is a multiple of 128 with 8 significant bits and a rest of 7, both
bfloat16; so is a code. The sums of a group are integers. With codes of 4 bits all of them stay below 2**24, so float32
holds them exactly in whatever order they are added; with codes of 8 bits the multiples and the rests have a tile each,
exact as well, and one addition rounds their sum to the float32 that the whole sum would have been rounded to.

Part of a few panels is unpacked into the thread's scratch, then met by all tokens, so that both it and the tokens'
part stay in the first cache. Sums over groups are kept in registers within a part, and in the scratch between them.
"""

from __future__ import annotations

import struct

from llvmlite import ir

from inference.kernels.jit.cpu import Tier
from inference.kernels.jit.ir import F32, I8, I32, I64, PTR, VOID, Emitter, Value
from inference.kernels.jit.linear_integer import PANEL, add_exact, group_bytes
from inference.kernels.jit.linear_rows import (
    BLOCK,
    CODE_BYTES,
    STEP,
    STEP_BYTES,
    TILE_TOKENS,
    emit_block_bytes,
    emit_tile_row_bytes,
    sums_offset,
)
from inference.kernels.jit.linear_unpacked import (
    LINE,
    PAIRS,
    UNPACK_PARAMETERS,
    emit_unpack,
    finish_rows,
    least,
    unpacked_bytes,
)
from inference.kernels.quantized import IntegerForm

MIN_TILED = 16  # tokens; fewer do not make up for unpacking
PANELS = 3  # that the tokens of a tile meet in turn
MAX_STEPS = 6  # of a part: three panels and the tokens of a tile take 35 KB
MAX_ROWS = 256  # tokens that meet the panels before the next ones come: their tiles stay in the second cache
PART_BYTES = MAX_STEPS * LINE * (PAIRS + 4)
TILE_BYTES = TILE_TOKENS * LINE
SUMS_AT = PANELS * PART_BYTES  # of groups: two that take turns, of two tiles each
TOTALS_AT = SUMS_AT + 4 * TILE_BYTES
TILED_BYTES = TOTALS_AT + PANELS * MAX_ROWS * LINE
HIGH, LOW, TOKENS, WEIGHTS = 0, 1, 2, 3  # registers

TILE_PARAMETERS: tuple[ir.Type, ...] = (PTR, I64, PTR, I64, PTR, I64, PTR, PTR, I64)


def _config(form: IntegerForm) -> bytes:
    """Shapes of the registers, as ldtilecfg reads them: palette, bytes of a row (at 16), rows (at 48)."""
    widths, heights = (LINE, LINE, 2 * form.group, LINE), (TILE_TOKENS, TILE_TOKENS, TILE_TOKENS, form.group // 2)
    return struct.pack("<B15x4H24x4B12x", 1, *widths, *heights)


def _as_bfloat16(e: Emitter, words: Value) -> Value:
    """Pairs of int16 of at most 8 significant bits as pairs of bfloat16, exactly."""
    b, lanes, sixteen = e.b, e.vector(I32), e.constant(16, I32)
    words = b.bitcast(words, lanes)
    first, second = b.ashr(b.shl(words, sixteen), sixteen), b.ashr(words, sixteen)
    bits = [b.bitcast(b.sitofp(value, e.vector(F32)), lanes) for value in (first, second)]
    return b.or_(b.lshr(bits[0], sixteen), bits[1])


class TiledProduct:
    """Emits a product's walk over many tokens, into a function with linear_kernel.PARAMETERS."""

    def __init__(self, module: ir.Module, tier: Tier, form: IntegerForm, name: str) -> None:
        self.form = form
        self.has_halves = form.codes == "s8"  # a tile for multiples, another for rests
        unpack = Emitter(module, tier, f"{name}_tiles_unpack", UNPACK_PARAMETERS, public=False)
        self.unpack = emit_unpack(unpack, form, _as_bfloat16)
        self.tile = self._emit_tile(Emitter(module, tier, f"{name}_tile", TILE_PARAMETERS, public=False))
        config = _config(form)
        self.config = ir.GlobalVariable(module, ir.ArrayType(I8, len(config)), f"{name}_tile_config")
        self.config.initializer = ir.Constant(self.config.value_type, bytearray(config))
        self.config.global_constant = True
        self.config.linkage = "internal"
        self.config.align = 64

    def walk(self, e: Emitter) -> None:
        """All rows with all panels. Each thread has tile registers of its own, which nobody else has configured."""
        first, end, _, _, first_panel, end_panel = e.arguments[-6:]
        e.call("llvm.x86.ldtilecfg", VOID, e.b.bitcast(self.config, PTR))

        def rows(row: Value) -> list[Value]:
            last = least(e, e.b.add(row, e.i64(MAX_ROWS)), end)
            e.loop(first_panel, end_panel, PANELS, [], lambda panel: self._panels(e, panel, end_panel, row, last))
            return []

        e.loop(first, end, MAX_ROWS, [], rows)
        e.call("llvm.x86.tilerelease", VOID)

    def _panels(self, e: Emitter, panel: Value, end_panel: Value, row: Value, last: Value) -> list[Value]:
        b = e.b
        data, panel_bytes, _, num_inner, _, _, codes, tiles, scratch = e.arguments[:9]
        num_steps = b.udiv(num_inner, e.i64(STEP))
        block_bytes, row_bytes = emit_block_bytes(e, num_steps), emit_tile_row_bytes(e, num_steps)
        source, totals = e.at(data, b.mul(panel, panel_bytes)), e.at(scratch, TOTALS_AT)
        count = least(e, b.sub(end_panel, panel), e.i64(PANELS))
        ahead = b.mul(panel_bytes, e.i64(PANELS))
        packed_step = e.i64(STEP // self.form.group * group_bytes(self.form))

        def part(step: Value) -> list[Value]:
            size = least(e, b.sub(num_steps, step), e.i64(MAX_STEPS))

            def unpack(_: Value, panel_at: Value, target: Value) -> list[Value]:
                b.call(self.unpack, [e.at(panel_at, b.mul(step, packed_step)), target, size, ahead])
                return [e.at(panel_at, panel_bytes), e.at(target, PART_BYTES)]

            e.loop(e.i64(0), count, 1, [source, scratch], unpack)

            def tokens(index: Value) -> list[Value]:
                tile = e.at(e.at(tiles, b.mul(index, row_bytes)), b.mul(step, e.i64(2 * CODE_BYTES)))
                block = e.at(codes, b.mul(b.udiv(index, e.i64(BLOCK)), block_bytes))
                block = e.at(block, b.mul(step, e.i64(STEP_BYTES)))

                def meet(_: Value, weights: Value, place: Value) -> list[Value]:
                    sums = e.at(scratch, SUMS_AT)
                    b.call(self.tile, [weights, size, tile, row_bytes, block, block_bytes, place, sums, step])
                    return [e.at(weights, PART_BYTES), e.at(place, MAX_ROWS * LINE)]

                place = e.at(totals, b.mul(b.sub(index, row), e.i64(LINE)))
                e.loop(e.i64(0), count, 1, [scratch, place], meet)
                return []

            e.loop(row, last, TILE_TOKENS, [], tokens)
            return []

        e.loop(e.i64(0), num_steps, MAX_STEPS, [], part)

        def finish(index: Value, place: Value) -> list[Value]:
            finish_rows(e, b.add(panel, index), row, last, place)
            return [e.at(place, MAX_ROWS * LINE)]

        e.loop(e.i64(0), count, 1, [totals], finish)
        return []

    def _emit_tile(self, e: Emitter) -> ir.Function:
        """void (unpacked part, number of steps, bfloat16 of the first token, bytes to the next token, codes of its
        block, bytes to the next block, totals (16, 16) f32, sums of groups, whether there are totals already)."""
        b = e.b
        weights, num_steps, tokens, row_bytes, codes, block_bytes, place, sums_at, has_totals = e.arguments
        width, size = PANEL // e.tier.lanes, 4 * e.tier.lanes
        places = [(t, v) for t in range(TILE_TOKENS) for v in range(width)]
        with e.when(b.icmp_signed("==", has_totals, e.i64(0))):
            for t, v in places:
                e.store(e.constant(0.0, F32), place, LINE * t + size * v, align=size)
        totals = [e.load(place, LINE * t + size * v, e.vector(F32), size) for t, v in places]
        blocks = [b.mul(block_bytes, e.i64(index)) for index in range(TILE_TOKENS // BLOCK)]

        def step(index: Value, weights: Value, tokens: Value, codes: Value, *totals: Value) -> list[Value]:
            found = list(totals)
            for part in range(STEP // self.form.group):
                turn = b.and_(e.i64(1), b.add(index, e.i64(part)))
                sums = e.at(sums_at, b.mul(turn, e.i64(2 * TILE_BYTES)))
                self._multiply(e, weights, tokens, row_bytes, part, sums)
                at = LINE * (PAIRS + 2 * part)
                scales = [e.load(weights, at + size * v, e.vector(F32), size) for v in range(width)]
                minimums: list[Value] = [None] * width
                if self.form.has_minimum:
                    minimums = [e.load(weights, at + LINE + size * v, e.vector(F32), size) for v in range(width)]
                for position, (t, v) in enumerate(places):
                    exact = e.load(sums, LINE * t + size * v, e.vector(F32), size)
                    if self.has_halves:
                        rest = e.load(sums, TILE_BYTES + LINE * t + size * v, e.vector(F32), size)
                        exact = b.fadd(exact, rest)
                    offset = sums_offset(self.form.group, part, t % BLOCK)
                    token_sum = e.load(e.at(codes, blocks[t // BLOCK]), offset, F32, align=4)
                    found[position] = add_exact(e, found[position], exact, scales[v], minimums[v], token_sum)
            following = e.at(weights, unpacked_bytes(self.form)), e.at(tokens, 2 * CODE_BYTES), e.at(codes, STEP_BYTES)
            return [*following, *found]

        carried = e.loop(e.i64(0), num_steps, 1, [weights, tokens, codes, *totals], step)
        for (t, v), total in zip(places, carried[3:], strict=True):
            e.store(total, place, LINE * t + size * v, align=size)
        return e.finish()

    def _multiply(self, e: Emitter, weights: Value, tokens: Value, row_bytes: Value, part: int, sums: Value) -> None:
        """The sums of a group, to memory: (16 tokens, 16 rows) f32, and another such of the rests if they are apart."""
        line = e.i64(LINE)

        def register(name: str, number: int, *arguments: Value) -> None:
            e.call(f"llvm.x86.{name}", VOID, ir.Constant(I8, number), *arguments)

        def multiply(target: int) -> None:
            register("tdpbf16ps", target, ir.Constant(I8, TOKENS), ir.Constant(I8, WEIGHTS))

        low = LOW if self.has_halves else HIGH
        register("tileloadd64", WEIGHTS, e.at(weights, LINE * (self.form.group // 2) * part), line)
        for target in dict.fromkeys((HIGH, low)):
            register("tilezero", target)
        for half, target in enumerate((HIGH, low)):
            register("tileloadd64", TOKENS, e.at(tokens, CODE_BYTES * half + 2 * self.form.group * part), row_bytes)
            multiply(target)
        for index, target in enumerate(dict.fromkeys((HIGH, low))):
            register("tilestored64", target, e.at(sums, TILE_BYTES * index), line)
