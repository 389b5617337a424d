"""Storing results of a product: rows of 16 numbers, of which the last panel of a matrix may have fewer."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from inference.kernels.jit.ir import I1, I32, PTR, VOID, Emitter, Value


def write_rows(e: Emitter, totals: Sequence[Sequence[Value]], out: Value, out_stride: Value, num_rows: Value) -> None:
    """Stores totals[t] at out + t * out_stride, only the first num_rows numbers if it has more."""
    b, lanes = e.b, e.tier.lanes
    width = len(totals[0])
    is_whole = b.icmp_signed(">=", num_rows, e.i64(width * lanes))
    with b.if_else(is_whole) as (whole, partial):
        for block in (whole, partial):
            with block:
                for t, values in enumerate(totals):
                    row = b.mul(b.mul(out_stride, e.i64(t)), e.i64(4))
                    for v, value in enumerate(values):
                        place = e.at(out, b.add(row, e.i64(v * lanes * 4)))
                        if block is whole:
                            b.store(value, place, align=4)
                        else:
                            _store_some(e, value, place, num_rows, v * lanes)


def _store_some(e: Emitter, value: Value, place: Value, num_rows: Value, first: int) -> None:
    b, lanes = e.b, e.tier.lanes
    rows = ir.Constant(e.vector(I32), list(range(first, first + lanes)))
    mask = b.icmp_signed("<", rows, e.splat(b.trunc(num_rows, I32)))
    name = f"llvm.masked.store.v{lanes}f32.p0"
    function = e.module.globals.get(name)
    if function is None:
        kinds = [value.type, PTR, e.vector(I1)]
        function = ir.Function(e.module, ir.FunctionType(VOID, kinds), name)
    b.call(function, [value, place, mask])
