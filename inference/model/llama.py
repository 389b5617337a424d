"""Llama and what shares its shape (SmolLM2, TinyLlama): RMS norm, rotary grouped-query attention, SwiGLU."""

from __future__ import annotations

from inference.model.decoder import DecoderModel
from inference.model.layer import Attention, FeedForward, Mlp
from inference.model.tensors import Tensors


class LlamaModel(DecoderModel):
    def read_attention(self, tensors: Tensors, layer: int) -> Attention:
        has_bias = self.config.attention_bias
        return Attention(
            self.config,
            layer,
            norm=tensors.norm("input_layernorm.weight"),
            qkv=tensors.matrix(*(f"self_attn.{part}_proj.weight" for part in "qkv")),
            output=tensors.matrix("self_attn.o_proj.weight"),
            qkv_bias=tensors.column(*(f"self_attn.{part}_proj.bias" for part in "qkv")) if has_bias else None,
            output_bias=tensors.column("self_attn.o_proj.bias") if has_bias else None,
        )

    def read_feed_forward(self, tensors: Tensors, layer: int) -> FeedForward:
        has_bias = self.config.mlp_bias
        return Mlp(
            self.config,
            norm=tensors.norm("post_attention_layernorm.weight"),
            gate_up=tensors.matrix("mlp.gate_proj.weight", "mlp.up_proj.weight"),
            down=tensors.matrix("mlp.down_proj.weight"),
            gate_up_bias=tensors.column("mlp.gate_proj.bias", "mlp.up_proj.bias") if has_bias else None,
            down_bias=tensors.column("mlp.down_proj.bias") if has_bias else None,
        )
