"""GGUF metadata -> ModelConfig: each value type-checked, features that we lack refused.

What llama.cpp knows of a family without being told (layers without rotation, which layers see a window) is written
down here too. Source: llama.cpp's converters and its loading of hyper-parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from inference.config import MAX_LAYERS, ModelConfig, RopeScaling
from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.architectures import ARCHITECTURES, GGUF_ARCHITECTURES
from inference.formats.gguf_header import Value
from inference.formats.gguf_metadata import Metadata
from inference.formats.json_files import build

GEMMA_27B_LAYERS = 62  # the only Gemma 3 whose scores are not scaled by the size of a head
GEMMA_PERIOD = 6  # every so many layers one sees all
SMOLLM3_PERIOD = 4  # every so many layers one is not rotated
FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


def read_config(
    metadata: Metadata,
    *,
    vocab_size: int,
    tensor_names: Collection[str],
    eos_token_ids: tuple[int, ...],
    rope_factors: Mapping[str, tuple[float, ...]],
) -> ModelConfig:
    """tensor_names: of the whole file; they alone tell of an untied head and of biases. rope_factors: content of those
    FACTOR_TENSORS that the file has.

    Raises UnsupportedModelError for features that change the arithmetic and are not ours.
    """
    path = metadata.path
    name = metadata.get("general.architecture", str)
    if name not in GGUF_ARCHITECTURES:
        problem = f"architecture {name!r} is not supported"
        raise UnsupportedModelError(path, problem, field="general.architecture", known=tuple(GGUF_ARCHITECTURES))
    _refuse_unsupported(metadata, name)

    def key(rest: str) -> str:
        return f"{name}.{rest}"

    model_type = GGUF_ARCHITECTURES[name]
    num_heads = metadata.get(key("attention.head_count"), int)
    if num_heads < 1:
        raise ModelFileError(path, f"{num_heads} attention heads", field=key("attention.head_count"))
    num_layers = metadata.get(key("block_count"), int)
    if not 1 <= num_layers <= MAX_LAYERS:
        raise ModelFileError(path, f"{num_layers} layers, legal are 1 to {MAX_LAYERS}", field="num_hidden_layers")
    hidden_size = metadata.get(key("embedding_length"), int)
    if hidden_size % num_heads and key("attention.key_length") not in metadata.values:
        problem = f"{hidden_size} is no multiple of the {num_heads} attention heads"
        raise ModelFileError(path, problem, field=key("embedding_length"))
    head_dim = metadata.get(key("attention.key_length"), int, hidden_size // num_heads)
    if metadata.get(key("attention.value_length"), int, head_dim) != head_dim:
        problem = f"{metadata.values[key('attention.value_length')]}, only the head size {head_dim} is supported"
        raise UnsupportedModelError(path, problem, field=key("attention.value_length"))
    return build(
        path,
        ModelConfig,
        model_type=model_type,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=metadata.get(key("feed_forward_length"), int),
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=metadata.get(key("attention.head_count_kv"), int, num_heads),
        head_dim=head_dim,
        rms_norm_eps=metadata.get(key("attention.layer_norm_rms_epsilon"), float),
        tie_word_embeddings="output.weight" not in tensor_names,
        attention_bias=ARCHITECTURES[model_type].may_have_attention_bias and "blk.0.attn_q.bias" in tensor_names,
        mlp_bias=ARCHITECTURES[model_type].may_have_mlp_bias and "blk.0.ffn_gate.bias" in tensor_names,
        bos_token_id=metadata.token_id("tokenizer.ggml.bos_token_id", vocab_size),
        eos_token_ids=eos_token_ids,
        **_rotary(metadata, name, head_dim, rope_factors),
        **_family(metadata, name, num_layers),
    )


def _refuse_unsupported(metadata: Metadata, architecture: str) -> None:
    """Keys whose presence with another value than the neutral one changes what the model computes."""
    neutral: dict[str, tuple[Value, ...]] = {
        "rope.scale_linear": (1.0,),
        "rope.scaling.yarn_attn_factor": (1.0,),
        "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
        "rope.scaling.yarn_log_multiplier": (0.0,),
        "rope.scaling.alpha": (0.0,),
        "attention.clamp_kqv": (0.0,),
        "attention.max_alibi_bias": (0.0,),
        "attention.causal": (True,),
        "attention.scale": (0.0,),
        "attn_logit_softcapping": (0.0,),
        "final_logit_softcapping": (0.0,),
        "logit_scale": (0.0, 1.0),
        "residual_scale": (0.0, 1.0),
        "embedding_scale": (0.0, 1.0),
        "use_parallel_residual": (False,),
        "expert_shared_count": (0,),
        "expert_weights_scale": (0.0, 1.0),
        "expert_weights_norm": (True,),
        "expert_gating_func": (1,),  # softmax
        "leading_dense_block_count": (0,),
    }
    if architecture != "qwen3moe":
        neutral |= {"expert_count": (0,)}
    if architecture != "phi3":
        neutral |= {"rope.scaling.attn_factor": (1.0,)}
    if architecture not in ("gemma3", "phi3"):
        neutral |= {"attention.sliding_window": (0,)}
    for rest, values in neutral.items():
        key = f"{architecture}.{rest}"
        if key in metadata.values and metadata.values[key] not in values:
            problem = f"{str(metadata.values[key])[:60]!r} is not supported, only {values[0]!r}"
            raise UnsupportedModelError(metadata.path, problem, field=key)


def _rotary(
    metadata: Metadata, architecture: str, head_dim: int, factors: Mapping[str, tuple[float, ...]]
) -> dict[str, Any]:
    """The fields of ModelConfig that say how positions are rotated, and how many of them there are."""
    key = f"{architecture}.rope.dimension_count"
    rotary_dim = metadata.get(key, int, head_dim)
    if rotary_dim != head_dim and (architecture != "phi3" or not 0 < rotary_dim < head_dim):
        problem = f"{rotary_dim}, only the head size {head_dim} is supported"
        raise UnsupportedModelError(metadata.path, problem, field=key)
    for name, values in factors.items():
        if len(values) != rotary_dim // 2:
            problem = f"{len(values)} factors, the heads need {rotary_dim // 2}"
            raise ModelFileError(metadata.path, problem, field=name)
    num_positions = metadata.get(f"{architecture}.context_length", int)
    scaling = _scaling(metadata, architecture, num_positions, factors)
    if scaling is not None and scaling.rope_type == "yarn":  # some files state the positions before the stretch
        num_positions = max(num_positions, int(scaling.factor * scaling.original_max_position_embeddings))
    local_theta = metadata.get(f"{architecture}.rope.freq_base_swa", float, 10_000.0)
    return {
        "max_position_embeddings": num_positions,
        "rope_theta": metadata.get(f"{architecture}.rope.freq_base", float, 10_000.0),
        "rope_scaling": scaling,
        "partial_rotary_factor": rotary_dim / head_dim,
        "rope_local_base_freq": local_theta if architecture == "gemma3" else 0.0,
    }


def _scaling(
    metadata: Metadata, architecture: str, num_positions: int, factors: Mapping[str, tuple[float, ...]]
) -> RopeScaling | None:
    prefix = f"{architecture}.rope.scaling."
    kind = metadata.get(f"{prefix}type", str, "none")
    original = metadata.get(f"{prefix}original_context_length", int, num_positions)
    stretch = metadata.get(f"{prefix}factor", float, 1.0)
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedModelError(metadata.path, f"{kind[:60]!r} is not supported", field=f"{prefix}type")
    is_stretched = kind in ("linear", "yarn") and stretch != 1
    if factors and is_stretched:
        raise UnsupportedModelError(metadata.path, f"{kind} beside factors", field=next(iter(factors)))
    if kind == "none" and stretch not in (0.0, 1.0):
        raise UnsupportedModelError(metadata.path, f"{stretch} without a type", field=f"{prefix}factor")
    if factors:
        # One set of factors is what a converter has made of llama3's rule: both sets are the same then.
        frequencies = factors.get("rope_freqs.weight", ())
        return build(
            metadata.path,
            RopeScaling,
            rope_type="longrope",
            original_max_position_embeddings=original,
            attention_factor=1.0 if frequencies else metadata.get(f"{prefix}attn_factor", float, 0.0),
            short_factor=frequencies or factors.get("rope_factors_short.weight", ()),
            long_factor=frequencies or factors.get("rope_factors_long.weight", ()),
        )
    if kind == "longrope":
        raise ModelFileError(metadata.path, "longrope without its factors", field="rope_factors_long.weight")
    if not is_stretched:
        return None
    numbers = {
        name: metadata.get(f"{prefix}yarn_{name}", float)
        for name in ("beta_fast", "beta_slow")
        if f"{prefix}yarn_{name}" in metadata.values
    }
    return build(
        metadata.path,
        RopeScaling,
        rope_type=kind,
        factor=stretch,
        original_max_position_embeddings=original,
        **numbers,
    )


def _family(metadata: Metadata, architecture: str, num_layers: int) -> dict[str, Any]:
    """The fields of ModelConfig that a family has beyond Llama's."""
    if architecture == "smollm3":
        return {"no_rope_layers": tuple(int((layer + 1) % SMOLLM3_PERIOD != 0) for layer in range(num_layers))}
    if architecture == "qwen3moe":
        return {
            "num_experts": metadata.get("qwen3moe.expert_count", int),
            "num_experts_per_tok": metadata.get("qwen3moe.expert_used_count", int),
            "moe_intermediate_size": metadata.get("qwen3moe.expert_feed_forward_length", int),
            "norm_topk_prob": True,
        }
    if architecture not in ("gemma3", "phi3"):
        return {}
    window = metadata.get(f"{architecture}.attention.sliding_window", int, 0)
    fields: dict[str, Any] = {}
    if 0 < window < metadata.get(f"{architecture}.context_length", int):
        period = metadata.get("gemma3.attention.sliding_window_pattern", int, GEMMA_PERIOD)
        sees_all = [architecture == "gemma3" and (layer + 1) % max(1, period) == 0 for layer in range(num_layers)]
        kinds = tuple("full_attention" if whole else "sliding_attention" for whole in sees_all)
        fields = {"sliding_window": window, "layer_types": kinds}
    if architecture == "gemma3":
        fields["hidden_act"] = "gelu_pytorch_tanh"
    if architecture == "gemma3" and num_layers == GEMMA_27B_LAYERS:
        num_heads = metadata.get("gemma3.attention.head_count", int)
        fields["query_pre_attn_scalar"] = metadata.get("gemma3.embedding_length", int) / num_heads
    return fields
