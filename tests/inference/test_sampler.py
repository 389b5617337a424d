"""Sampler: each knob against a plain definition, determinism, and unusable logits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from inference.errors import SamplingError
from inference.sampler.filters import FIRST_HEAD, GROUP_SIZE, kept_candidates, top_candidates
from inference.sampler.sampler import Sampler
from inference.types import SamplingParams
from tests.examples import examples

V = 50
PROMPT = np.array([3, 4, 4], np.int32)


def make(prompt=PROMPT, **params) -> Sampler:
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 7}
    return Sampler(SamplingParams(**(defaults | params)), prompt, V)


def logits_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, V).astype(np.float32)


def test_greedy_takes_the_lowest_id_among_equals():
    logits = np.zeros(V, np.float32)
    logits[[9, 30]] = 5
    assert make(temperature=0).sample(logits) == 9


def test_same_seed_same_tokens_and_another_seed_others():
    rows = [logits_of(i) for i in range(40)]
    tokens = [[sampler.sample(row) for row in rows] for sampler in (make(seed=1), make(seed=1), make(seed=2))]
    assert tokens[0] == tokens[1] != tokens[2]


def test_tokens_do_not_depend_on_companions():
    rows = [logits_of(i) for i in range(20)]
    alone, beside, other = make(seed=1), make(seed=1), make(seed=2)
    expected = [alone.sample(row) for row in rows]
    interleaved = []
    for row in rows:
        other.sample(row)
        interleaved.append(beside.sample(row))
    assert interleaved == expected


def test_frequencies_follow_the_softmax():
    logits = np.full(V, -np.inf, np.float32)
    logits[:3] = np.log([0.5, 0.3, 0.2])
    sampler = make(seed=0)
    counts = np.bincount([sampler.sample(logits) for _ in range(4000)], minlength=V)[:3] / 4000
    np.testing.assert_allclose(counts, [0.5, 0.3, 0.2], atol=0.03)


def test_temperature_sharpens():
    logits = np.zeros(V, np.float32)
    logits[5] = 1
    sampler = make(temperature=0.01)
    assert {sampler.sample(logits) for _ in range(50)} == {5}


@pytest.mark.parametrize("temperature", [1e-300, 5e-324])
def test_vanishing_temperature_is_greedy(temperature):
    assert make(temperature=temperature).sample(logits_of(1)) == int(logits_of(1).argmax())


def kept_by_definition(logits: np.ndarray, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The plain definition: sort by (logit, id), cut to top_k, cut where top_p is reached, drop below min_p."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = order[:top_k] if top_k else order
    weights = np.exp(np.array([logits[i] for i in order], np.float64) - float(logits[order[0]]))
    probabilities = weights / weights.sum()
    kept, total = [], 0.0
    for i, p in zip(order, probabilities, strict=True):
        kept.append((i, p))
        total += p
        if top_p < 1 and total >= top_p:
            break
    return {i for i, p in kept if p >= min_p * probabilities[0] or i == order[0]}


@settings(max_examples=examples(80), deadline=None)
@given(
    logits=arrays(np.float32, V, elements=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, -1.0, -4.0])),
    top_k=st.sampled_from([0, 1, 3, 10, V, V + 5]),
    top_p=st.sampled_from([0.0, 0.3, 0.77, 1.0]),
    min_p=st.sampled_from([0.0, 0.11, 0.55, 1.0]),
)
def test_filters_keep_what_their_definition_keeps(logits, top_k, top_p, min_p):
    sampler = make(top_k=top_k, top_p=top_p, min_p=min_p)
    allowed = kept_by_definition(logits, top_k, top_p, min_p)
    drawn = {sampler.sample(logits) for _ in range(60)}
    assert drawn <= allowed
    if len(allowed) <= 2:
        probabilities = np.exp(logits[list(allowed)])
        if probabilities.min() / probabilities.sum() > 0.2:
            assert drawn == allowed


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
@settings(max_examples=examples(30), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    num_values=st.sampled_from([2, 40, 1 << 20]),
    top_k=st.sampled_from([0, 1, 40, 60, 3 * FIRST_HEAD]),
    top_p=st.sampled_from([0.0, 0.37, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.4]),
)
def test_large_vocabulary_is_cut_as_if_it_were_sorted(temperature, seed, num_values, top_k, top_p, min_p):
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 3, num_values).astype(np.float32)
    logits = rng.choice(values, 100 * GROUP_SIZE + 7)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    ids, probabilities = kept_candidates(logits, params)
    scaled = (logits.astype(np.float64) - logits.max()) / temperature
    fewest = kept_by_definition(scaled, top_k, max(top_p - 1e-9, 0), min_p * (1 + 1e-9))
    most = kept_by_definition(scaled, top_k, min(top_p + 1e-9, 1), min_p * (1 - 1e-9))
    assert fewest <= set(ids.tolist()) <= most
    expected = np.exp(scaled[ids])
    np.testing.assert_allclose(probabilities / probabilities[0], expected / expected[0], rtol=1e-9)


@settings(deadline=None)
@given(
    logits=arrays(np.float32, 5 * GROUP_SIZE + 3, elements=st.sampled_from([-np.inf, -1.0, 0.0, 2.0, 3.5])),
    top_k=st.integers(1, 6 * GROUP_SIZE),
)
def test_top_k_takes_the_largest_and_the_lower_id_among_equals(logits, top_k):
    ids, candidates = top_candidates(logits, top_k)
    assert ids.tolist() == sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:top_k]
    np.testing.assert_array_equal(candidates, logits[ids])


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.01}])
def test_largest_number_that_can_be_drawn_gives_a_possible_token(params, monkeypatch):
    sampler = make(**params)
    monkeypatch.setattr(sampler, "_generator", LargestDraw())
    logits = np.full(V, -np.inf, np.float32)
    logits[[2, 6, 11]] = np.log(np.array([0.3, 0.3, 0.4], np.float32))
    assert sampler.sample(logits) in (2, 6, 11)


class LargestDraw:
    def random(self) -> float:
        return 1 - 2**-53


def test_top_p_zero_and_top_k_one_are_greedy():
    for params in ({"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}):
        sampler = make(**params)
        assert [sampler.sample(logits_of(i)) for i in range(20)] == [int(logits_of(i).argmax()) for i in range(20)]


def test_repetition_penalty_counts_prompt_and_output_and_knows_signs():
    sampler = make(temperature=0, repetition_penalty=2.0)
    logits = np.full(V, -10, np.float32)
    logits[3], logits[8], logits[9] = 4.0, 2.5, 1.5  # 3 is in the prompt: 4 / 2
    assert sampler.sample(logits) == 8
    assert sampler.sample(logits) == 3  # 8 has become 1.25, 3 is still 2
    negative = np.full(V, -10, np.float32)
    negative[3], negative[20] = -1.0, -1.5  # -1 * 2 falls below
    assert make(temperature=0, repetition_penalty=2.0).sample(negative) == 20


def test_presence_and_frequency_count_output_only():
    logits = np.full(V, -10, np.float32)
    logits[4], logits[8], logits[9] = 3.0, 2.5, 2.0  # 4 is in the prompt
    presence = make(temperature=0, presence_penalty=0.8)
    assert [presence.sample(logits) for _ in range(4)] == [4, 8, 4, 4]
    frequency = make(temperature=0, frequency_penalty=0.8)
    assert [frequency.sample(logits) for _ in range(5)] == [4, 8, 4, 9, 8]


def test_penalties_leave_the_callers_logits_alone():
    logits = logits_of(0)
    before = logits.copy()
    make(repetition_penalty=1.5, presence_penalty=1, frequency_penalty=1).sample(logits)
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_unusable_logits_are_an_error_that_says_so(bad, temperature):
    logits = logits_of(0)
    logits[11] = bad
    with pytest.raises(SamplingError, match="usable"):
        make(temperature=temperature).sample(logits)
    with pytest.raises(SamplingError):
        make(temperature=temperature).sample(np.full(V, -np.inf, np.float32))


def test_minus_infinity_is_never_chosen():
    logits = np.full(V, -np.inf, np.float32)
    logits[[2, 6]] = -3e38
    sampler = make(repetition_penalty=1.3, frequency_penalty=0.5)
    assert {sampler.sample(logits) for _ in range(40)} <= {2, 6}


def test_negative_seed_is_refused():
    with pytest.raises(ValueError):
        make(seed=-1)


def test_no_seed_draws_one():
    rows = [logits_of(i) for i in range(60)]
    assert [make(seed=None).sample(row) for row in rows] != [make(seed=None).sample(row) for row in rows]
