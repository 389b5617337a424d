"""Qwen3-MoE: Qwen3, where the feed-forward part of most layers is a choice of experts."""

from __future__ import annotations

from inference.model.qwen3 import Qwen3Architecture
from inference.model.weights import ExpertWeights, FeedForwardWeights, M, SparseMlpWeights, TensorReader


class Qwen3MoeArchitecture(Qwen3Architecture):
    def feed_forward(self, tensors: TensorReader[M], layer: int) -> FeedForwardWeights[M]:
        if not self.config.is_sparse(layer):
            return super().feed_forward(tensors, layer)
        prefixes = [f"mlp.experts.{index}." for index in range(self.config.num_experts)]
        return SparseMlpWeights(
            norm=tensors.norm("post_attention_layernorm.weight"),
            router=tensors.matrix("mlp.gate.weight"),
            experts=tuple(
                ExpertWeights(
                    gate_up=tensors.matrix(f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight"),
                    down=tensors.matrix(f"{prefix}down_proj.weight"),
                )
                for prefix in prefixes
            ),
        )
