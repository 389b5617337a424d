"""Where in a GGUF file a tensor lies that Hugging Face stores by itself."""

from __future__ import annotations

from inference.config import ModelConfig
from inference.formats.architectures import ARCHITECTURES, Shapes, expected_shapes

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
# Hugging Face's name of a part of a layer -> GGUF's.
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
SANDWICH_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
EXPERT_PREFIX = "mlp.experts."


def place_of(config: ModelConfig, name: str) -> tuple[str, int | None]:
    """GGUF's name of the tensor that Hugging Face calls `name`, and which of its experts it is, if it holds several."""
    if name in NAMES:
        return NAMES[name], None
    _, _, layer, rest = name.split(".", 3)
    expert: int | None = None
    if rest.startswith(EXPERT_PREFIX):
        number, rest = rest.removeprefix(EXPERT_PREFIX).split(".", 1)
        expert, rest = int(number), f"mlp.{rest}"
    part, suffix = rest.rsplit(".", 1)
    has_sandwich_norms = ARCHITECTURES[config.model_type].has_sandwich_norms
    stem = SANDWICH_NAMES.get(part) if has_sandwich_norms else None
    stem = (stem or LAYER_NAMES[part]) + ("_exps" if expert is not None else "")
    return f"blk.{layer}.{stem}.{suffix}", expert


def stored_shapes(config: ModelConfig) -> Shapes:
    """GGUF name -> shape of every tensor that a file of this config has: experts lie in one tensor."""
    shapes: Shapes = {}
    for name, shape in expected_shapes(config).items():
        place, expert = place_of(config, name)
        shapes[place] = shape if expert is None else (config.num_experts, *shape)
    return shapes
