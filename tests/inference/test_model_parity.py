"""Every family computes what an independent implementation does: see tests/data/make_fixtures.py."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.config import RopeScaling
from inference.formats.architectures import KNOWN_ARCHITECTURES
from inference.formats.model_file import open_model_file
from inference.model.base import Model
from inference.model.registry import load_model
from tests.inference.random_model import make_batch
from tests.inference.row_invariance import BLOCK_SIZE, FIXTURES, whole_logits

TOLERANCES = {"numpy": 1e-4, "auto": 0.05}  # KV in 14 bits and activations in 15 are seen in logits of about 10
TOLERANCE = TOLERANCES["numpy"]
NOTICED = 100 * TOLERANCE


@cache
def load(path: Path, window: int, kernels: str) -> Model:
    return load_model(open_model_file(path), kernels=kernels, num_threads=2, max_model_len=window)


@pytest.mark.parametrize("kernels", TOLERANCES)
@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_logits_are_those_of_the_reference(path: Path, index: int, kernels: str) -> None:
    with np.load(path / "expected.npz") as expected:
        model = load(path, int(expected[f"window_{index}"]), kernels)
        logits = whole_logits(model, expected[f"ids_{index}"])[expected[f"rows_{index}"]]
        np.testing.assert_allclose(logits, expected[f"logits_{index}"], rtol=0, atol=TOLERANCES[kernels])


@pytest.mark.parametrize("kernels", TOLERANCES)
@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_greedy_tokens_are_those_of_the_reference(path: Path, index: int, kernels: str) -> None:
    with np.load(path / "expected.npz") as expected:
        ids, greedy = expected[f"ids_{index}"], expected[f"greedy_{index}"]
        model = load(path, int(expected[f"window_{index}"]), kernels)
    table = np.arange(-(-(len(ids) + len(greedy)) // BLOCK_SIZE), dtype=np.int32)
    kv = model.new_kv(len(table), BLOCK_SIZE)
    logits = model.forward(make_batch([(ids, 0, table)], BLOCK_SIZE, [len(ids) - 1]), kv)
    found = []
    for position in range(len(ids), len(ids) + len(greedy)):
        found.append(int(logits[0].argmax()))
        logits = model.forward(make_batch([(np.array(found[-1:]), position, table)], BLOCK_SIZE, [0]), kv)
    assert found == greedy.tolist()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-bias", {"attention_bias": False}),
        ("llama-bias", {"mlp_bias": False}),
        ("qwen3-bias", {"attention_bias": False}),
        ("llama-linear", {"rope_scaling": None}),
        ("llama-llama3", {"rope_scaling": None}),
        ("llama-yarn", {"rope_scaling": None}),
        ("qwen2-yarn", {"rope_scaling": None}),
        ("qwen2-yarn", {"rope_scaling": RopeScaling("yarn", 4.0, 256, truncate=False)}),
        ("phi3-longrope", {"rope_scaling": None}),
        ("mistral", {"layer_types": ()}),
        ("mistral", {"sliding_window": 38}),
        ("phi3", {"layer_types": ()}),
        ("qwen2", {"layer_types": ("sliding_attention",) * 2}),
        ("qwen3_moe", {"norm_topk_prob": False}),
        ("qwen3_moe", {"num_experts_per_tok": 2}),
        ("gemma3", {"layer_types": ("full_attention",) * 2}),
        ("gemma3_text", {"layer_types": ("full_attention",) * 3}),
        ("gemma3_text", {"rope_local_base_freq": 0.0}),
        ("gemma3_text", {"rope_scaling": None}),
        ("gemma3_text", {"query_pre_attn_scalar": 0.0}),
        ("gemma3_text", {"hidden_act": "silu"}),
        ("smollm3", {"no_rope_layers": ()}),
    ],
    ids=str,
)
def test_the_fixtures_would_notice_a_part_left_out(name: str, changes: dict[str, Any]) -> None:
    path = next(path for path in FIXTURES if path.name == name)
    model_file = open_model_file(path)
    model_file.config = replace(model_file.config, **changes)
    with np.load(path / "expected.npz") as expected:
        logits = whole_logits(load_model(model_file, kernels="numpy", num_threads=2), expected["ids_2"])[
            expected["rows_2"]
        ]
        assert np.abs(logits - expected["logits_2"]).max() > NOTICED


def test_every_known_architecture_has_a_fixture_and_a_class() -> None:
    assert {open_model_file(path).architecture for path in FIXTURES} == set(KNOWN_ARCHITECTURES)
