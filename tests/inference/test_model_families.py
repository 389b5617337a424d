"""What holds for Llama holds for every family: the bits of a position do not depend on how it is computed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.formats.model_file import open_model_file
from inference.model.decoder import NumpyDecoder
from inference.model.moe import SparseMlp
from inference.model.registry import load_model
from tests.examples import examples
from tests.inference.row_invariance import FIXTURES, check, whole_logits

BY_NAME = {path.name: path for path in FIXTURES}


@cache
def load(name: str) -> NumpyDecoder:
    model = load_model(open_model_file(BY_NAME[name]), kernels="numpy", num_threads=2)
    assert isinstance(model, NumpyDecoder)
    return model


@pytest.mark.parametrize("name", BY_NAME)
def test_one_by_one_and_all_at_once_give_the_same_bits(name: str) -> None:
    check(load(name), 280, [1], seed=0)


@given(
    name=st.sampled_from(sorted(BY_NAME)),
    length=st.integers(1, 600),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(60), deadline=None)
def test_split_company_and_blocks_do_not_change_the_bits(name: str, length: int, sizes: list[int], seed: int) -> None:
    check(load(name), length, [max(size, length // 30) for size in sizes], seed)


@pytest.mark.parametrize("name", ["gemma3_text", "qwen2", "qwen3_moe"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_number_of_threads_does_not_change_the_bits(name: str, num_threads: int) -> None:
    other = load_model(open_model_file(BY_NAME[name]), kernels="numpy", num_threads=num_threads)
    tokens = np.random.default_rng(0).integers(0, 256, 400)
    np.testing.assert_array_equal(whole_logits(other, tokens), whole_logits(load(name), tokens))
    assert other.fingerprint == load(name).fingerprint


@pytest.mark.parametrize("name", BY_NAME)
def test_long_prompts_take_wide_calls(name: str) -> None:
    assert load(name).max_call_width >= 200


@pytest.mark.parametrize("name", BY_NAME)
def test_parameters_are_those_of_the_file(name: str) -> None:
    model_file = open_model_file(BY_NAME[name])
    assert load(name).num_parameters == sum(model_file.tensor(n).size for n in model_file.tensor_names())


def test_what_kv_depends_on_changes_the_fingerprint() -> None:
    model_file = open_model_file(BY_NAME["mistral"])
    seen = {load("mistral").fingerprint}
    for changes in ({"sliding_window": 38}, {"no_rope_layers": (1, 0)}, {"query_pre_attn_scalar": 3.0}):
        model_file.config = replace(open_model_file(BY_NAME["mistral"]).config, **changes)
        seen.add(load_model(model_file, kernels="numpy", num_threads=2).fingerprint)
    assert len(seen) == 4


def test_the_window_that_chooses_the_table_is_part_of_the_fingerprint() -> None:
    """Up to 128 positions the short factors serve; KV computed with the long ones is of no use there."""
    model_file = open_model_file(BY_NAME["phi3-longrope"])
    by_window = {
        window: load_model(model_file, kernels="numpy", num_threads=2, max_model_len=window)
        for window in (64, 128, 129, 0)
    }
    assert by_window[64].fingerprint == by_window[128].fingerprint
    assert by_window[129].fingerprint == by_window[0].fingerprint
    assert by_window[128].fingerprint != by_window[129].fingerprint


@pytest.mark.parametrize("is_normalised", [True, False])
def test_experts_are_chosen_by_score_and_weighted_by_softmax(is_normalised: bool) -> None:
    layer = load("qwen3_moe")._layers[0].feed_forward
    assert isinstance(layer, SparseMlp)
    layer = replace(layer, config=replace(layer.config, norm_topk_prob=is_normalised))
    scores = np.random.default_rng(0).standard_normal((8, 50)).astype(np.float32) * 3
    scores[:, 0] = 1.0  # a tie: the first ones
    chosen, shares = layer.choose(scores.copy())
    odds = np.exp(scores.astype(np.float64))
    odds /= odds.sum(0)
    for token in range(50):
        expected = sorted(sorted(range(8), key=lambda expert: -scores[expert, token])[:3])
        assert chosen[:, token].tolist() == expected
        wanted = odds[expected, token]
        np.testing.assert_allclose(shares[:, token], wanted / wanted.sum() if is_normalised else wanted, rtol=1e-5)
    alone = [layer.choose(scores[:, token : token + 1].copy()) for token in range(50)]
    np.testing.assert_array_equal(np.concatenate([part[1] for part in alone], axis=1), shares)


def test_experts_that_nobody_chose_are_not_read() -> None:
    model = load_model(open_model_file(BY_NAME["qwen3_moe"]), kernels="numpy", num_threads=1)
    assert isinstance(model, NumpyDecoder)
    tokens = np.array([7], np.int64)
    expected = whole_logits(model, tokens)
    read: list[int] = []
    for layer in model._layers:
        part = layer.feed_forward
        assert isinstance(part, SparseMlp)
        used = np.zeros(len(part.weights.experts), bool)
        for index, expert in enumerate(part.weights.experts):  # a NaN anywhere would show
            kept = expert.down.copy()
            expert.down.fill(np.nan)
            used[index] = np.isnan(whole_logits(model, tokens)).any()
            expert.down[...] = kept
        read.append(int(used.sum()))
    assert read == [3, 3]
    np.testing.assert_array_equal(whole_logits(model, tokens), expected)
