"""Which tensors each supported architecture has, under which names, and with which shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from inference.config import ModelConfig
from inference.errors import ModelFileError, UnsupportedModelError

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How the tensors of a family differ from Llama's.

    stored_prefix stands in directories where our names begin with "model."; tensors under skipped_prefixes belong
    to parts that we do not run. is_interleaved: in GGUF files the rows of q and k stand as llama.cpp's rotation of
    neighbours wants them. gguf_norm_offset: what the converter has added to norm weights.
    """

    has_qkv_bias: bool = False
    may_have_attention_bias: bool = False  # of q, k, v and o, as the config says
    may_have_mlp_bias: bool = False
    has_qk_norm: bool = False
    has_fused_projections: bool = False  # q, k and v in one matrix; gate and up in another
    has_sandwich_norms: bool = False  # norms after attention and after the feed-forward part too
    stored_prefix: str = "model."
    skipped_prefixes: tuple[str, ...] = ()
    is_interleaved: bool = False
    gguf_norm_offset: float = 0.0


ARCHITECTURES = {
    "gemma3": Architecture(
        may_have_attention_bias=True,
        has_qk_norm=True,
        has_sandwich_norms=True,
        stored_prefix="language_model.model.",
        skipped_prefixes=("multi_modal_projector.", "vision_tower."),
    ),
    "gemma3_text": Architecture(
        may_have_attention_bias=True, has_qk_norm=True, has_sandwich_norms=True, gguf_norm_offset=1.0
    ),
    "llama": Architecture(may_have_attention_bias=True, may_have_mlp_bias=True, is_interleaved=True),
    "mistral": Architecture(),
    "phi3": Architecture(has_fused_projections=True),
    "qwen2": Architecture(has_qkv_bias=True),
    "qwen3": Architecture(may_have_attention_bias=True, has_qk_norm=True),
    "qwen3_moe": Architecture(may_have_attention_bias=True, has_qk_norm=True),
    "qwen3_vl": Architecture(
        may_have_attention_bias=True,
        has_qk_norm=True,
        stored_prefix="model.language_model.",
        skipped_prefixes=("model.visual.",),
    ),
    "smollm3": Architecture(may_have_attention_bias=True, may_have_mlp_bias=True, is_interleaved=True),
}
KNOWN_ARCHITECTURES = tuple(ARCHITECTURES)

# GGUF's name of an architecture -> ours. Files of the Mistral family call themselves llama.
GGUF_ARCHITECTURES = {
    "gemma3": "gemma3_text",
    "llama": "llama",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "qwen3vl": "qwen3_vl",
    "smollm3": "smollm3",
}


def expected_shapes(config: ModelConfig) -> Shapes:
    """Hugging Face name -> shape of every tensor that a model of this config has, in the order of use."""
    C, V = config.hidden_size, config.vocab_size
    shapes: Shapes = {"model.embed_tokens.weight": (V, C)}
    for index in range(config.num_hidden_layers):
        layer = _attention_shapes(config) | _feed_forward_shapes(config, index)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (C,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (V, C)
    return shapes


def _attention_shapes(config: ModelConfig) -> Shapes:
    architecture = ARCHITECTURES[config.model_type]
    C, D = config.hidden_size, config.head_dim
    rows = {
        "q": config.num_attention_heads * D,
        "k": config.num_key_value_heads * D,
        "v": config.num_key_value_heads * D,
    }
    shapes: Shapes = {"input_layernorm.weight": (C,)}
    if architecture.has_fused_projections:
        shapes["self_attn.qkv_proj.weight"] = (sum(rows.values()), C)
    else:
        shapes |= {f"self_attn.{part}_proj.weight": (count, C) for part, count in rows.items()}
    if architecture.has_qkv_bias or config.attention_bias:
        shapes |= {f"self_attn.{part}_proj.bias": (count,) for part, count in rows.items()}
    if architecture.has_qk_norm:
        shapes |= {f"self_attn.{part}_norm.weight": (D,) for part in "qk"}
    shapes["self_attn.o_proj.weight"] = (C, rows["q"])
    if config.attention_bias:
        shapes["self_attn.o_proj.bias"] = (C,)
    shapes["post_attention_layernorm.weight"] = (C,)
    return shapes


def _feed_forward_shapes(config: ModelConfig, layer: int) -> Shapes:
    architecture = ARCHITECTURES[config.model_type]
    C = config.hidden_size
    if config.is_sparse(layer):
        shapes: Shapes = {"mlp.gate.weight": (config.num_experts, C)}
        for expert in range(config.num_experts):
            shapes |= _gated_shapes(f"mlp.experts.{expert}.", C, config.moe_intermediate_size)
        return shapes
    if architecture.has_fused_projections:
        F = config.intermediate_size
        return {"mlp.gate_up_proj.weight": (2 * F, C), "mlp.down_proj.weight": (C, F)}
    shapes = _gated_shapes("mlp.", C, config.intermediate_size)
    if config.mlp_bias:
        shapes |= {name.replace(".weight", ".bias"): shape[:1] for name, shape in shapes.items()}
    if architecture.has_sandwich_norms:
        shapes |= {f"{place}_feedforward_layernorm.weight": (C,) for place in ("pre", "post")}
    return shapes


def _gated_shapes(prefix: str, C: int, F: int) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (F, C),
        f"{prefix}up_proj.weight": (F, C),
        f"{prefix}down_proj.weight": (C, F),
    }


def stored_name(config: ModelConfig, name: str) -> str:
    """The name in a Hugging Face directory of the tensor that we call `name`."""
    prefix = ARCHITECTURES[config.model_type].stored_prefix
    return prefix + name.removeprefix("model.") if name.startswith("model.") else name


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
