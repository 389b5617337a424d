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
                e.prefetch(address, ahead, per_step * group_size)
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
        e, b, form, width = self.e, self.e.b, self.form, len(self.vectors)
        exact: list[Value] = [e.constant(0, I32)] * len(sums)
        for k4 in range(form.group // 4 // (1 if form.codes == "s8" else 2)):
            words = [
                list(self._words(panels[p], offset + (k4 * PANEL + v * e.tier.lanes) * 4)) for p, v in self.vectors
            ]
            for index in range(len(words[0])):
                place = words[0][index][0] + 8 * k4 + 2 * form.group * part
                for t in range(self.num_tokens):
                    pair = e.load(data, t * CODE_BYTES + place, I32, align=4)
                    for v in range(width):
                        at = t * width + v
                        exact[at] = e.add_products(exact[at], words[v][index][1], pair)
        scale_at = offset + PANEL * form.group // (1 if form.codes == "s8" else 2)
        for v, (p, first) in enumerate(self.vectors):
            scale = self._scales(panels[p], scale_at, first)
            minimum = self._scales(panels[p], scale_at + self._scale_bytes * PANEL, first) if form.has_minimum else None
            for t in range(self.num_tokens):
                at = t * width + v
                product = b.fmul(b.sitofp(exact[at], e.vector(F32)), scale)
                if minimum is not None:
                    token_sum = e.splat(e.load(e.at(data, distance), sums_offset(form.group, part, t), F32, align=4))
                    product = b.fadd(product, b.fmul(token_sum, minimum))
                sums[at] = b.fadd(sums[at], product)
        return sums

    @property
    def _scale_bytes(self) -> int:
        return 2 if self.form.scale == "f16" else 4

    def _scales(self, panel: Value, offset: int, vector: int) -> Value:
        e = self.e
        offset += vector * e.tier.lanes * self._scale_bytes
        if self.form.scale == "f32":
            return e.load(panel, offset, e.vector(F32))
        return e.widen_f16(e.load(panel, offset, e.vector(F16)))

    def _words(self, panel: Value, offset: int) -> Iterator[tuple[int, Value]]:
        """(bytes to the activations of its pairs, words) out of one vector of codes."""
        e, b = self.e, self.e.b
        lanes = e.vector(I16, 2 * e.tier.lanes)
        raw = e.load(panel, offset, lanes)
        shifts = [e.constant(bits, I16, lanes.count) for bits in range(16)]
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
