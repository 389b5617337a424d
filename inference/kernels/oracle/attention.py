"""Attention of the compiled kernels in NumPy: same arithmetic, same bits. Plain, for tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inference.kernels.oracle.elementwise import exp, sum_lanes
from inference.types import F32, I64

CHUNK, SPAN = 256, 64
MAX_WORD, LEAST = np.float32(5792), np.float32(1e-30)


@dataclass(frozen=True, slots=True)
class Words:
    """Numbers (.., D) as integers and a scale (..) each."""

    codes: I64
    scales: F32

    @classmethod
    def of(cls, x: F32) -> Words:
        """The nearest integers, the largest magnitude as MAX_WORD; the scale is NaN if not all are finite."""
        largest = np.abs(x).max(axis=-1, initial=0)
        is_usual = (largest >= LEAST) & (largest < np.inf)
        safe = np.where(is_usual, largest, np.float32(1))
        factors = np.where(is_usual, MAX_WORD / safe, np.float32(0))
        unusual = np.where(largest < LEAST, np.float32(0), np.float32(np.nan))
        finite = np.where(np.isfinite(x), x, np.float32(0))
        codes = np.rint(finite * factors[..., None]).astype(np.int64)
        return cls(codes, np.where(is_usual, safe / MAX_WORD, unusual))


def stored(keys: F32, values: F32) -> tuple[Words, Words]:
    """K and V (S, K, D) as they lie in the pool: scales of values are numbers, what was none is told by the key."""
    k, v = Words.of(keys), Words.of(values)
    is_broken = np.isnan(v.scales)
    scales = np.where(is_broken, np.float32(np.nan), k.scales), np.where(is_broken, np.float32(0), v.scales)
    return Words(k.codes, scales[0]), Words(v.codes, scales[1])


def attend(q: F32, keys: Words, values: Words, factor: float, window: int) -> F32:
    """Queries q (T, H, D), times factor, of the last T positions against keys, values (S, K, D). Returns (T, H, D).

    Of `window` positions a token sees the newest, its own included; 0: all.
    """
    T, H, _ = q.shape
    S, K, _ = keys.codes.shape
    out, queries = np.empty_like(q), Words.of(q)
    scales = queries.scales * np.float32(factor)
    for t in range(T):
        position = S - T + t
        first = max(0, position - window + 1) if window else 0
        for kv_head in range(K):
            heads = slice(kv_head * (H // K), (kv_head + 1) * (H // K))
            k, v = (Words(x.codes[:, kv_head], x.scales[:, kv_head]) for x in (keys, values))
            out[t, heads] = _attend_one(Words(queries.codes[t, heads], scales[t, heads]), k, v, first, position + 1)
    return out


def _weights(x: F32) -> F32:
    """Exponentials, 0 below e ** -64."""
    return np.where(x < np.float32(-64), np.float32(0), exp(x))


def _attend_one(q: Words, keys: Words, values: Words, first: int, end: int) -> F32:
    """q (G, D) of one token that sees the positions first .. end - 1."""
    peak = total = mixed = None
    for start in range(first // CHUNK * CHUNK, end, CHUNK):
        low, high = max(first, start), min(end, start + CHUNK)
        scores = np.zeros((len(q.codes), high - low), np.float32)
        for d in range(0, q.codes.shape[1], SPAN):
            exact = q.codes[:, d : d + SPAN] @ keys.codes[low:high, d : d + SPAN].T
            scores = scores + exact.astype(np.float32) * keys.scales[low:high] * q.scales[:, None]
        top = scores.max(axis=1)
        weights = np.zeros((len(q.codes), CHUNK), np.float32)  # by lane: key mod 16
        weights[:, low - start : high - start] = _weights(scores - top[:, None])
        share = sum_lanes(weights)
        part = np.zeros(q.codes.shape, np.float32)
        for begin in range(low // SPAN * SPAN, high, SPAN):
            span = slice(max(low, begin), min(high, begin + SPAN))
            words = Words.of(weights[:, span.start - start : span.stop - start] * values.scales[span])
            part = part + (words.codes @ values.codes[span]).astype(np.float32) * words.scales[:, None]
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
