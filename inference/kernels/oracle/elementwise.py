"""What the compiled kernels do to one token between the products, in NumPy: same arithmetic, same bits.

Everything is float32, rounded after each operation. Sums are taken in 16 lanes, ascending, then as a tree of halvings.
"""

from __future__ import annotations

import numpy as np

from inference.types import F32, I64

NUM_LANES = 16
EXP_LOW, EXP_HIGH = np.float32(-87), np.float32(88)
ROUND = np.float32(12582912)  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits, ties to even
LOG2_E, LN2_HIGH, LN2_LOW = np.float32(1.44269504088896341), np.float32(0.693359375), np.float32(-2.12194440e-4)
EXP_TERMS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1, 1)


def exp(x: F32) -> F32:
    """e to the power of x: exactly 0 below EXP_LOW, no more than at EXP_HIGH above it, NaN of NaN."""
    clamped: F32 = np.where(x < EXP_LOW, EXP_LOW, x)
    clamped = np.where(clamped > EXP_HIGH, EXP_HIGH, clamped)
    rounded = clamped * LOG2_E + ROUND
    n = rounded - ROUND
    r = clamped - n * LN2_HIGH
    r = r - n * LN2_LOW
    power: F32 = np.full_like(r, EXP_TERMS[0])
    for term in EXP_TERMS[1:]:
        power = power * r + np.float32(term)
    scaled: F32 = (power.view(np.int32) + (rounded.view(np.int32) << 23)).view(np.float32)
    scaled[x < EXP_LOW] = 0
    return scaled


def sum_lanes(x: F32) -> F32:
    """Sum over the last axis, which is dropped."""
    missing = -x.shape[-1] % NUM_LANES
    parts = np.concatenate((x, np.zeros((*x.shape[:-1], missing), np.float32)), axis=-1)
    parts = parts.reshape(*x.shape[:-1], -1, NUM_LANES)
    total = np.zeros((*x.shape[:-1], NUM_LANES), np.float32)
    for index in range(parts.shape[-2]):
        total = total + parts[..., index, :]
    for half in (8, 4, 2, 1):
        total = total[..., :half] + total[..., half : 2 * half]
    return total[..., 0]


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """x (..., C) * (1 / root of the mean square) * weight (C,)."""
    mean = sum_lanes(x * x) / np.float32(x.shape[-1])
    factor = np.float32(1) / np.sqrt(mean + np.float32(eps))
    normed: F32 = x * factor[..., None] * weight
    return normed


def rotate(heads: F32, cos: F32, sin: F32) -> F32:
    """heads (T, H, D) with the first R components rotated; cos, sin (T, R / 2)."""
    half = cos.shape[1]
    low, high = heads[..., :half], heads[..., half : 2 * half]
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate((low * cos - high * sin, high * cos + low * sin, heads[..., 2 * half :]), axis=-1)


def activate(gate: F32, up: F32, kind: str) -> F32:
    """silu(gate) * up, or gelu(gate) * up with the approximation by tanh."""
    if kind == "silu":
        exponent = np.float32(0) - gate
    else:
        cubic, factor = np.float32(0.044715), np.float32(-2 * (2 / np.pi) ** 0.5)
        exponent = (gate * gate * cubic + np.float32(1)) * gate * factor
    gated: F32 = gate / (exp(exponent) + np.float32(1)) * up
    return gated


def choose_experts(scores: F32, num_chosen: int, *, is_normalised: bool) -> tuple[I64, F32]:
    """Which experts each token goes to, ascending, and their shares, (T, A) each, for router scores (T, E)."""
    odds = exp(scores - scores.max(axis=1, keepdims=True))
    chosen = np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :num_chosen], axis=1)
    shares = np.take_along_axis(odds, chosen, axis=1)
    total = sum_lanes(shares if is_normalised else odds)
    return chosen, shares * (np.float32(1) / total)[:, None]
