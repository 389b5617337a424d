"""Which tensors each supported architecture has, under which names, and with which shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from inference.config import ModelConfig
from inference.errors import ModelFileError, UnsupportedModelError

KNOWN_ARCHITECTURES = ("llama",)

# Hugging Face's name inside a layer -> GGUF's.
LLAMA_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
LLAMA_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every tensor that a Llama of this config has, in the order of use."""
    C, F, V = config.hidden_size, config.intermediate_size, config.vocab_size
    H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    layer = {
        "input_layernorm.weight": (C,),
        "self_attn.q_proj.weight": (H * D, C),
        "self_attn.k_proj.weight": (K * D, C),
        "self_attn.v_proj.weight": (K * D, C),
        "self_attn.o_proj.weight": (C, H * D),
        "post_attention_layernorm.weight": (C,),
        "mlp.gate_proj.weight": (F, C),
        "mlp.up_proj.weight": (F, C),
        "mlp.down_proj.weight": (C, F),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, C)}
    for index in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (C,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (V, C)
    return shapes


def gguf_name(name: str) -> str:
    """GGUF's name of a tensor that Hugging Face calls `name`."""
    if name in LLAMA_NAMES:
        return LLAMA_NAMES[name]
    _, _, index, rest = name.split(".", 3)
    return f"blk.{index}.{LLAMA_LAYER_NAMES[rest]}"


def check_shapes(
    path: Path, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], ignored: Collection[str]
) -> None:
    """Compare what a file holds with what its config implies; names in both are the file's own.

    Raises ModelFileError for the first tensor that is missing or misshapen, UnsupportedModelError for one that the
    architecture does not have: leaving it out would compute something else than the model.
    """
    for name, shape in expected.items():
        if name not in found:
            raise ModelFileError(path, f"the tensor is missing, expected with shape {shape}", field=name)
        if found[name] != shape:
            raise ModelFileError(path, f"the tensor has shape {found[name]}, the config implies {shape}", field=name)
    for name in found:
        if name not in expected and name not in ignored:
            raise UnsupportedModelError(path, "a tensor that this architecture does not use", field=name)
