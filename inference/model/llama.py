"""Llama and what shares its shape (SmolLM2, TinyLlama): RMS norm, rotary grouped-query attention, SwiGLU."""

from __future__ import annotations

from inference.model.architecture import Architecture
from inference.model.weights import AttentionWeights, FeedForwardWeights, M, MlpWeights, TensorReader


class LlamaArchitecture(Architecture):
    def attention(self, tensors: TensorReader[M], layer: int) -> AttentionWeights[M]:
        has_bias = self.config.attention_bias
        return AttentionWeights(
            norm=tensors.norm("input_layernorm.weight"),
            qkv=tensors.matrix(*(f"self_attn.{part}_proj.weight" for part in "qkv")),
            output=tensors.matrix("self_attn.o_proj.weight"),
            qkv_bias=tensors.vector(*(f"self_attn.{part}_proj.bias" for part in "qkv")) if has_bias else None,
            output_bias=tensors.vector("self_attn.o_proj.bias") if has_bias else None,
        )

    def feed_forward(self, tensors: TensorReader[M], layer: int) -> FeedForwardWeights[M]:
        has_bias = self.config.mlp_bias
        return MlpWeights(
            norm=tensors.norm("post_attention_layernorm.weight"),
            gate_up=tensors.matrix("mlp.gate_proj.weight", "mlp.up_proj.weight"),
            down=tensors.matrix("mlp.down_proj.weight"),
            gate_up_bias=tensors.vector("mlp.gate_proj.bias", "mlp.up_proj.bias") if has_bias else None,
            down_bias=tensors.vector("mlp.down_proj.bias") if has_bias else None,
        )
