"""Weight matrices in panels of 16 rows, the layout that the products stream (linear_integer, linear_float).

A packed matrix takes about what the file does: codes of 4 bits stay 4 bits, scales keep their precision. Codes of 5 and
6 bits take 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.kernels.jit.linear import MATRIX, LinearKernels
from inference.kernels.jit.linear_float import K_STEP, k_bytes
from inference.kernels.jit.linear_integer import PANEL, group_bytes
from inference.kernels.jit.linear_rows import STEP
from inference.kernels.quantized import FloatForm, Form, IntegerForm, IntegerRows, WeightMatrix

U8 = NDArray[np.uint8]

PIECE_BYTES = 16 << 20  # NumPy asks for large pages from 4 MB on
SLAB_ROWS = 1024  # read and packed at a time: about twice these rows as bytes are there besides the result


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """The panels of a matrix, and the MATRIX record (1,) that points at them; both must outlive every product."""

    form: Form
    panels: U8  # (N / 16 rounded up, panel_bytes), aligned to 64
    record: NDArray[Any]

    @property
    def address(self) -> int:
        """Of the record."""
        return int(self.record.ctypes.data)

    @property
    def nbytes(self) -> int:
        return self.panels.nbytes


def aligned(num_bytes: int) -> U8:
    """Zeroed memory that begins on a cache line."""
    raw = np.zeros(num_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + num_bytes]


class WeightMemory:
    """Hands out memory of a model's weights, cut from pieces so large that the system gives them large pages."""

    def __init__(self) -> None:
        self._rest = aligned(0)

    def take(self, num_bytes: int) -> U8:
        """Zeroed memory that begins on a cache line; it lives as long as somebody holds a part of its piece."""
        size = -(-num_bytes // 64) * 64
        if size > len(self._rest):
            self._rest = aligned(max(size, PIECE_BYTES))
        taken, self._rest = self._rest[:num_bytes], self._rest[size:]
        return taken


def panel_bytes(form: Form, num_inner: int) -> int:
    """Bytes of a panel with num_inner columns."""
    if isinstance(form, FloatForm):
        return num_inner * k_bytes(form)
    return num_inner // form.group * group_bytes(form)


def packed_bytes(matrix: WeightMatrix) -> int:
    """Bytes that the matrix takes, packed by itself. Raises ValueError as pack() does."""
    check_columns(matrix.form, matrix.num_inner)
    return -(-matrix.num_rows // PANEL) * panel_bytes(matrix.form, matrix.num_inner)


def check_columns(form: Form, num_inner: int) -> None:
    """Raises ValueError for a K that the layout cannot hold."""
    step = K_STEP if isinstance(form, FloatForm) else STEP
    if num_inner % step or not num_inner:
        raise ValueError(f"a matrix of {num_inner} columns, compiled kernels need a multiple of {step} for {form}")


def pack(parts: Sequence[WeightMatrix], kernels: LinearKernels, take: Callable[[int], U8] = aligned) -> PackedMatrix:
    """The rows of all parts, one below the other, in memory out of take(); the parts are of one form and one K.

    Raises ValueError for a K that the layout cannot hold: integer forms take multiples of 32, float forms even ones.
    """
    form, num_inner = parts[0].form, parts[0].num_inner
    assert all(part.form == form and part.num_inner == num_inner for part in parts)
    check_columns(form, num_inner)
    num_rows = sum(part.num_rows for part in parts)
    num_panels = -(-num_rows // PANEL)
    size = panel_bytes(form, num_inner)
    panels = take(num_panels * size).reshape(num_panels, size)
    _fill(panels, form, num_inner, parts)
    record = np.zeros(1, MATRIX)
    record[0] = (
        kernels.product(form), kernels.embed(form), panels.ctypes.data, size, num_rows, num_inner, num_panels,
        isinstance(form, FloatForm),
    )  # fmt: skip
    return PackedMatrix(form, panels, record)


def _fill(panels: U8, form: Form, num_inner: int, parts: Sequence[WeightMatrix]) -> None:
    """Panels out of slabs; rows that do not fill a panel wait for the next ones."""
    pending: list[IntegerRows | NDArray[Any]] = []
    num_pending = first_panel = 0
    slabs = [(part, row) for part in parts for row in range(0, part.num_rows, SLAB_ROWS)]
    for index, (part, row) in enumerate(slabs):
        count = min(SLAB_ROWS, part.num_rows - row)
        pending.append(part.read(row, row + count))
        num_pending += count
        is_last = index == len(slabs) - 1
        if num_pending % PANEL and not is_last:
            continue
        num_panels = -(-num_pending // PANEL)
        target = panels[first_panel : first_panel + num_panels]
        if isinstance(form, FloatForm):
            _pack_floats(target, form, num_inner, [rows for rows in pending if not isinstance(rows, IntegerRows)])
        else:
            _pack_integers(target, form, num_inner, [rows for rows in pending if isinstance(rows, IntegerRows)])
        pending, num_pending, first_panel = [], 0, first_panel + num_panels


def _padded(rows: Sequence[NDArray[Any]], num_panels: int) -> NDArray[Any]:
    """(num_panels, 16, columns): the rows, zeros below."""
    joined = rows[0] if len(rows) == 1 else np.concatenate(rows)
    missing = num_panels * PANEL - len(joined)
    if missing:
        joined = np.concatenate((joined, np.zeros((missing, joined.shape[1]), joined.dtype)))
    return joined.reshape(num_panels, PANEL, joined.shape[1])


def _pack_integers(target: U8, form: IntegerForm, num_inner: int, rows: Sequence[IntegerRows]) -> None:
    count, num_groups = len(target), num_inner // form.group
    groups = target.reshape(count, num_groups, group_bytes(form))
    codes = _padded([part.codes for part in rows], count).view(np.uint8)
    quads = codes.reshape(count, PANEL, num_groups, form.group // 4, 4).transpose(0, 2, 3, 1, 4)
    at = PANEL * form.group // (1 if form.codes == "s8" else 2)
    if form.codes == "s8":
        groups[:, :, :at] = quads.reshape(count, num_groups, at)
    else:
        half = form.group // 8
        low, high = quads[:, :, :half], quads[:, :, half:]
        groups[:, :, :at] = (low & 15 | high << 4).reshape(count, num_groups, at)
    for part in (
        [part.scales for part in rows],
        [part.minimums for part in rows if part.minimums is not None],
    ):
        if part:
            values = _padded(part, count).transpose(0, 2, 1).astype(form.scale_dtype, order="C")  # (count, groups, 16)
            size = PANEL * values.itemsize
            groups[:, :, at : at + size] = values.view(np.uint8).reshape(count, num_groups, size)
            at += size


def _pack_floats(target: U8, form: FloatForm, num_inner: int, rows: Sequence[NDArray[Any]]) -> None:
    weights = _padded(rows, len(target))
    if form.floats == "bf16":
        pairs = weights.reshape(len(target), PANEL, num_inner // 2, 2).transpose(0, 2, 1, 3)
        target.view(np.uint16).reshape(pairs.shape)[...] = pairs
    else:
        turned = weights.transpose(0, 2, 1)
        target.view(form.dtype).reshape(turned.shape)[...] = turned
