"""Sampler: chooses the next token of one request.

One Generator per request and one number drawn per sampled token: a reply depends on its seed and its logits, never on
the requests that happen to be computed beside it, and not on being preempted. Knows nothing about text or stop strings.
"""

from __future__ import annotations

import math

import numpy as np

from inference.errors import SamplingError
from inference.sampler.filters import (
    Logits,
    apply_count_penalties,
    apply_repetition_penalty,
    kept_candidates,
)
from inference.types import F32, I32, SamplingParams


class Sampler:
    """Penalties, temperature, top_k, top_p, min_p, in this order; then one draw. temperature 0: the likeliest token.

    params.seed None draws a seed from the operating system. Raises ValueError for a negative seed.
    """

    def __init__(self, params: SamplingParams, prompt_ids: I32, vocab_size: int) -> None:
        self._params = params
        self._generator = np.random.Generator(np.random.PCG64(params.seed))
        self._has_counts = params.presence_penalty != 0 or params.frequency_penalty != 0
        self._has_seen = params.repetition_penalty != 1
        # (V,) occurrences in the output; (V,) in prompt or output. Empty for those without penalties.
        self._counts = np.zeros(vocab_size if self._has_counts else 0, np.int32)
        self._is_seen = np.zeros(vocab_size if self._has_seen else 0, np.bool_)
        if self._has_seen:
            self._is_seen[prompt_ids] = True

    def sample(self, logits: F32) -> int:
        """The next token for logits (V,), which are left alone. The token counts as output from now on.

        Raises SamplingError when the logits are not numbers.
        """
        likeliest = int(logits.argmax())  # the lowest id among equals; NaN if any is NaN, -inf only if all are
        if not math.isfinite(logits[likeliest]):
            raise SamplingError(num_nan=int(np.isnan(logits).sum()), vocab_size=len(logits))
        penalised = self._penalise(logits)
        if self._params.temperature == 0:
            token_id = likeliest if penalised is logits else int(penalised.argmax())
        else:
            token_id = self._draw(penalised)
        if self._has_counts:
            self._counts[token_id] += 1
        if self._has_seen:
            self._is_seen[token_id] = True
        return token_id

    def _penalise(self, logits: F32) -> Logits:
        params = self._params
        if not (self._has_counts or self._has_seen):
            return logits
        penalised = logits.astype(np.float64)  # out of reach of overflow
        if self._has_seen:
            apply_repetition_penalty(penalised, np.flatnonzero(self._is_seen), params.repetition_penalty)
        if self._has_counts:
            apply_count_penalties(penalised, self._counts, params.presence_penalty, params.frequency_penalty)
        return penalised

    def _draw(self, logits: Logits) -> int:
        ids, probabilities = kept_candidates(logits, self._params)
        cumulated = np.cumsum(probabilities)
        total = cumulated[-1]
        point = min(self._generator.random() * total, np.nextafter(total, 0))  # below the sum, though rounded
        return int(ids[np.searchsorted(cumulated, point, side="right")])
