"""Attention of the compiled kernels in NumPy: same arithmetic, same bits. Plain, for tests."""

from __future__ import annotations

import numpy as np

from inference.kernels.oracle.elementwise import exp, sum_lanes
from inference.types import F32

CHUNK = 256
MAX_F16 = np.float32(65504)


def stored(x: F32) -> F32:
    """What is left of K or V, if it is a number, after it has been in the pool."""
    return np.clip(x, -MAX_F16, MAX_F16).astype(np.float16).astype(np.float32)


def short(x: F32) -> F32:
    """13 significant bits: products with float16 are exact. The nearest, of two the one further from 0."""
    return ((x.view(np.int32) + np.int32(1 << 10)) & np.int32(-1 << 11)).view(np.float32)


def short_queries(q: F32) -> F32:
    """The same of queries; 0 below 2 ** -100, NaN from 2 ** 100 on, where products would leave the range of float32."""
    magnitude = np.abs(q)
    kept = np.where(magnitude < np.float32(2.0**-100), np.float32(0), short(np.ascontiguousarray(q)))
    return np.where(magnitude < np.float32(2.0**100), kept, np.float32(np.nan))


def attend(q: F32, keys: F32, values: F32, window: int) -> F32:
    """Scaled queries q (T, H, D) of the last T positions against keys, values (S, K, D) as stored. Returns (T, H, D).

    Of `window` positions a token sees the newest, its own included; 0: all.
    """
    T, H, _ = q.shape
    S, K, _ = keys.shape
    out, q = np.empty_like(q), short_queries(q)
    for t in range(T):
        position = S - T + t
        first = max(0, position - window + 1) if window else 0
        for kv_head in range(K):
            heads = slice(kv_head * (H // K), (kv_head + 1) * (H // K))
            out[t, heads] = _attend_one(q[t, heads], keys[:, kv_head], values[:, kv_head], first, position + 1)
    return out


def _weights(x: F32) -> F32:
    """Short exponentials, 0 below e ** -64."""
    return np.where(x < np.float32(-64), np.float32(0), short(exp(x)))


def _attend_one(q: F32, keys: F32, values: F32, first: int, end: int) -> F32:
    """q (G, D) of one token that sees the positions first .. end - 1."""
    peak = total = mixed = None
    for start in range(first // CHUNK * CHUNK, end, CHUNK):
        low, high = max(first, start), min(end, start + CHUNK)
        scores = np.zeros((len(q), high - low), np.float32)
        for d in range(q.shape[1]):
            scores = scores + q[:, d, None] * keys[low:high, d]
        top = scores.max(axis=1)
        weights = np.zeros((len(q), CHUNK), np.float32)  # by lane: key mod 16
        weights[:, low - start : high - start] = _weights(scores - top[:, None])
        share = sum_lanes(weights)
        part = np.zeros_like(q)
        for key in range(low, high):
            part = part + weights[:, key - start, None] * values[key]
        if peak is None or total is None or mixed is None:
            peak, total, mixed = top, share, part
            continue
        highest = np.maximum(peak, top)
        old, new = exp(peak - highest), exp(top - highest)
        total = total * old + share * new
        mixed = mixed * old[:, None] + part * new[:, None]
        peak = highest
    assert mixed is not None
    assert total is not None
    result: F32 = mixed / total[:, None]
    return result
