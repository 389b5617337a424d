"""The inner loops of products with a FloatForm: acc = acc + w * x for k ascending, each step rounded.

Layout of a panel: for each k 16 rows of w. bf16 is laid out in pairs, a 32-bit lane holding k (even) in its low half
and k + 1 in its high one, so that one shift or mask makes a float32.
"""

from __future__ import annotations

from inference.kernels.jit.ir import F16, F32, I32, Emitter, Value
from inference.kernels.quantized import FloatForm

PANEL = 16
K_STEP = 2


def k_bytes(form: FloatForm) -> int:
    """Bytes of one k of a panel."""
    return PANEL * (4 if form.floats == "f32" else 2)


class FloatTile:
    """Emits out[r, n] for `num_panels` panels and some tokens."""

    def __init__(self, e: Emitter, form: FloatForm, num_panels: int, num_tokens: int) -> None:
        self.e = e
        self.form = form
        self.num_tokens = num_tokens
        self.vectors = [(p, v) for p in range(num_panels) for v in range(PANEL // e.tier.lanes)]

    def totals(
        self, panels: list[Value], tokens: list[Value], num_steps: Value, ahead: Value | None
    ) -> list[list[Value]]:
        """Sums per token, per vector of rows; num_steps pairs of k. ahead: how far memory is asked for, if at all."""
        e, b, width = self.e, self.e.b, len(self.vectors)
        zeros = [e.constant(0.0, F32)] * (width * self.num_tokens)

        def step(index: Value, *state: Value) -> list[Value]:
            addresses, sums = state[: len(panels)], list(state[len(panels) :])
            for address in addresses if ahead is not None else ():
                e.prefetch(address, ahead, K_STEP * k_bytes(self.form), is_near=self.num_tokens == 1)
            both = [self._weights(addresses[p], v) for p, v in self.vectors]
            for k in range(K_STEP):
                for t in range(self.num_tokens):
                    x = e.splat(e.load(tokens[t], b.add(b.mul(index, e.i64(8)), e.i64(4 * k)), F32, align=4))
                    for v in range(width):
                        at = t * width + v
                        sums[at] = b.fadd(sums[at], b.fmul(both[v][k], x))
            following = [e.at(address, K_STEP * k_bytes(self.form)) for address in addresses]
            return [*following, *sums]

        flat = e.loop(e.i64(0), num_steps, 1, [*panels, *zeros], step)[len(panels) :]
        return [list(flat[t * width : (t + 1) * width]) for t in range(self.num_tokens)]

    def _weights(self, panel: Value, vector: int) -> tuple[Value, Value]:
        """float32 rows of two neighbouring k."""
        e, b, lanes = self.e, self.e.b, self.e.tier.lanes
        if self.form.floats == "bf16":
            pair = e.load(panel, vector * lanes * 4, e.vector(I32))
            low = b.shl(pair, e.constant(16, I32))
            high = b.and_(pair, e.constant(-65536, I32))
            return b.bitcast(low, e.vector(F32)), b.bitcast(high, e.vector(F32))
        if self.form.floats == "f16":
            first, second = (e.load(panel, (k * PANEL + vector * lanes) * 2, e.vector(F16)) for k in range(2))
            return e.widen_f16(first), e.widen_f16(second)
        first, second = (e.load(panel, (k * PANEL + vector * lanes) * 4, e.vector(F32)) for k in range(2))
        return first, second
