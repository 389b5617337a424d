"""Qwen2 and Qwen2.5: Llama with a bias on queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from inference.model.llama import LlamaArchitecture
from inference.model.weights import AttentionWeights, M, TensorReader


class Qwen2Architecture(LlamaArchitecture):
    def attention(self, tensors: TensorReader[M], layer: int) -> AttentionWeights[M]:
        bias = tensors.vector(*(f"self_attn.{part}_proj.bias" for part in "qkv"))
        return replace(super().attention(tensors, layer), qkv_bias=bias)
