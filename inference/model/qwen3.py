"""Qwen3: Llama with heads of their own size, whose queries and keys are normalised before they are rotated."""

from __future__ import annotations

from dataclasses import replace

from inference.model.layer import Attention
from inference.model.llama import LlamaModel
from inference.model.tensors import Tensors


class Qwen3Model(LlamaModel):
    def read_attention(self, tensors: Tensors, layer: int) -> Attention:
        return replace(
            super().read_attention(tensors, layer),
            q_norm=tensors.norm("self_attn.q_norm.weight"),
            k_norm=tensors.norm("self_attn.k_norm.weight"),
        )
