"""One compiled product per form: walks tiles of panels and tokens, writes what belongs to the matrix.

See `linear` for what it does; PARAMETERS are what it takes.
"""

from __future__ import annotations

from llvmlite import ir

from inference.kernels.jit.cpu import Tier
from inference.kernels.jit.ir import F32, I64, PTR, Emitter, Value
from inference.kernels.jit.linear_float import K_STEP, FloatTile
from inference.kernels.jit.linear_integer import PANEL, IntegerTile
from inference.kernels.jit.linear_output import write_rows
from inference.kernels.jit.linear_rows import BLOCK, CODE_BYTES, STEP, STEP_BYTES, SUM_BYTES, emit_block_bytes
from inference.kernels.jit.linear_tiles import MIN_TILED, TILED_BYTES, TiledProduct
from inference.kernels.jit.linear_unpacked import UNPACKED_BYTES, UnpackedProduct
from inference.kernels.quantized import FloatForm, Form, IntegerForm

# matrix: data, panel_bytes, num_rows, num_inner; activations: x, x_stride, data, tiles; scratch; rows, out, stride,
# panels
PARAMETERS: tuple[ir.Type, ...] = (PTR, I64, I64, I64, PTR, I64, PTR, PTR, PTR, I64, I64, PTR, I64, I64, I64)
SCRATCH_BYTES = max(UNPACKED_BYTES, TILED_BYTES)  # of a thread
TILES = 7  # place of tiles among them
MIN_UNPACKED = 7  # tokens; with fewer, weights are unpacked again for each tile
TILE_PARAMETERS: tuple[ir.Type, ...] = (PTR, I64, I64, PTR, I64, PTR, I64, I64)


