"""Phi-3, 3.5 and 4-mini: Llama whose projections are stored joined, as we multiply with them anyway."""

from __future__ import annotations

from inference.model.architecture import Architecture
from inference.model.weights import AttentionWeights, FeedForwardWeights, M, MlpWeights, TensorReader


class Phi3Architecture(Architecture):
    def attention(self, tensors: TensorReader[M], layer: int) -> AttentionWeights[M]:
        return AttentionWeights(
            norm=tensors.norm("input_layernorm.weight"),
            qkv=tensors.matrix("self_attn.qkv_proj.weight"),
            output=tensors.matrix("self_attn.o_proj.weight"),
        )

    def feed_forward(self, tensors: TensorReader[M], layer: int) -> FeedForwardWeights[M]:
        return MlpWeights(
            norm=tensors.norm("post_attention_layernorm.weight"),
            gate_up=tensors.matrix("mlp.gate_up_proj.weight"),
            down=tensors.matrix("mlp.down_proj.weight"),
        )
