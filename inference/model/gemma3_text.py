"""Gemma 3, and the text side of those that also see images.

Norms of 1 + weight, also on what is added to the residual stream; scaled embeddings; GELU. Most layers see a window,
with rotary frequencies of their own; see the config.
"""

from __future__ import annotations

from dataclasses import replace

from inference.model.qwen3 import Qwen3Architecture
from inference.model.weights import AttentionWeights, FeedForwardWeights, M, MlpWeights, TensorReader


class Gemma3TextArchitecture(Qwen3Architecture):
    norm_offset = 1.0

    @property
    def embedding_scale(self) -> float:
        return float(self.config.hidden_size**0.5)

    def attention(self, tensors: TensorReader[M], layer: int) -> AttentionWeights[M]:
        post_norm = tensors.norm("post_attention_layernorm.weight")
        return replace(super().attention(tensors, layer), post_norm=post_norm)

    def feed_forward(self, tensors: TensorReader[M], layer: int) -> FeedForwardWeights[M]:
        return MlpWeights(
            norm=tensors.norm("pre_feedforward_layernorm.weight"),
            gate_up=tensors.matrix("mlp.gate_proj.weight", "mlp.up_proj.weight"),
            down=tensors.matrix("mlp.down_proj.weight"),
            post_norm=tensors.norm("post_feedforward_layernorm.weight"),
        )
