"""PrefillPace: chunks that take about as long as wanted, on machines that are only numbers here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.pace import ALONE_S, BESIDE_S, FIRST_TOKENS, MIN_TOKENS, PrefillPace, even_part


def affine(fixed_s: float, token_s: float) -> Callable[[int], float]:
    return lambda num_tokens: fixed_s + token_s * num_tokens


def settled(pace: PrefillPace, machine: Callable[[int], float], *, is_beside: bool = False, num_steps: int = 40) -> int:
    for _ in range(num_steps):
        num_tokens = pace.num_tokens(is_beside=is_beside)
        pace.record(num_tokens, machine(num_tokens), is_beside=is_beside)
    return pace.num_tokens(is_beside=is_beside)


@pytest.mark.parametrize("is_beside", [False, True])
@settings(deadline=None)
@given(fixed_s=st.floats(0, 0.1), token_s=st.floats(1e-5, 1e-1))
def test_steps_come_to_last_as_long_as_wanted(is_beside, fixed_s, token_s):
    machine = affine(fixed_s, token_s)
    num_tokens = settled(PrefillPace(512), machine, is_beside=is_beside)
    aim_s = BESIDE_S if is_beside else ALONE_S
    assert MIN_TOKENS <= num_tokens <= 512
    assert num_tokens == MIN_TOKENS or machine(num_tokens) <= 1.05 * aim_s
    assert num_tokens == 512 or machine(num_tokens + 2) >= 0.95 * aim_s


@pytest.mark.parametrize("max_tokens", [1, 7, MIN_TOKENS, 512])
@settings(deadline=None)
@given(steps=st.lists(st.tuples(st.integers(1, 512), st.floats(0, 1e4), st.booleans()), max_size=20))
def test_chunks_stay_within_the_limits_whatever_the_clock_says(max_tokens, steps):
    pace = PrefillPace(max_tokens)
    for num_tokens, seconds, is_beside in steps:
        pace.record(num_tokens, seconds, is_beside=is_beside)
        for beside in (True, False):
            assert min(MIN_TOKENS, max_tokens) <= pace.num_tokens(is_beside=beside) <= max_tokens


def test_one_slow_step_is_enough_and_a_fast_machine_is_found_again():
    pace = PrefillPace(512)
    pace.record(FIRST_TOKENS, 5.0, is_beside=False)
    assert pace.num_tokens(is_beside=False) == MIN_TOKENS
    assert settled(pace, affine(0.0, 0.0005), num_steps=2) == 512


def test_short_prompt_counts_only_if_it_was_slow():
    pace = PrefillPace(512)
    pace.record(20, 0.12, is_beside=False)
    assert pace.num_tokens(is_beside=False) == FIRST_TOKENS
    pace.record(20, 0.7, is_beside=False)
    assert pace.num_tokens(is_beside=False) == MIN_TOKENS


def test_steps_beside_others_are_measured_apart():
    pace = PrefillPace(512)
    pace.record(100, 3.0, is_beside=True)
    assert pace.num_tokens(is_beside=False) == FIRST_TOKENS


@settings(deadline=None)
@given(num_pending=st.integers(1, 5000), max_tokens=st.integers(1, 512))
def test_parts_are_equal_and_as_few_as_possible(num_pending, max_tokens):
    parts, num_left = [], num_pending
    while num_left:
        parts.append(even_part(num_left, max_tokens))
        num_left -= parts[-1]
    assert max(parts) <= max_tokens
    assert max(parts) - min(parts) <= 1
    assert len(parts) == -(-num_pending // max_tokens)
