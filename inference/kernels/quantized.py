"""Weight matrices as files hold them: small integers with a scale per group, or narrow floats. No arithmetic here.

A form says how weights become numbers; rows are read a slab at a time, so that no whole matrix is ever there twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.types import F32

I8 = NDArray[np.int8]
Scales = NDArray[Any]  # float16 or float32

CODE_RANGES = {"u4": (0, 15), "s4": (-8, 7), "s8": (-128, 127)}
GROUPS = (16, 32)
FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class IntegerForm:
    """w = scale * code (+ minimum), one scale and minimum for `group` weights in a row.

    codes: their range, one of CODE_RANGES; scale: "f16" or "f32", what scales and minimums are kept in.
    """

    codes: str
    group: int
    scale: str
    has_minimum: bool

    def __post_init__(self) -> None:
        assert self.codes in CODE_RANGES
        assert self.group in GROUPS
        assert self.scale in ("f16", "f32")

    @property
    def scale_dtype(self) -> type[np.float16] | type[np.float32]:
        return np.float16 if self.scale == "f16" else np.float32


@dataclass(frozen=True, slots=True)
class FloatForm:
    """Weights are floats: one of FLOATS. bf16 is kept as uint16, the upper half of a float32."""

    floats: str

    def __post_init__(self) -> None:
        assert self.floats in FLOATS

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype({"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[self.floats])


Form = IntegerForm | FloatForm


@dataclass(frozen=True, slots=True)
class IntegerRows:
    """Some rows of a matrix of an IntegerForm."""

    codes: I8  # (n, K)
    scales: Scales  # (n, K / group)
    minimums: Scales | None = None  # (n, K / group)


@dataclass(frozen=True, slots=True)
class WeightMatrix:
    """w (N, K). read(first, end) yields rows first .. end - 1: IntegerRows, or (n, K) of the float form's dtype."""

    form: Form
    num_rows: int
    num_inner: int
    read: Callable[[int, int], IntegerRows | NDArray[Any]]


def integer_matrix(form: IntegerForm, codes: I8, scales: Scales, minimums: Scales | None = None) -> WeightMatrix:
    """A matrix out of whole arrays, of the shapes of IntegerRows."""
    low, high = CODE_RANGES[form.codes]
    assert (minimums is not None) == form.has_minimum
    assert low <= codes.min()
    assert codes.max() <= high

    def read(first: int, end: int) -> IntegerRows:
        return IntegerRows(codes[first:end], scales[first:end], None if minimums is None else minimums[first:end])

    return WeightMatrix(form, codes.shape[0], codes.shape[1], read)


def float_matrix(form: FloatForm, weights: NDArray[Any]) -> WeightMatrix:
    """A matrix out of a whole array (N, K) of the form's dtype."""
    assert weights.dtype == form.dtype
    return WeightMatrix(form, weights.shape[0], weights.shape[1], lambda first, end: weights[first:end])


def dequantised(rows: IntegerRows) -> F32:
    """(n, K): code * scale, rounded once, then + minimum, rounded once."""
    group = rows.codes.shape[1] // rows.scales.shape[1]
    weights = rows.codes.astype(np.float32) * np.repeat(rows.scales.astype(np.float32), group, axis=1)
    if rows.minimums is not None:
        weights += np.repeat(rows.minimums.astype(np.float32), group, axis=1)
    return weights


def widened(weights: NDArray[Any]) -> F32:
    """Rows of a float form as float32, exactly."""
    if weights.dtype == np.uint16:
        return (weights.astype(np.uint32) << 16).view(np.float32)
    return weights.astype(np.float32)
