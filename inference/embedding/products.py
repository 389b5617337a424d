"""Matrix products in pieces that BLAS computes on the calling thread.

How many threads BLAS may use is one number for the whole process, and the engine's thread owns it (kernels.blas). A
product that BLAS splits among threads waits for all of them, and while other work has the cores that takes many times
as long (docs/perf-log.md). OpenBLAS splits none of at most 2^18 multiplications: one NumPy call over a stack of such
pieces costs about what one thread needs, whatever else runs, and sets nothing that is shared.
"""

from __future__ import annotations

import numpy as np

from inference.types import F32

_MAX_PIECE = 1 << 18  # M * N * K; SMP_THRESHOLD_MIN * GEMM_MULTITHREAD_THRESHOLD in OpenBLAS's interface/gemm.c
ROWS = 8  # of a piece; 4 and 16 are as fast for a question, slower for a long text


def row_tiles(x: F32) -> F32:
    """(..., T, K) -> (..., ceil(T / ROWS), ROWS, K), zeros below the last row."""
    *outer, num_rows, width = x.shape
    num_missing = -num_rows % ROWS
    if num_missing:
        x = np.concatenate([x, np.zeros((*outer, num_missing, width), np.float32)], axis=-2)
    return x.reshape(*outer, -1, ROWS, width)


class Linear:
    """x (T, K) -> (T, N), x @ weight.T + bias. weight (N, K) is copied into pieces."""

    def __init__(self, weight: F32, bias: F32) -> None:
        num_out, num_in = weight.shape
        most = max(1, _MAX_PIECE // (ROWS * num_in))
        width = max(d for d in range(1, min(most, num_out) + 1) if num_out % d == 0)
        pieces = weight.reshape(num_out // width, width, num_in).transpose(0, 2, 1)  # (N / width, K, width)
        self._weight, self._bias = np.ascontiguousarray(pieces)[:, None], bias

    def __call__(self, x: F32) -> F32:
        found = row_tiles(x) @ self._weight  # (N / width, T / ROWS, ROWS, width)
        out: F32 = found.transpose(1, 2, 0, 3).reshape(-1, len(self._bias))[: len(x)]
        out += self._bias
        return out


def attend(q: F32, k: F32, v: F32) -> F32:
    """(H, T, D) each -> (H, T, D): every token looks at every token. Source: arXiv:1706.03762."""
    num_heads, num_tokens, size = q.shape
    scores: F32 = row_tiles(q) @ k.transpose(0, 2, 1)[:, None]  # (H, T / ROWS, ROWS, T)
    scores *= np.float32(size**-0.5)
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    out: F32 = scores @ v[:, None]  # (H, T / ROWS, ROWS, D)
    return out.reshape(num_heads, -1, size)[:, :num_tokens]
