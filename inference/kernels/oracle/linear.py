"""The linear products of the compiled tiers in NumPy: same arithmetic, same bits. Plain, for tests and self-checks.

Integer forms: a row of activations becomes 15-bit integers with one scale. The products of a group add up exactly; what
follows is rounded step by step in float32, groups ascending: acc + (float(sum) * scale [+ float(sum of x) * minimum]).
Float forms: acc + w * x, k ascending. Nothing is fused.
"""

from __future__ import annotations

import numpy as np

from inference.kernels.quantized import IntegerRows, WeightMatrix, widened
from inference.types import F32, I32

MAX_CODE = 16383
LEAST = np.float32(1e-30)  # a row whose largest magnitude is below counts as zeros


def quantise_rows(x: F32) -> tuple[I32, F32]:
    """x (T, K) -> codes (T, K) within +-MAX_CODE and scales (T,): x is about codes * scale.

    A row with an infinity or a NaN has the scale NaN, so that whoever computes with it notices.
    """
    largest = np.abs(x).max(axis=1)
    is_finite = np.isfinite(largest)
    is_usual = is_finite & (largest >= LEAST)
    divisor = np.where(is_usual, largest, np.float32(1))
    factor = np.where(is_usual, np.float32(MAX_CODE) / divisor, np.float32(0))
    scales = np.where(is_usual, divisor / np.float32(MAX_CODE), np.where(is_finite, np.float32(0), np.float32(np.nan)))
    codes = np.rint(np.where(is_finite[:, None], x, np.float32(0)) * factor[:, None]).astype(np.int32)
    return codes, scales


def linear(matrix: WeightMatrix, x: F32) -> F32:
    """y (T, N) for x (T, K) and a matrix (N, K)."""
    rows = matrix.read(0, matrix.num_rows)
    if isinstance(rows, IntegerRows):
        return _integer(rows, x)
    weights = widened(rows)
    y = np.zeros((len(x), len(weights)), np.float32)
    for k in range(x.shape[1]):
        y += x[:, k, None] * weights[:, k]
    return y


def _integer(rows: IntegerRows, x: F32) -> F32:
    codes, scales = quantise_rows(x)
    num_groups = rows.scales.shape[1]
    group = x.shape[1] // num_groups
    y = np.zeros((len(x), len(rows.codes)), np.float32)
    for g in range(num_groups):
        part = slice(g * group, (g + 1) * group)
        exact = codes[:, part].astype(np.float64) @ rows.codes[:, part].astype(np.float64).T  # below 2**53: exact
        product = exact.astype(np.float32) * rows.scales[:, g].astype(np.float32)
        if rows.minimums is not None:
            sums = codes[:, part].sum(axis=1).astype(np.float32)
            product += sums[:, None] * rows.minimums[:, g].astype(np.float32)
        y += product
    y *= scales[:, None]
    return y
