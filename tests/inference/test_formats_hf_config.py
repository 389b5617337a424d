"""config.json of every family, in both ways of writing it, and what each leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.config import ModelConfig, RopeScaling
from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.hf_config import read_config
from tests.inference.row_invariance import FIXTURES

PATH = Path("config.json")
BASE: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}


def config(model_type: str, **changes: Any) -> ModelConfig:
    return read_config(PATH, BASE | {"model_type": model_type} | changes, {})


LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2] * 8}


@pytest.mark.parametrize(
    ("model_type", "old", "new"),
    [
        ("llama", {"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        (
            "llama",
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e5}},
        ),
        (
            "phi3",
            {"rope_scaling": LONGROPE, "original_max_position_embeddings": 512},
            {"rope_parameters": LONGROPE | {"rope_type": "longrope", "original_max_position_embeddings": 512}},
        ),
        (
            "gemma3_text",
            {"rope_theta": 1e6, "rope_local_base_freq": 5e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
                }
            },
        ),
    ],
)
def test_both_ways_of_writing_rotary_parameters_are_read_alike(
    model_type: str, old: dict[str, Any], new: dict[str, Any]
) -> None:
    assert config(model_type, **old) == config(model_type, **new)


@pytest.mark.parametrize(
    ("model_type", "changes", "expected"),
    [
        ("llama", {}, {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "num_key_value_heads": 8}),
        ("mistral", {}, {"max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096}),
        ("mistral", {"sliding_window": None}, {"sliding_window": 0}),
        ("phi3", {}, {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "sliding_window": 0}),
        ("qwen2", {}, {"max_position_embeddings": 32_768, "sliding_window": 0}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}, {"sliding_window": 4096}),
        ("qwen3", {}, {"max_position_embeddings": 32_768, "head_dim": 128}),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 2}, {"sliding_window": 4096}),
        ("qwen3_moe", {"use_sliding_window": True}, {"max_position_embeddings": 32_768, "sliding_window": 4096}),
        ("qwen3_vl", {}, {"max_position_embeddings": 128_000, "rope_theta": 5e5}),
        ("smollm3", {}, {"max_position_embeddings": 32_768, "tie_word_embeddings": True}),
        ("gemma3_text", {}, {"max_position_embeddings": 131_072, "sliding_window": 4096, "head_dim": 256}),
    ],
)
def test_what_a_file_leaves_out_is_what_the_family_takes(
    model_type: str, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    """As the configuration classes of transformers 5.24 have it."""
    left_out = ("max_position_embeddings", "num_key_value_heads")
    raw = {key: value for key, value in BASE.items() if key not in left_out} | {"num_attention_heads": 8}
    found = read_config(PATH, raw | {"model_type": model_type} | changes, {})
    assert {name: getattr(found, name) for name in expected} == expected


def kinds(pattern: str) -> tuple[str, ...]:
    return tuple({"s": "sliding_attention", "f": "full_attention"}[letter] for letter in pattern)


@pytest.mark.parametrize(
    ("model_type", "changes", "window", "pattern"),
    [
        ("mistral", {"sliding_window": 64}, 64, "ssssss"),
        ("mistral", {"sliding_window": None}, 0, ""),
        ("mistral", {"sliding_window": 4096}, 0, ""),  # nothing ever lies outside
        ("phi3", {"sliding_window": 64}, 64, "ssssss"),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": False, "max_window_layers": 2}, 0, ""),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 2}, 64, "ffssss"),
        ("qwen3", {"sliding_window": 64, "use_sliding_window": True}, 0, ""),  # only from layer 28 on
        ("qwen3", {"sliding_window": 9, "use_sliding_window": True, "layer_types": [*kinds("sfsfsf")]}, 9, "sfsfsf"),
        ("qwen3_moe", {"sliding_window": 64, "use_sliding_window": True} , 64, "ssssss"),
        ("smollm3", {"sliding_window": 64, "use_sliding_window": True}, 64, "fffsff"),
        ("gemma3_text", {"sliding_window": 512}, 512, "sssssf"),
        ("gemma3_text", {"sliding_window": 512, "sliding_window_pattern": 2}, 512, "sfsfsf"),
    ],
)  # fmt: skip
def test_windows_are_where_the_family_has_them(
    model_type: str, changes: dict[str, Any], window: int, pattern: str
) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    found = config(model_type, **changes, **(experts if model_type == "qwen3_moe" else {}))
    assert (found.sliding_window, found.layer_types) == (window, kinds(pattern))
    assert [found.window(layer) for layer in range(6)] == [window * (kind == "s") for kind in pattern or "ffffff"]


def test_families_fill_in_what_they_leave_out() -> None:
    gemma = config("gemma3_text")
    assert (gemma.head_dim, gemma.query_pre_attn_scalar, gemma.hidden_act) == (256, 256, "gelu_pytorch_tanh")
    assert (gemma.rope_theta, gemma.rope_local_base_freq, gemma.tie_word_embeddings) == (1e6, 1e4, True)
    smollm = config("smollm3")
    assert [smollm.is_rotated(layer) for layer in range(6)] == [True, True, True, False, True, True]
    assert config("qwen3").head_dim == 128
    assert config("llama").head_dim == 16


def test_gemma_with_images_states_only_what_its_text_side_has_of_its_own() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    text |= {"sliding_window": 1024, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    found = read_config(PATH, {"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": text}, {})
    assert (found.num_attention_heads, found.num_key_value_heads, found.head_dim) == (8, 4, 256)
    assert (found.vocab_size, found.eos_token_ids, found.tie_word_embeddings) == (262_208, (1, 106), True)
    assert found.layer_types == kinds("sssssf" * 5 + "ssss")
    assert (found.rope_theta, found.rope_local_base_freq) == (1e6, 1e4)
    assert found.rope_scaling == RopeScaling("linear", 8.0, 131_072)


def test_yarn_states_the_positions_after_the_stretch() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    found = config("qwen2", rope_scaling=yarn)
    assert found.max_position_embeddings == 16_384
    assert found.rope_scaling == RopeScaling("yarn", 4.0, 4096)


def test_sparse_layers_are_those_that_are_not_said_to_be_dense() -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    found = config("qwen3_moe", **experts, decoder_sparse_step=2, mlp_only_layers=[3])
    assert [found.is_sparse(layer) for layer in range(6)] == [False, True, False, False, False, True]


@pytest.mark.parametrize(
    ("model_type", "changes", "field"),
    [
        ("qwen3_vl", {"text_config": 3}, "text_config"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"sliding_window": 9, "layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("gemma3_text", {"sliding_window": 9, "layer_types": ["x_attention", "sliding_attention"] * 3}, "layer_types"),
        ("gemma3_text", {"sliding_window": 9, "layer_types": 3}, "layer_types"),
        (
            "qwen3_moe",
            {"num_experts": 4000, "num_experts_per_tok": 2, "moe_intermediate_size": 8} | {"num_hidden_layers": 400},
            "num_experts",
        ),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("smollm3", {"no_rope_layers": "all"}, "no_rope_layers"),
        ("phi3", {"rope_scaling": LONGROPE | {"short_factor": [1.0]}}, "short_factor"),
        ("phi3", {"rope_scaling": LONGROPE | {"long_factor": [0.0] * 8}}, "long_factor"),
        ("phi3", {"rope_scaling": LONGROPE | {"long_factor": "x"}}, "long_factor"),
        ("phi3", {"partial_rotary_factor": 0.1}, "partial_rotary_factor"),
        ("phi3", {"rope_scaling": LONGROPE, "original_max_position_embeddings": 1}, "original_max_position_embeddings"),
        ("llama", {"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_theta"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0.0}}, "factor"),
        (
            "llama",
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": -0.7}},
            "mscale",
        ),
        ("llama", {"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 4}}, "high_freq_factor"),
        ("qwen3_moe", {"num_experts": 4}, "num_experts_per_tok"),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 5, "moe_intermediate_size": 8}, "num_experts_per_tok"),
        ("qwen3_vl", {"sliding_window": 9}, "sliding_window"),
    ],
)
def test_what_makes_no_sense_or_is_not_ours_is_refused_with_its_field(
    model_type: str, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ModelFileError) as caught:
        config(model_type, **changes)
    assert caught.value.field == field


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_a_value_of_another_type_anywhere_is_refused_or_harmless(path: Path) -> None:
    raw = json.loads((path / "config.json").read_text())
    for key in raw:
        for other in ("x", -1, 2.5, [], {}, [[]], True, None, 1 << 40):
            try:
                read_config(PATH, raw | {key: other}, {})
            except ModelFileError:
                continue


def test_an_unknown_family_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"'mamba'.*known: gemma3, gemma3_text, llama, mistral, phi3, qwen2"
    ):
        config("mamba")
