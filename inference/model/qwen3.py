"""Qwen3: Llama with heads of their own size, whose queries and keys are normalised before they are rotated."""

from __future__ import annotations

from dataclasses import replace

from inference.model.llama import LlamaArchitecture
from inference.model.weights import AttentionWeights, M, TensorReader


class Qwen3Architecture(LlamaArchitecture):
    def attention(self, tensors: TensorReader[M], layer: int) -> AttentionWeights[M]:
        return replace(
            super().attention(tensors, layer),
            q_norm=tensors.norm("self_attn.q_norm.weight"),
            k_norm=tensors.norm("self_attn.k_norm.weight"),
        )
