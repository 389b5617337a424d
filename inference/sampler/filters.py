"""Pure functions between logits and probabilities: penalties, candidates, filters. No random numbers, no state."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inference.types import I32

F64 = NDArray[np.float64]
Logits = NDArray[np.float32] | F64
IDs = NDArray[np.int64]


def apply_repetition_penalty(logits: F64, seen_ids: IDs, penalty: float) -> None:
    """Make every id of seen_ids less likely (more, below 1), in place. Source: CTRL, arXiv:1909.05858."""
    seen = logits[seen_ids]
    logits[seen_ids] = np.where(seen > 0, seen / penalty, seen * penalty)


def apply_count_penalties(logits: F64, counts: I32, presence: float, frequency: float) -> None:
    """Subtract presence once for what has occurred and frequency per occurrence, in place. counts (V,)."""
    ids = np.flatnonzero(counts)
    logits[ids] -= presence + frequency * counts[ids]


def top_candidates(logits: Logits, top_k: int) -> tuple[IDs, Logits]:
    """Ids and logits (k,) of the k largest, largest first, the lower id first among equals. top_k 0: all of them.

    Equals at the border are cut by id, so that the result never depends on how a partial sort happens to go.
    """
    if 0 < top_k < len(logits):
        threshold = np.partition(logits, -top_k)[-top_k]
        ids = np.flatnonzero(logits >= threshold)
    else:
        ids = np.arange(len(logits))
    order = np.argsort(-logits[ids], kind="stable")
    if top_k > 0:
        order = order[:top_k]
    return ids[order], logits[ids[order]]


def softmax(logits: Logits, temperature: float) -> F64:
    """Probabilities (k,) of logits sorted largest first. float64: sums of small terms decide where top_p cuts."""
    with np.errstate(over="ignore"):  # a tiny temperature: -inf, a probability of 0
        exponents = (logits.astype(np.float64) - float(logits[0])) / temperature
    weights = np.exp(exponents)
    probabilities: F64 = weights / weights.sum()
    return probabilities


def num_kept(probabilities: F64, top_p: float, min_p: float) -> int:
    """How many of the sorted probabilities (k,) stay: the smallest head that reaches top_p, without what is below
    min_p times the largest. At least one."""
    num = len(probabilities)
    if top_p < 1:
        num = min(num, int(np.searchsorted(np.cumsum(probabilities), top_p)) + 1)
    if min_p > 0:
        num = min(num, int(np.count_nonzero(probabilities >= min_p * probabilities[0])))
    return max(num, 1)
