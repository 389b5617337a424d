"""config.json -> ModelConfig: each value type-checked, families' defaults filled in, what is not ours refused.

Reads both ways in which rotary parameters are written: rope_theta and rope_scaling beside the rest, or all of them in
rope_parameters, by kind of layer where the kinds differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inference.config import HIDDEN_ACTS, MAX_LAYERS, ROPE_TYPES, ModelConfig, RopeScaling
from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.architectures import ARCHITECTURES, KNOWN_ARCHITECTURES
from inference.formats.json_files import build

# What a family's config.json may leave out, where it means something else than for Llama.
DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10_000.0,
        "rope_theta": 1_000_000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
    "gemma3": {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208},
    "mistral": {"max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096},
    "phi3": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "qwen2": {"max_position_embeddings": 32_768, "sliding_window": 4096},
    "qwen3": {"head_dim": 128, "max_position_embeddings": 32_768, "sliding_window": 4096},
    "qwen3_moe": {"max_position_embeddings": 32_768, "sliding_window": 4096},
    "qwen3_vl": {"head_dim": 128, "max_position_embeddings": 128_000, "rope_theta": 500_000.0},
    "smollm3": {
        "max_position_embeddings": 32_768,
        "no_rope_layer_interval": 4,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": True,
    },
}
DEFAULTS["gemma3"] |= DEFAULTS["gemma3_text"]
ALWAYS_SLIDING = ("gemma3", "gemma3_text", "mistral", "phi3")  # use the window whenever there is one
SLIDING_IF_SAID = ("qwen2", "qwen3", "qwen3_moe", "smollm3")  # by use_sliding_window
PARTLY_ROTATED = ("phi3",)
BESIDE_TEXT = ("tie_word_embeddings", "quantization_config", "bos_token_id", "eos_token_id")  # of text_config
ROPE_NUMBERS = (
    "factor",
    "attention_factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)


def read_config(path: Path, raw: dict[str, Any], generation: dict[str, Any]) -> ModelConfig:
    """The config of a model; path names config.json in errors, generation is generation_config.json."""
    model_type = raw.get("model_type")
    if model_type not in KNOWN_ARCHITECTURES:
        problem = f"architecture {str(model_type)[:60]!r} is not supported"
        raise UnsupportedModelError(path, problem, field="model_type", known=KNOWN_ARCHITECTURES)
    raw = DEFAULTS.get(model_type, {}) | _text_side(path, raw)
    _refuse_unsupported(path, raw, model_type)
    num_heads = _integer(path, raw, "num_attention_heads")
    if num_heads < 1:
        raise ModelFileError(path, f"{num_heads} attention heads", field="num_attention_heads")
    hidden_size = _integer(path, raw, "hidden_size")
    if raw.get("head_dim") is None and hidden_size % num_heads:
        raise ModelFileError(path, f"{hidden_size} is no multiple of the {num_heads} heads", field="hidden_size")
    vocab_size = _integer(path, raw, "vocab_size")
    num_layers = _integer(path, raw, "num_hidden_layers")
    if not 1 <= num_layers <= MAX_LAYERS:
        raise ModelFileError(path, f"{num_layers} layers, legal are 1 to {MAX_LAYERS}", field="num_hidden_layers")
    rotary = _rotary(path, raw, model_type)
    return build(
        path,
        ModelConfig,
        model_type=model_type,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_integer(path, raw, "intermediate_size"),
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=_integer(path, raw, "num_key_value_heads", num_heads),
        head_dim=_integer(path, raw, "head_dim", hidden_size // num_heads),
        rms_norm_eps=_number(path, raw, "rms_norm_eps", 1e-6),
        tie_word_embeddings=raw.get("tie_word_embeddings", False) is True,
        bos_token_id=next(iter(_token_ids(path, raw, "bos_token_id", vocab_size)), None),
        eos_token_ids=tuple(
            dict.fromkeys(
                _token_ids(path, raw, "eos_token_id", vocab_size)
                + _token_ids(path.with_name("generation_config.json"), generation, "eos_token_id", vocab_size)
            )
        ),
        hidden_act=_hidden_act(path, raw),
        attention_bias=raw.get("attention_bias") is True,
        mlp_bias=raw.get("mlp_bias") is True,
        no_rope_layers=_no_rope_layers(path, raw, num_layers),
        query_pre_attn_scalar=_number(path, raw, "query_pre_attn_scalar", 0),
        **rotary,
        **_windows(path, raw, model_type, num_layers, rotary["max_position_embeddings"]),
        **_experts(path, raw),
    )


def _text_side(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """What the text side reads: all of it, or text_config and what stands beside it."""
    if "text_config" not in raw:
        return raw
    text = raw["text_config"]
    if not isinstance(text, dict):
        raise ModelFileError(path, "not a JSON object", field="text_config")
    beside = {key: raw[key] for key in BESIDE_TEXT if raw.get(key) is not None}
    return {key: value for key, value in text.items() if value is not None} | beside


def _refuse_unsupported(path: Path, raw: dict[str, Any], model_type: str) -> None:
    architecture = ARCHITECTURES[model_type]
    neutral: dict[str, tuple[Any, ...]] = {
        "attention_bias": (False, architecture.may_have_attention_bias),
        "mlp_bias": (False, architecture.may_have_mlp_bias),
        "rope_interleaved": (False,),
        "use_bidirectional_attention": (False,),
        "attn_logit_softcapping": (),
        "final_logit_softcapping": (),
    }
    for key, values in neutral.items():
        if raw.get(key) is not None and raw[key] not in values:
            raise UnsupportedModelError(path, f"{str(raw[key])[:60]!r} is not supported", field=key)


def _hidden_act(path: Path, raw: dict[str, Any]) -> str:
    key = "hidden_activation" if raw.get("hidden_activation") is not None else "hidden_act"
    found = raw.get(key, "silu")
    found = "silu" if found == "swish" else found
    if found not in HIDDEN_ACTS:
        raise UnsupportedModelError(path, f"{str(found)[:60]!r} is not supported", field=key, known=HIDDEN_ACTS)
    return str(found)


# --- rotary embedding -------------------------------------------------------------------------------------------------


def _rotary(path: Path, raw: dict[str, Any], model_type: str) -> dict[str, Any]:
    """The fields of ModelConfig that say how positions are rotated, and how many of them there are."""
    key = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    rope = _object(path, raw, key)
    local_theta = _number(path, raw, "rope_local_base_freq", 0)
    if "full_attention" in rope:
        local = _object(path, rope, "sliding_attention")
        local_theta = _number(path, local, "rope_theta", local_theta)
        if local.get("rope_type", "default") != "default":
            problem = "stretched frequencies of the sliding_attention layers are not supported"
            raise UnsupportedModelError(path, problem, field=key)
        rope = _object(path, rope, "full_attention")
    original = raw.get("original_max_position_embeddings")  # beside the rest, it counts more
    rope = rope if original is None else rope | {"original_max_position_embeddings": original}
    num_positions = _integer(path, raw, "max_position_embeddings", 2048)
    scaling = _scaling(path, rope, key, num_positions)
    share = _number(path, rope if "partial_rotary_factor" in rope else raw, "partial_rotary_factor", 1)
    if share != 1 and model_type not in PARTLY_ROTATED:
        raise UnsupportedModelError(path, f"{share} is not supported, only 1", field="partial_rotary_factor")
    if scaling is not None and scaling.rope_type == "yarn":  # some files state the positions before the stretch
        num_positions = max(num_positions, int(scaling.factor * scaling.original_max_position_embeddings))
    return {
        "max_position_embeddings": num_positions,
        "rope_theta": _number(path, rope if "rope_theta" in rope else raw, "rope_theta", 10_000.0),
        "rope_scaling": scaling,
        "partial_rotary_factor": share,
        "rope_local_base_freq": local_theta,
    }


def _scaling(path: Path, rope: dict[str, Any], key: str, num_positions: int) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    kind = "longrope" if kind == "su" else kind
    if kind == "default":
        return None
    if kind not in ROPE_TYPES:
        problem = f"rotary scaling {str(kind)[:60]!r} is not supported"
        raise UnsupportedModelError(path, problem, field=key, known=("default", *ROPE_TYPES))
    if kind != "longrope" and rope.get("factor") is None:
        raise ModelFileError(path, "factor is missing", field=key)
    numbers = {name: _number(path, rope, name, 0) for name in ROPE_NUMBERS if rope.get(name) is not None}
    return build(
        path,
        RopeScaling,
        rope_type=kind,
        original_max_position_embeddings=_integer(path, rope, "original_max_position_embeddings", num_positions),
        truncate=rope.get("truncate", True) is not False,
        short_factor=_numbers(path, rope, "short_factor"),
        long_factor=_numbers(path, rope, "long_factor"),
        **numbers,
    )


def _no_rope_layers(path: Path, raw: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    if raw.get("no_rope_layers") is not None:
        return _integers(path, raw, "no_rope_layers")
    interval = _integer(path, raw, "no_rope_layer_interval", 0)
    return tuple(int((layer + 1) % interval != 0) for layer in range(num_layers)) if interval > 0 else ()


# --- layers -----------------------------------------------------------------------------------------------------------


def _windows(path: Path, raw: dict[str, Any], model_type: str, num_layers: int, num_positions: int) -> dict[str, Any]:
    """sliding_window and layer_types; nothing where no position is ever outside the window."""
    window = _integer(path, raw, "sliding_window", 0)
    is_used = model_type in ALWAYS_SLIDING or raw.get("use_sliding_window") is True
    if window and model_type not in ALWAYS_SLIDING + SLIDING_IF_SAID:
        raise UnsupportedModelError(path, f"{window} is not supported", field="sliding_window")
    if not is_used or not 0 < window < num_positions:
        return {}
    kinds = _kinds(path, raw, model_type, num_layers)
    return {"sliding_window": window, "layer_types": kinds} if "sliding_attention" in kinds else {}


def _kinds(path: Path, raw: dict[str, Any], model_type: str, num_layers: int) -> tuple[str, ...]:
    stated = raw.get("layer_types")
    if stated is not None and model_type not in ("mistral", "phi3", "qwen3_moe"):  # these do not look at it
        if not isinstance(stated, list) or not all(isinstance(kind, str) for kind in stated):
            raise ModelFileError(path, "a list of strings is expected", field="layer_types")
        return tuple(stated)
    if model_type in ("gemma3", "gemma3_text"):
        period = max(1, _integer(path, raw, "sliding_window_pattern"))
        is_sliding = [(layer + 1) % period != 0 for layer in range(num_layers)]
    elif model_type in ("qwen2", "qwen3"):
        first = _integer(path, raw, "max_window_layers", 28)
        is_sliding = [layer >= first for layer in range(num_layers)]
    elif model_type == "smollm3":
        is_sliding = [rotated == 0 for rotated in _no_rope_layers(path, raw, num_layers)]
    else:
        is_sliding = [True] * num_layers
    return tuple("sliding_attention" if sliding else "full_attention" for sliding in is_sliding)


def _experts(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    if raw.get("num_experts") is None and raw.get("num_local_experts") is None:
        return {}
    key = "num_experts" if raw.get("num_experts") is not None else "num_local_experts"
    return {
        "num_experts": _integer(path, raw, key),
        "num_experts_per_tok": _integer(path, raw, "num_experts_per_tok"),
        "moe_intermediate_size": _integer(path, raw, "moe_intermediate_size"),
        "norm_topk_prob": raw.get("norm_topk_prob", False) is True,
        "decoder_sparse_step": _integer(path, raw, "decoder_sparse_step", 1),
        "mlp_only_layers": _integers(path, raw, "mlp_only_layers"),
    }


# --- typed reads ------------------------------------------------------------------------------------------------------


def _object(path: Path, raw: dict[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key)
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise ModelFileError(path, "not a JSON object", field=key)
    return value


def _integer(path: Path, raw: dict[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        found = "missing" if value is None else f"{str(value)[:40]!r}, an integer is expected"
        raise ModelFileError(path, found, field=key)
    return value


def _integers(path: Path, raw: dict[str, Any], key: str) -> tuple[int, ...]:
    value = raw.get(key)
    value = [] if value is None else value
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ModelFileError(path, f"{str(value)[:40]!r}, a list of integers is expected", field=key)
    return tuple(value)


def _number(path: Path, raw: dict[str, Any], key: str, default: float) -> float:
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ModelFileError(path, f"{str(value)[:40]!r}, a number is expected", field=key)
    return float(value)


def _numbers(path: Path, raw: dict[str, Any], key: str) -> tuple[float, ...]:
    value = raw.get(key)
    value = [] if value is None else value
    if not isinstance(value, list) or not all(type(item) in (int, float) for item in value):
        raise ModelFileError(path, f"{str(value)[:40]!r}, a list of numbers is expected", field=key)
    return tuple(map(float, value))


def _token_ids(path: Path, raw: dict[str, Any], key: str, vocab_size: int) -> tuple[int, ...]:
    """An id, a list of ids, or nothing."""
    value = raw.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
            problem = f"token id {str(token_id)[:40]}, the vocabulary has {vocab_size}"
            raise ModelFileError(path, problem, field=key)
    return tuple(ids)
