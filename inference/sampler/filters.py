"""Pure functions between logits and probabilities: penalties, candidates, filters. No random numbers, no state."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inference.types import I32, SamplingParams

F64 = NDArray[np.float64]
Logits = NDArray[np.float32] | F64
IDs = NDArray[np.int64]

GROUP_SIZE = 32  # of the logits whose maximum is taken; 1,536 groups in the default vocabulary
FIRST_HEAD = 256  # candidates that top_p and min_p mostly do not reach the end of


def apply_repetition_penalty(logits: F64, seen_ids: IDs, penalty: float) -> None:
    """Make every id of seen_ids less likely (more, below 1), in place. Source: CTRL, arXiv:1909.05858."""
    seen = logits[seen_ids]
    logits[seen_ids] = np.where(seen > 0, seen / penalty, seen * penalty)


def apply_count_penalties(logits: F64, counts: I32, presence: float, frequency: float) -> None:
    """Subtract presence once for what has occurred and frequency per occurrence, in place. counts (V,)."""
    ids = np.flatnonzero(counts)
    logits[ids] -= presence + frequency * counts[ids]


def top_candidates(logits: Logits, top_k: int) -> tuple[IDs, Logits]:
    """Ids and logits (k,) of the k largest, largest first, the lower id first among equals. All if there are fewer.

    Equals at the border are cut by id, so that the result never depends on how a partial sort happens to go.
    """
    ids = np.flatnonzero(logits >= _lower_bound(logits, top_k))
    order = np.argsort(-logits[ids], kind="stable")[:top_k]
    return ids[order], logits[ids[order]]


def _lower_bound(logits: Logits, top_k: int) -> float:
    """A number that at least top_k logits reach and not many more; -inf when there are no more than top_k.

    Of the maxima of disjoint groups, the k-th largest: k groups hold something as large. Over 49,152 logits that takes
    a fifth of the time of np.partition over all.
    """
    if top_k >= len(logits):
        return float("-inf")
    num_groups = len(logits) // GROUP_SIZE
    if top_k > num_groups // 2:  # too many share a group: the bound would be loose
        return float(np.partition(logits, -top_k)[-top_k])
    maxima = logits[: num_groups * GROUP_SIZE].reshape(GROUP_SIZE, num_groups).max(axis=0)
    return float(np.partition(maxima, -top_k)[-top_k])


def softmax(logits: Logits, temperature: float) -> F64:
    """Probabilities (k,) in any order. float64: sums of small terms decide where top_p cuts."""
    weights = logits.astype(np.float64)
    weights -= weights.max()
    with np.errstate(over="ignore"):  # a tiny temperature: -inf, a probability of 0
        weights /= temperature
    np.exp(weights, out=weights)
    weights /= weights.sum()
    return weights


def num_kept(probabilities: F64, top_p: float, min_p: float) -> int:
    """How many of the sorted probabilities (k,) stay: the smallest head that reaches top_p, without what is below
    min_p times the largest. At least one."""
    num = len(probabilities)
    if top_p < 1:
        num = min(num, int(np.searchsorted(np.cumsum(probabilities), top_p)) + 1)
    if min_p > 0:
        num = min(num, int(np.count_nonzero(probabilities >= min_p * probabilities[0])))
    return max(num, 1)


def kept_candidates(logits: Logits, params: SamplingParams) -> tuple[IDs, F64]:
    """Ids and probabilities (k,) of what top_k, top_p and min_p leave, largest first; without any of them all, by id.

    top_p and min_p alone look at growing heads until the cut lies inside: the vocabulary is never sorted for a few.
    """
    if params.top_k > 0:
        ids, candidates = top_candidates(logits, params.top_k)
        probabilities = softmax(candidates, params.temperature)
        num = num_kept(probabilities, params.top_p, params.min_p)
        return ids[:num], probabilities[:num]
    of_all = softmax(logits, params.temperature)
    if params.top_p == 1 and params.min_p == 0:
        return np.arange(len(logits)), of_all
    size = FIRST_HEAD
    while True:
        ids, _ = top_candidates(logits, size)
        num = num_kept(of_all[ids], params.top_p, params.min_p)
        if num < size or size >= len(logits):
            return ids[:num], of_all[ids[:num]]
        size *= 8
