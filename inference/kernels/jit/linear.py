"""Matrix products of the compiled tiers: y[t, n] = sum over k of x[t, k] * w[n, k], the same bits on every tier.

What the rest of a pass calls from nopython code; matrix, x, data, out are addresses, strides count elements:

    quantise(kernel, x, x_stride, num_inner, data, tiles, first_row, end_row)
        Rows first_row .. end_row - 1 of x (T, K) float32 as integers in data: quantised_bytes(T, K) bytes, aligned to
        64; and in tiles, tile_rows_bytes(T, K), unless that is 0 or the tier has none. K a multiple of 32. Needed
        before products with an integer form. Rows may be spread over threads.
    linear(matrix, x, x_stride, data, tiles, scratch, first_row, end_row, out, out_stride, first_panel, end_panel)
        Rows first_row (a multiple of 4) .. end_row - 1 and columns 16 * first_panel .. 16 * end_panel - 1 of
        out (T, N) float32, as far as the matrix has them; nothing else is written. Integer forms read data, and tiles
        if there are any, float forms x only. Fastest with a multiple of three panels, the widest tile. scratch:
        SCRATCH_BYTES of the thread's own, aligned to 64; what it holds before and after means nothing.
    embed(matrix, row, out)
        One row of w as float32 (K,).

matrix is the address of a MATRIX record, kernel what LinearKernels.quantise() returns. No locks, no memory:
calls that write different places may run at once. A token's bits depend on its own x and on w alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types

from inference.kernels.jit.compiler import MachineCode
from inference.kernels.jit.cpu import Target, Tier, host
from inference.kernels.jit.ir import I64, PTR, VOID
from inference.kernels.jit.kernel_cache import instruction
from inference.kernels.jit.linear_embed import EMBED_PARAMETERS, emit_embed
from inference.kernels.jit.linear_kernel import PARAMETERS, emit_linear
from inference.kernels.jit.linear_rows import QUANTISE_PARAMETERS, emit_quantise
from inference.kernels.quantized import Form

MATRIX = np.dtype(
    [
        ("kernel", np.uint64),  # address of the compiled product of its form
        ("embed", np.uint64),  # address of the compiled reading of a row
        ("data", np.uint64),  # address of the first panel of 16 rows
        ("panel_bytes", np.int64),
        ("num_rows", np.int64),  # N
        ("num_inner", np.int64),  # K
        ("num_panels", np.int64),  # N / 16, rounded up
        ("is_float", np.int64),  # 1: reads x, 0: reads the integers
    ]
)


OFFSETS = {name: 8 * index for index, name in enumerate(MATRIX.names or ())}  # bytes


@dataclass(slots=True)
class LinearKernels:
    """The compiled products of a tier, one for each form that was asked for.

    target: the CPU that they are made for. folder: where they are kept from one process to the next; its name must tell
    versions of the kernels and the compiler apart (kernel_cache). None: nowhere.
    """

    tier: Tier
    target: Target = field(default_factory=host)
    folder: Path | None = None
    _codes: dict[Form | None, MachineCode] = field(default_factory=dict)

    def product(self, form: Form) -> int:
        """Address of the product with matrices of a form; compiles it the first time, in about half a second."""
        return self.code(form).addresses["linear"]

    def embed(self, form: Form) -> int:
        """Address of the reading of one row."""
        return self.code(form).addresses["embed"]

    def quantise(self) -> int:
        """Address of the quantising of rows."""
        return self.code(None).addresses["quantise"]

    def code(self, form: Form | None) -> MachineCode:
        """What was compiled for a form; None: for activations."""
        if form not in self._codes:
            names = ("quantise",) if form is None else ("linear", "embed")
            self._codes[form] = MachineCode(lambda: self._build(form), names, self.target, self._kept(form))
        return self._codes[form]

    def is_kept(self, form: Form | None) -> bool:
        """Whether code() would find it in the folder."""
        kept = self._kept(form)
        return kept is not None and kept.is_file()

    def _build(self, form: Form | None) -> ir.Module:
        module = ir.Module(name="linear")
        if form is None:
            emit_quantise(module, self.tier, "quantise")
        else:
            emit_linear(module, self.tier, form, "linear")
            emit_embed(module, self.tier, form, "embed")
        return module

    def _kept(self, form: Form | None) -> Path | None:
        if self.folder is None:
            return None
        key = f"{llvm.get_process_triple()} {self.tier} {form} {self.target}"
        return self.folder / f"linear-{hashlib.sha256(key.encode()).hexdigest()[:32]}.o"


def _field(builder: Any, record: Any, name: str) -> Any:
    """Loads a field of the MATRIX record at an address."""
    offset = ir.Constant(I64, OFFSETS[name])
    return builder.load(builder.inttoptr(builder.add(record, offset), PTR), typ=I64)


def _call(builder: Any, address: Any, parameters: Sequence[ir.Type], arguments: Sequence[Any]) -> None:
    kind = ir.FunctionType(VOID, parameters)
    values = [
        builder.inttoptr(argument, PTR) if parameter is PTR else argument
        for parameter, argument in zip(parameters, arguments, strict=True)
    ]
    builder.call(builder.inttoptr(address, kind.as_pointer()), values)


@instruction
def quantise(
    _: Any, kernel: Any, x: Any, x_stride: Any, num_inner: Any, data: Any, tiles: Any, first_row: Any, end_row: Any
) -> Any:
    """See above."""

    def emit(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        _call(builder, arguments[0], QUANTISE_PARAMETERS, arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), emit


@instruction
def linear(
    _: Any,
    matrix: Any,
    x: Any,
    x_stride: Any,
    data: Any,
    tiles: Any,
    scratch: Any,
    first_row: Any,
    end_row: Any,
    out: Any,
    out_stride: Any,
    first_panel: Any,
    end_panel: Any,
) -> Any:
    """See above."""

    def emit(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        matrix, *rest = arguments
        fields = [_field(builder, matrix, name) for name in ("data", "panel_bytes", "num_rows", "num_inner")]
        _call(builder, _field(builder, matrix, "kernel"), PARAMETERS, [*fields, *rest])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 12), emit


@instruction
def embed(_: Any, matrix: Any, row: Any, out: Any) -> Any:
    """See above."""

    def emit(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        matrix, *rest = arguments
        fields = [_field(builder, matrix, name) for name in ("data", "panel_bytes", "num_inner")]
        _call(builder, _field(builder, matrix, "embed"), EMBED_PARAMETERS, [*fields, *rest])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit
