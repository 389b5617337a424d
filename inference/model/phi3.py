"""Phi-3, 3.5 and 4-mini: Llama whose projections are stored joined, as we multiply with them anyway."""

from __future__ import annotations

from inference.model.decoder import DecoderModel
from inference.model.layer import Attention, FeedForward, Mlp
from inference.model.tensors import Tensors


class Phi3Model(DecoderModel):
    def read_attention(self, tensors: Tensors, layer: int) -> Attention:
        return Attention(
            self.config,
            layer,
            norm=tensors.norm("input_layernorm.weight"),
            qkv=tensors.matrix("self_attn.qkv_proj.weight"),
            output=tensors.matrix("self_attn.o_proj.weight"),
        )

    def read_feed_forward(self, tensors: Tensors, layer: int) -> FeedForward:
        return Mlp(
            self.config,
            norm=tensors.norm("post_attention_layernorm.weight"),
            gate_up=tensors.matrix("mlp.gate_up_proj.weight"),
            down=tensors.matrix("mlp.down_proj.weight"),
        )
