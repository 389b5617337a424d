"""The tiny models of every family as GGUF files, as llama.cpp's converter would write them.

Names of tensors come from the gguf package, so that they are not ours.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.inference.tiny_models import F32, I32, STRING, U32, Gguf, permute

ARCHITECTURES = {
    "gemma3_text": MODEL_ARCH.GEMMA3,
    "llama": MODEL_ARCH.LLAMA,
    "phi3": MODEL_ARCH.PHI3,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "qwen3_moe": MODEL_ARCH.QWEN3MOE,
    "qwen3_vl": MODEL_ARCH.QWEN3VL,
    "smollm3": MODEL_ARCH.SMOLLM3,
}


def write_gguf(directory: Path, path: Path) -> Path:
    """The model of a Hugging Face directory, in F32."""
    raw = json.loads((directory / "config.json").read_text())
    config = raw.get("text_config", {}) | {key: value for key, value in raw.items() if key != "text_config"}
    made = Gguf()
    arch = ARCHITECTURES[config["model_type"]]
    made.set("general.architecture", STRING, MODEL_ARCH_NAMES[arch])
    _set_sizes(made, MODEL_ARCH_NAMES[arch], config)
    _set_rotary(made, MODEL_ARCH_NAMES[arch], config)
    _set_tokenizer(made, json.loads((directory / "tokenizer.json").read_text()), config)
    names = get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, weight in _stacked(load_file(directory / "model.safetensors")).items():
        if name.startswith("model.visual."):
            continue
        stored = weight.astype(np.float32)
        if arch in (MODEL_ARCH.LLAMA, MODEL_ARCH.SMOLLM3) and re.search(r"\.[qk]_proj\.", name):
            stored = permute(stored, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        if arch == MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
            stored = stored + np.float32(1)
        place = names.get_name(name.replace("language_model.", ""), try_suffixes=(".weight", ".bias"))
        assert place is not None, name
        made.tensors[place] = (stored.shape[::-1], 0, stored.tobytes())
    return made.write(path)


def _stacked(tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Experts joined along a new first axis."""
    found: dict[str, NDArray[Any]] = {}
    groups: dict[str, dict[int, NDArray[Any]]] = {}
    for name, weight in tensors.items():
        if match := re.fullmatch(r"(.*\.experts\.)(\d+)\.(.*)", name):
            groups.setdefault(match[1] + match[3], {})[int(match[2])] = weight
        else:
            found[name] = weight
    return found | {name: np.stack([group[index] for index in range(len(group))]) for name, group in groups.items()}


def _set_sizes(made: Gguf, arch: str, config: dict[str, Any]) -> None:
    sizes = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        "attention.sliding_window": (config.get("sliding_window") or 0) if arch in ("gemma3", "phi3") else 0,
        "expert_count": config.get("num_local_experts", config.get("num_experts", 0)),
        "expert_used_count": config.get("num_experts_per_tok", 0),
        "expert_feed_forward_length": config.get("moe_intermediate_size", 0),
    }
    for key, size in sizes.items():
        if size:
            made.set(f"{arch}.{key}", U32, size)
    made.set(f"{arch}.attention.layer_norm_rms_epsilon", F32, config["rms_norm_eps"])


def _set_rotary(made: Gguf, arch: str, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    made.set(f"{arch}.rope.freq_base", F32, rope["rope_theta"])
    made.set(f"{arch}.rope.dimension_count", U32, int(head_dim * rope.get("partial_rotary_factor", 1)))
    kind, prefix = rope["rope_type"], f"{arch}.rope.scaling"
    if kind in ("linear", "yarn"):
        made.set(f"{prefix}.type", STRING, kind)
        made.set(f"{prefix}.factor", F32, rope["factor"])
    if kind in ("yarn", "longrope"):
        made.set(f"{prefix}.original_context_length", U32, rope["original_max_position_embeddings"])
    if kind == "yarn":
        for name in ("beta_fast", "beta_slow"):
            if name in rope:
                made.set(f"{prefix}.yarn_{name}", F32, rope[name])
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        stretch = config["max_position_embeddings"] / original
        made.set(f"{prefix}.attn_factor", F32, math.sqrt(1 + math.log(stretch) / math.log(original)))
        for name in ("short", "long"):
            factors = np.array(rope[f"{name}_factor"], np.float32)
            made.tensors[f"rope_factors_{name}.weight"] = (factors.shape, 0, factors.tobytes())
    if kind == "llama3":
        factors = _llama3_factors(rope, head_dim)
        made.tensors["rope_freqs.weight"] = (factors.shape, 0, factors.tobytes())


def _llama3_factors(rope: dict[str, Any], dim: int) -> NDArray[np.float32]:
    """What each frequency is divided by."""
    low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    factors = []
    for index in range(0, dim, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (index / dim)
        if length < original / high:
            factors.append(1.0)
        elif length > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def _set_tokenizer(made: Gguf, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    num_controls = len(tokenizer["added_tokens"])
    made.set("tokenizer.ggml.model", STRING, "gpt2")
    made.set("tokenizer.ggml.pre", STRING, "gpt-2")
    made.set_array("tokenizer.ggml.tokens", STRING, tokens)
    made.set_array("tokenizer.ggml.token_type", I32, [3] * num_controls + [1] * (len(tokens) - num_controls))
    made.set_array("tokenizer.ggml.merges", STRING, [])
    made.set("tokenizer.ggml.bos_token_id", U32, config["bos_token_id"])
    made.set("tokenizer.ggml.eos_token_id", U32, config["eos_token_id"])
