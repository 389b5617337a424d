"""Qwen2 and Qwen2.5: Llama with a bias on queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from inference.model.layer import Attention
from inference.model.llama import LlamaModel
from inference.model.tensors import Tensors


class Qwen2Model(LlamaModel):
    def read_attention(self, tensors: Tensors, layer: int) -> Attention:
        bias = tensors.column(*(f"self_attn.{part}_proj.bias" for part in "qkv"))
        return replace(super().read_attention(tensors, layer), qkv_bias=bias)
