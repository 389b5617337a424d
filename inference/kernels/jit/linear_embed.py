"""Reading one row of a packed matrix back as float32, number by number: what an embedding is looked up with."""

from __future__ import annotations

from llvmlite import ir

from inference.kernels.jit.cpu import Tier
from inference.kernels.jit.ir import F16, F32, I8, I16, I32, I64, PTR, Emitter, Value
from inference.kernels.jit.linear_float import k_bytes
from inference.kernels.jit.linear_integer import PANEL, group_bytes
from inference.kernels.quantized import FloatForm, Form, IntegerForm

EMBED_PARAMETERS: tuple[ir.Type, ...] = (PTR, I64, I64, I64, PTR)  # data, panel_bytes, K, row, out


def emit_embed(module: ir.Module, tier: Tier, form: Form, name: str) -> None:
    """void name(data, panel_bytes, K, row, out): code * scale, rounded, + minimum, rounded; floats as they are."""
    e = Emitter(module, tier, name, EMBED_PARAMETERS, public=True)
    b = e.b
    data, panel_bytes, num_inner, row, out = e.arguments
    panel = e.at(data, b.mul(b.udiv(row, e.i64(PANEL)), panel_bytes))
    within = b.and_(row, e.i64(PANEL - 1))

    def number(k: Value) -> list[Value]:
        if isinstance(form, FloatForm):
            value = _float(e, form, panel, within, k)
        else:
            value = _integer(e, form, panel, within, k)
        e.store(value, out, b.mul(k, e.i64(4)), align=4)
        return []

    e.loop(e.i64(0), num_inner, 1, [], number)
    e.finish()


def _float(e: Emitter, form: FloatForm, panel: Value, row: Value, k: Value) -> Value:
    b = e.b
    if form.floats == "bf16":
        pair = b.add(b.mul(b.udiv(k, e.i64(2)), e.i64(PANEL)), row)
        place = b.add(b.mul(pair, e.i64(2)), b.and_(k, e.i64(1)))
        bits = b.zext(e.load(panel, b.mul(place, e.i64(2)), I16), I32)
        return b.bitcast(b.shl(bits, ir.Constant(I32, 16)), F32)
    place = b.add(b.mul(k, e.i64(k_bytes(form))), b.mul(row, e.i64(k_bytes(form) // PANEL)))
    return e.load(panel, place, F32) if form.floats == "f32" else _half(e, e.load(panel, place, F16))


def _half(e: Emitter, value: Value) -> Value:
    return e.b.extract_element(e.widen_f16(e.splat(value, 8)), ir.Constant(I32, 0))


def _integer(e: Emitter, form: IntegerForm, panel: Value, row: Value, k: Value) -> Value:
    b = e.b
    group = e.at(panel, b.mul(b.udiv(k, e.i64(form.group)), e.i64(group_bytes(form))))
    within = b.and_(k, e.i64(form.group - 1))
    half = form.group // 2
    num_bytes = PANEL * form.group
    if form.codes == "s8":
        code = b.sext(e.load(group, _byte(e, within, row), I8), I32)
    else:
        num_bytes //= 2
        raw = b.zext(e.load(group, _byte(e, b.and_(within, e.i64(half - 1)), row), I8), I32)
        is_high = b.icmp_unsigned(">=", within, e.i64(half))
        nibble = b.select(is_high, b.lshr(raw, ir.Constant(I32, 4)), b.and_(raw, ir.Constant(I32, 15)))
        top = ir.Constant(I32, 28)
        code = b.ashr(b.shl(nibble, top), top) if form.codes == "s4" else nibble

    def scale(index: int) -> Value:
        size = 2 if form.scale == "f16" else 4
        place = b.add(b.mul(row, e.i64(size)), e.i64(num_bytes + index * PANEL * size))
        return e.load(group, place, F32) if size == 4 else _half(e, e.load(group, place, F16))

    value = b.fmul(b.sitofp(code, F32), scale(0))
    return b.fadd(value, scale(1)) if form.has_minimum else value


def _byte(e: Emitter, k: Value, row: Value) -> Value:
    """Where the byte of (k, row) lies among a group's codes."""
    b = e.b
    quad = b.add(b.mul(b.udiv(k, e.i64(4)), e.i64(PANEL)), row)
    return b.add(b.mul(quad, e.i64(4)), b.and_(k, e.i64(3)))
