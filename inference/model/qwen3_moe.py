"""Qwen3-MoE: Qwen3, where the feed-forward part of most layers is a choice of experts."""

from __future__ import annotations

from inference.model.layer import FeedForward
from inference.model.moe import Expert, SparseMlp
from inference.model.qwen3 import Qwen3Model
from inference.model.tensors import Tensors


class Qwen3MoeModel(Qwen3Model):
    def read_feed_forward(self, tensors: Tensors, layer: int) -> FeedForward:
        if not self.config.is_sparse(layer):
            return super().read_feed_forward(tensors, layer)
        prefixes = [f"mlp.experts.{index}." for index in range(self.config.num_experts)]
        return SparseMlp(
            self.config,
            norm=tensors.norm("post_attention_layernorm.weight"),
            router=tensors.matrix("mlp.gate.weight"),
            experts=tuple(
                Expert(
                    gate_up=tensors.matrix(f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight"),
                    down=tensors.matrix(f"{prefix}down_proj.weight"),
                )
                for prefix in prefixes
            ),
        )