class Product:
    """Emits the function `name` of a form into a module.

    A tile is a function of its own for so many panels and tokens. What the first tokens read of the weights comes from
    memory: their tiles ask for the next panels meanwhile, later ones find them in the cache. One token alone takes the
    panels one by one: hardware follows one stream better than three, and there is nothing to share.
    """

    def __init__(self, module: ir.Module, tier: Tier, form: Form, name: str) -> None:
        self.module = module
        self.tier = tier
        self.form = form
        self.name = name
        self.panels_per_tile = 3 if tier.num_registers >= 32 else 1
        self.tokens_per_tile = BLOCK if tier.lanes >= 8 else 2  # as many sums as registers hold
        self.unpacked: UnpackedProduct | None = None
        if isinstance(form, IntegerForm) and tier.num_registers < 32:
            self.unpacked = UnpackedProduct(module, tier, form, name)
        self.tiled: TiledProduct | None = None
        if isinstance(form, IntegerForm) and tier.has_tiles:
            self.tiled = TiledProduct(module, tier, form, name)
        self.tiles: dict[tuple[int, int, bool], ir.Function] = {}
        self._walk()

    def _tile(self, num_panels: int, num_tokens: int, *, is_first: bool) -> ir.Function:
        key = num_panels, num_tokens, is_first
        if key not in self.tiles:
            self.tiles[key] = self._emit_tile(f"{self.name}_{num_panels}x{num_tokens}{'_first' * is_first}", *key)
        return self.tiles[key]

    def _emit_tile(self, name: str, num_panels: int, num_tokens: int, is_first: bool) -> ir.Function:
        """void (panels, panel_bytes, K, tokens, token_bytes, out, out_stride, number of rows of w from here on).

        tokens: the first row of x, token_bytes from the next; or the codes of the first token in a block of integers.
        Codes of neighbours are 64 bytes apart, their sums and scales 4: token_bytes is then what is to be added to
        find those of tokens behind the first of the block.
        """
        e = Emitter(self.module, self.tier, name, TILE_PARAMETERS, public=False)
        b = e.b
        data, panel_bytes, num_inner, tokens, token_bytes, out, out_stride, num_rows = e.arguments
        panels = [e.at(data, b.mul(panel_bytes, e.i64(p))) for p in range(num_panels)]
        ahead = b.mul(panel_bytes, e.i64(num_panels)) if is_first else None
        if isinstance(self.form, FloatForm):
            rows = [e.at(tokens, b.mul(token_bytes, e.i64(t))) for t in range(num_tokens)]
            float_tile = FloatTile(e, self.form, num_panels, num_tokens)
            totals = float_tile.totals(panels, rows, b.udiv(num_inner, e.i64(K_STEP)), ahead)
        else:
            tile = IntegerTile(e, self.form, num_panels, num_tokens)
            num_steps = b.udiv(num_inner, e.i64(STEP))
            totals = tile.totals(panels, tokens, token_bytes, num_steps, ahead)
            scales = e.at(e.at(tokens, token_bytes), b.mul(num_steps, e.i64(STEP_BYTES)))
            for t, sums in enumerate(totals):
                scale = e.splat(e.load(scales, 4 * t, F32, align=4))
                totals[t] = [b.fmul(value, scale) for value in sums]
        write_rows(e, totals, out, out_stride, num_rows)
        return e.finish()

    def _walk(self) -> None:
        e = Emitter(self.module, self.tier, self.name, PARAMETERS, public=True)
        b = e.b
        first_row, end_row, _, _, first, end = e.arguments[-6:]
        num_tokens = b.sub(end_row, first_row)
        with b.if_else(b.icmp_signed("==", num_tokens, e.i64(1))) as (is_one, are_several):
            with is_one:
                e.loop(first, end, 1, [], lambda panel: self._call_tile(e, panel, 1, first_row, 1, is_first=True))
            with are_several:
                self._several(e, num_tokens)
        e.finish()

    def _several(self, e: Emitter, num_tokens: Value) -> None:
        """More tokens than one, in the way that is fastest for so many."""
        b = e.b
        if self.tiled is not None:
            has_tiles = b.icmp_unsigned("!=", b.ptrtoint(e.arguments[TILES], I64), e.i64(0))
            is_tiled = b.and_(has_tiles, b.icmp_signed(">=", num_tokens, e.i64(MIN_TILED)))
            with b.if_else(is_tiled) as (are_many, are_few):
                with are_many:
                    self.tiled.walk(e)
                with are_few:
                    self._without_tiles(e, num_tokens)
        else:
            self._without_tiles(e, num_tokens)

    def _without_tiles(self, e: Emitter, num_tokens: Value) -> None:
        if self.unpacked is None:
            self._tiles(e)
            return
        with e.b.if_else(e.b.icmp_signed("<", num_tokens, e.i64(MIN_UNPACKED))) as (are_few, are_many):
            with are_few:
                self._tiles(e)
            with are_many:
                self.unpacked.walk(e)

    def _tiles(self, e: Emitter) -> None:
        b, step = e.b, self.panels_per_tile
        first, end = e.arguments[-2:]
        count = b.sub(end, first)
        middle = b.add(first, b.sub(count, b.srem(count, e.i64(step))))
        e.loop(first, middle, step, [], lambda panel: self._rows(e, panel, step))
        if step > 1:
            e.loop(middle, end, 1, [], lambda panel: self._rows(e, panel, 1))

    def _rows(self, e: Emitter, panel: Value, num_panels: int) -> list[Value]:
        """All tokens with some panels."""
        b, step = e.b, self.tokens_per_tile
        first, end = e.arguments[-6:-4]

        def tile(row: Value) -> list[Value]:
            left, done = b.sub(end, row), b.append_basic_block("next")
            full = b.append_basic_block("full")
            switch = b.switch(left, full)
            for count in range(1, step):
                block = b.append_basic_block(f"tokens{count}")
                switch.add_case(e.i64(count), block)
                b.position_at_end(block)
                self._call_tile(e, panel, num_panels, row, count, is_first=True)
                b.branch(done)
            b.position_at_end(full)
            with b.if_else(b.icmp_signed("==", row, first)) as (is_first, is_later):
                for place in (is_first, is_later):
                    with place:
                        self._call_tile(e, panel, num_panels, row, step, is_first=place is is_first)
            b.branch(done)
            b.position_at_end(done)
            return []

        e.loop(first, end, step, [], tile)
        return []

    def _call_tile(
        self, e: Emitter, panel: Value, num_panels: int, row: Value, num_tokens: int, *, is_first: bool
    ) -> list[Value]:
        b = e.b
        data, panel_bytes, num_rows, num_inner, x, x_stride, rows = e.arguments[:7]
        out, out_stride = e.arguments[-4:-2]
        panels = e.at(data, b.mul(panel, panel_bytes))
        column = b.mul(panel, e.i64(PANEL))
        if isinstance(self.form, FloatForm):
            tokens, distance = e.at(x, b.mul(b.mul(row, x_stride), e.i64(4))), b.mul(x_stride, e.i64(4))
        else:
            size = emit_block_bytes(e, b.udiv(num_inner, e.i64(STEP)))
            within = b.and_(row, e.i64(BLOCK - 1))
            block = e.at(rows, b.mul(b.udiv(row, e.i64(BLOCK)), size))
            tokens = e.at(block, b.mul(within, e.i64(CODE_BYTES)))
            distance = b.mul(within, e.i64(SUM_BYTES - CODE_BYTES))
        target = e.at(out, b.mul(b.add(b.mul(row, out_stride), column), e.i64(4)))
        function = self._tile(num_panels, num_tokens, is_first=is_first)
        rest = b.sub(num_rows, column)
        b.call(function, [panels, panel_bytes, num_inner, tokens, distance, target, out_stride, rest])
        return []


def emit_linear(module: ir.Module, tier: Tier, form: Form, name: str) -> None:
    """The product of a form as the public function `name`."""
    Product(module, tier, form, name)
