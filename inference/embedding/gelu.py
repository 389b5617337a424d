"""The exact GELU, x * Phi(x), in plain NumPy: there is no erf in it."""

from __future__ import annotations

import numpy as np

from inference.types import F32

# erf(x) = 1 - (a1 t + a2 t^2 + ... + a5 t^5) exp(-x^2) with t = 1 / (1 + p x) for x >= 0; |error| <= 1.5e-7.
# Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
_P = np.float32(0.3275911)
_A = tuple(map(np.float32, (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)))
_ROOT_HALF = np.float32(0.5**0.5)


def erf(x: F32) -> F32:
    """The error function, any shape; within 5e-7 of the true one, the rounding of float32 included."""
    t = np.abs(x)
    gauss = np.exp(-(np.minimum(t, np.float32(9)) ** 2))  # beyond that it is 0, and squares would overflow
    t *= _P
    t += np.float32(1)
    np.reciprocal(t, out=t)
    total = np.full_like(t, _A[4])
    for a in _A[3::-1]:
        total *= t
        total += a
    total *= t
    total *= gauss
    return np.copysign(np.float32(1) - total, x)


def gelu(x: F32) -> F32:
    """x * Phi(x), any shape. Source: arXiv:1606.08415."""
    out = erf(x * _ROOT_HALF)
    out += np.float32(1)
    out *= x
    out *= np.float32(0.5)
    return out
