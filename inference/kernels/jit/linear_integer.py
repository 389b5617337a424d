"""The inner loops of products with an IntegerForm: exact integer sums of a group, then its scale in float32.

Layout of a panel (16 rows of w): its groups one after another, each as [codes][16 scales][16 minimums]. Codes come as
vectors of 16 rows x 4 neighbouring k, rows ascending, one byte each; of 4-bit codes a byte holds two, k in the low
half and k + group / 2 in the high one. A 32-bit lane so becomes pairs of words (k, k + 2) and (k + 1, k + 3) by
shifts and masks alone, and activations lie in that order (linear_rows).
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.kernels.jit.ir import F16, F32, I16, I32, Emitter, Value
from inference.kernels.jit.linear_rows import CODE_BYTES, STEP, STEP_BYTES, sums_offset
from inference.kernels.quantized import IntegerForm

PANEL = 16  # rows of w


def group_bytes(form: IntegerForm) -> int:
    """Bytes of a group of a panel."""
    code_bytes = PANEL * form.group // (1 if form.codes == "s8" else 2)
    scale_bytes = PANEL * (2 if form.scale == "f16" else 4)
    return code_bytes + scale_bytes * (2 if form.has_minimum else 1)


class IntegerTile:
    """Emits out[r, n] for `num_panels` panels and `num_tokens` tokens of one block of activations.

    totals() takes the panels' addresses, that of the first token's codes, what to add to it for its sums, and how far
    ahead memory is asked for, if at all.
    """

    def __init__(self, e: Emitter, form: IntegerForm, num_panels: int, num_tokens: int) -> None:
        self.e = e
        self.form = form
        self.num_tokens = num_tokens
        self.vectors = [(p, v) for p in range(num_panels) for v in range(PANEL // e.tier.lanes)]

    def totals(
        self, panels: list[Value], codes: Value, distance: Value, num_steps: Value, ahead: Value | None = None
    ) -> list[list[Value]]:
        """Float sums over all groups: per token, per vector of rows."""
        e = self.e
        count = len(self.vectors) * self.num_tokens
        per_step = STEP // self.form.group
        zeros = [e.constant(0.0, F32)] * count
        group_size = group_bytes(self.form)

        def step(_: Value, data: Value, *state: Value) -> list[Value]:
            for address in state[: len(panels)] if ahead is not None else ():
                e.prefetch(address, ahead, per_step * group_size, is_near=self.num_tokens == 1)
            sums = list(state[len(panels) :])
            addresses = [data, *state[: len(panels)]]
            for part in range(per_step):
                sums = self._group(addresses[1:], part * group_size, addresses[0], distance, part, sums)
            following = [e.at(address, per_step * group_size) for address in addresses[1:]]
            return [e.at(data, STEP_BYTES), *following, *sums]

        carried = e.loop(e.i64(0), num_steps, 1, [codes, *panels, *zeros], step)
        flat = carried[1 + len(panels) :]
        width = len(self.vectors)
        return [list(flat[t * width : (t + 1) * width]) for t in range(self.num_tokens)]

    def _group(
        self, panels: list[Value], offset: int, data: Value, distance: Value, part: int, sums: list[Value]
    ) -> list[Value]:
        e, form, width = self.e, self.form, len(self.vectors)
        exact: list[Value] = [e.constant(0, I32)] * len(sums)
        readers = [GroupReader(e, form, panel, offset) for panel in panels]
        for k4 in range(num_quads(form)):
            words = [list(readers[p].quad(k4, v)) for p, v in self.vectors]
            for index in range(len(words[0])):
                place = words[0][index][0] + 2 * form.group * part
                for t in range(self.num_tokens):
                    pair = e.load(data, t * CODE_BYTES + place, I32, align=4)
                    for v in range(width):
                        at = t * width + v
                        exact[at] = e.add_products(exact[at], words[v][index][1], pair)
        for v, (p, vector) in enumerate(self.vectors):
            scale = readers[p].scales(vector)
            minimum = readers[p].minimums(vector) if form.has_minimum else None
            for t in range(self.num_tokens):
                at = t * width + v
                token_sum = e.load(e.at(data, distance), sums_offset(form.group, part, t), F32, align=4)
                sums[at] = add_group(e, sums[at], exact[at], scale, minimum, token_sum)
        return sums


def add_group(e: Emitter, total: Value, exact: Value, scale: Value, minimum: Value | None, token_sum: Value) -> Value:
    """total + (float(exact) * scale + float(sum of x) * minimum), rounded at each step; the sum of x is a scalar."""
    return add_exact(e, total, e.b.sitofp(exact, e.vector(F32)), scale, minimum, token_sum)


def add_exact(e: Emitter, total: Value, exact: Value, scale: Value, minimum: Value | None, token_sum: Value) -> Value:
    """The same for a sum that is float32 already."""
    b = e.b
    product = b.fmul(exact, scale)
    if minimum is not None:
        product = b.fadd(product, b.fmul(e.splat(token_sum), minimum))
    return b.fadd(total, product)


def num_quads(form: IntegerForm) -> int:
    """Vectors of codes in a group, for as many rows as a vector has lanes."""
    return form.group // 4 // (1 if form.codes == "s8" else 2)


class GroupReader:
    """Emits the weights of a group of a panel, which lies `offset` bytes behind an address."""

    def __init__(self, e: Emitter, form: IntegerForm, panel: Value, offset: int) -> None:
        self.e = e
        self.form = form
        self.panel = panel
        self.offset = offset

    def words(self, vector: int) -> Iterator[tuple[int, Value]]:
        """(bytes to the activations of its pairs from those of the group on, words for add_products) of all k."""
        for k4 in range(num_quads(self.form)):
            yield from self.quad(k4, vector)

    def quad(self, k4: int, vector: int) -> Iterator[tuple[int, Value]]:
        """The same out of one vector of codes."""
        raw = self.e.load(
            self.panel,
            self.offset + (k4 * PANEL + vector * self.e.tier.lanes) * 4,
            self.e.vector(I16, 2 * self.e.tier.lanes),
        )
        for place, words in self._unpacked(self.e.ordered(raw)):
            yield 8 * k4 + place, words

    def scales(self, vector: int) -> Value:
        return self._floats(self.offset + PANEL * num_quads(self.form) * 4, vector)

    def minimums(self, vector: int) -> Value:
        return self._floats(self.offset + PANEL * (num_quads(self.form) * 4 + self._scale_bytes), vector)

    @property
    def _scale_bytes(self) -> int:
        return 2 if self.form.scale == "f16" else 4

    def _floats(self, offset: int, vector: int) -> Value:
        e = self.e
        offset += vector * e.tier.lanes * self._scale_bytes
        if self.form.scale == "f32":
            return e.load(self.panel, offset, e.vector(F32))
        return e.widen_f16(e.load(self.panel, offset, e.vector(F16)))

    def _unpacked(self, raw: Value) -> Iterator[tuple[int, Value]]:
        e, b = self.e, self.e.b
        shifts = [e.constant(bits, I16, raw.type.count) for bits in range(16)]
        if self.form.codes == "s8":
            yield 0, b.ashr(b.shl(raw, shifts[8]), shifts[8])
            yield 4, b.ashr(raw, shifts[8])
            return
        half = self.form.group  # bytes of the first half of a group's activations
        for index, place in enumerate((0, half, 4, 4 + half)):
            if self.form.codes == "s4":
                yield place, b.ashr(b.shl(raw, shifts[12 - 4 * index]) if index < 3 else raw, shifts[12])
            else:
                moved = b.lshr(raw, shifts[4 * index]) if index else raw
                yield place, b.and_(moved, shifts[15]) if index < 3 else moved
