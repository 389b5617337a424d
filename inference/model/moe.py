"""A feed-forward part that is a choice of experts: a router sends each token to the few that suit it best.

Only the weights of the experts chosen by some token are read. A token's bits do not depend on who else went to its
experts: an expert computes its tokens in calls of the plan, like every other product, and what the experts of a token
return is added up in the order of their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inference.config import ModelConfig
from inference.kernels.call_plan import split_columns
from inference.kernels.reference import ACTIVATIONS, rms_norm, sum_rows
from inference.kernels.scratch import Scratch
from inference.model.block import Block
from inference.model.weights import ExpertWeights, SparseMlpWeights
from inference.types import F32, I64


@dataclass(frozen=True, slots=True)
class SparseMlp:
    """See inference.model.layer.FeedForward. E experts, A of them active for a token."""

    config: ModelConfig
    weights: SparseMlpWeights[F32]

    @property
    def matrices(self) -> tuple[F32, ...]:
        return self.weights.router, self.weights.experts[0].gate_up, self.weights.experts[0].down

    def apply(self, block: Block, scratch: Scratch) -> None:
        normed = rms_norm(block.x, self.weights.norm[:, None], self.config.rms_norm_eps, scratch)
        scores = scratch.take("router", len(self.weights.experts), block.lanes.width)
        np.matmul(self.weights.router, normed, out=scores)
        chosen, shares = self.choose(scores[:, block.columns])
        mixed = scratch.take("mixed_experts", *block.x.shape)
        mixed.fill(0)
        for index in np.unique(chosen):
            rank, token = np.nonzero(chosen == index)
            for start, count, lanes in split_columns(block.calls.linear, len(token)):
                part = slice(start, start + count)
                columns = block.lanes.first + token[part]
                x = scratch.take("expert_in", len(normed), lanes.width)
                x.fill(0)
                x[:, lanes.first : lanes.first + count] = normed[:, columns]
                y = self._run(self.weights.experts[index], x, scratch)[:, lanes.first : lanes.first + count]
                mixed[:, columns] += y * shares[rank[part], token[part]]
        np.add(block.x, mixed, out=block.x)

    def choose(self, scores: F32) -> tuple[I64, F32]:
        """Which experts each token goes to, ascending, and their shares, (A, T) each, for router scores (E, T)."""
        odds = np.exp(scores - scores.max(axis=0))
        best = np.argsort(-scores, axis=0, kind="stable")[: self.config.num_experts_per_tok]
        chosen = np.sort(best, axis=0)
        shares = np.take_along_axis(odds, chosen, axis=0)
        shares /= sum_rows(shares.copy() if self.config.norm_topk_prob else odds)
        return chosen, shares

    def _run(self, expert: ExpertWeights[F32], x: F32, scratch: Scratch) -> F32:
        gate_up = scratch.take("gate_up", len(expert.gate_up), x.shape[1])
        np.matmul(expert.gate_up, x, out=gate_up)
        mixed = ACTIVATIONS[self.config.hidden_act](gate_up, scratch)
        return np.matmul(expert.down, mixed, out=scratch.take("expert_out", *x.shape))
