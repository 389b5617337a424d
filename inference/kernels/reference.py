"""The elementwise kernels in NumPy: norm, rotary embedding, gated activation. With call_plan and attention: the oracle.

Activations are feature-major, (C, W): one token per column. So a sum over features is a sum of whole rows of the array,
and each column goes through the same operations in the same order however many columns there are. NumPy's reduction
along a contiguous axis would not do: its blocking depends on the shape.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from inference.kernels.scratch import Scratch
from inference.types import F32, I32


def rms_norm(x: F32, weight: F32, eps: float, scratch: Scratch) -> F32:
    """x (..., C, W) over its root mean square, times weight (C, 1). Returns scratch "normed"; x is left alone.

    Source: Zhang and Sennrich, arXiv:1910.07467.
    """
    normed = scratch.take("normed", *x.shape)
    np.multiply(x, x, out=normed)
    scale = sum_rows(normed)  # (..., 1, W)
    scale *= np.float32(1 / x.shape[-2])
    scale += np.float32(eps)
    np.sqrt(scale, out=scale)
    np.divide(x, scale, out=normed)
    normed *= weight
    return normed


def silu_multiply(gate_up: F32, scratch: Scratch) -> F32:
    """silu(gate) * up for gate_up (2 * I, W), gate above up. Returns the gate half (I, W), overwritten.

    Source: Shazeer, arXiv:2002.05202 (SwiGLU). exp overflows to infinity for gates below -88; the quotient is then the
    right one, zero.
    """
    gate, up = np.split(gate_up, 2)
    exponent = scratch.take("exponent", *gate.shape)
    np.negative(gate, out=exponent)
    return _gate(gate, up, exponent)


def gelu_multiply(gate_up: F32, scratch: Scratch) -> F32:
    """gelu(gate) * up for gate_up (2 * I, W), gate above up. Returns the gate half (I, W), overwritten.

    Source: Hendrycks and Gimpel, arXiv:1606.08415, the approximation by tanh: x / 2 (1 + tanh u), which is
    x / (1 + exp(-2 u)), with u = sqrt(2 / pi) (x + 0.044715 x^3).
    """
    gate, up = np.split(gate_up, 2)
    exponent = scratch.take("exponent", *gate.shape)
    np.multiply(gate, gate, out=exponent)
    exponent *= np.float32(0.044715)
    exponent += np.float32(1)
    exponent *= gate
    exponent *= np.float32(-2 * (2 / np.pi) ** 0.5)
    return _gate(gate, up, exponent)


ACTIVATIONS: dict[str, Callable[[F32, Scratch], F32]] = {"silu": silu_multiply, "gelu_pytorch_tanh": gelu_multiply}


def _gate(gate: F32, up: F32, exponent: F32) -> F32:
    """gate / (1 + exp(exponent)) * up, in place of gate."""
    with np.errstate(over="ignore"):
        np.exp(exponent, out=exponent)
    exponent += np.float32(1)
    gate /= exponent
    gate *= up
    return gate


def sum_rows(x: F32) -> F32:
    """Sum over the second last axis, kept with length 1, as a tree of halvings. x (..., S, W) is overwritten.

    The order of the additions depends on S alone. A tree also keeps the error at log2(S) roundings.
    """
    rows = x.shape[-2]
    while rows > 1:
        half = rows // 2
        x[..., :half, :] += x[..., rows - half : rows, :]
        rows -= half
    return x[..., :1, :]


class RopeTable:
    """cos and sin of every position met so far, computed in float64, stored in float32.

    Grows by whole stretches of positions: the bits of one never depend on which others were asked for, and a model
    trained for a million positions costs memory only for those in use. Both are multiplied by `factor`.
    """

    STRETCH = 4096  # positions

    def __init__(self, frequencies: NDArray[np.float64], factor: float = 1.0) -> None:
        self.frequencies = frequencies  # (R / 2,), R rotated components of a head
        self.factor = factor
        self._cos: F32 = np.empty((0, len(frequencies)), np.float32)  # (positions, R / 2)
        self._sin: F32 = np.empty((0, len(frequencies)), np.float32)

    def columns(self, positions: I32, first: int, width: int) -> tuple[F32, F32]:
        """cos, sin (R / 2, width) with the given positions (T,) from column `first` on, zeros elsewhere."""
        self._grow(int(positions.max()) + 1)
        cos = np.zeros((self._cos.shape[1], width), np.float32)
        sin = np.zeros_like(cos)
        lanes = slice(first, first + len(positions))
        cos[:, lanes] = self._cos[positions].T
        sin[:, lanes] = self._sin[positions].T
        return cos, sin

    def arrays(self, num_positions: int) -> tuple[F32, F32]:
        """cos, sin (positions, R / 2) of at least so many positions, as long as no more are asked for."""
        self._grow(num_positions)
        return self._cos, self._sin

    def _grow(self, num_positions: int) -> None:
        while len(self._cos) < num_positions:
            positions = np.arange(len(self._cos), len(self._cos) + self.STRETCH, dtype=np.float64)
            angles = positions[:, None] * self.frequencies
            self._cos = np.concatenate((self._cos, (self.factor * np.cos(angles)).astype(np.float32)))
            self._sin = np.concatenate((self._sin, (self.factor * np.sin(angles)).astype(np.float32)))


def rotate(heads: F32, cos: F32, sin: F32, scratch: Scratch) -> None:
    """Rotary embedding in place of the first R components: heads (H, D, W), cos and sin (R / 2, W).

    Pairs are (i, i + R / 2), as in Hugging Face. Source: Su et al., arXiv:2104.09864.
    """
    H, _, W = heads.shape
    half = len(cos)
    low, high = heads[:, :half], heads[:, half : 2 * half]
    low_sin = scratch.take("low_sin", H, half, W)
    high_sin = scratch.take("high_sin", H, half, W)
    np.multiply(low, sin, out=low_sin)
    np.multiply(high, sin, out=high_sin)
    low *= cos
    high *= cos
    low -= high_sin
    high += low_sin
