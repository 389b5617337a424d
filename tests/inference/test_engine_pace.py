"""PrefillPace: chunks that take about as long as wanted, on machines that are only numbers here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.pace import ALONE_MIN, ALONE_S, BESIDE_MIN, BESIDE_S, FIRST_TOKENS, PrefillPace, even_part


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
    num_tokens = settled(PrefillPace(512), machine, is_beside=is_beside, num_steps=400)
    aim_s, least = (BESIDE_S, BESIDE_MIN) if is_beside else (ALONE_S, ALONE_MIN)
    assert least <= num_tokens <= 512
    assert num_tokens == least or machine(num_tokens) <= 1.05 * aim_s
    assert num_tokens == 512 or machine(num_tokens + 2) >= 0.95 * aim_s


@pytest.mark.parametrize("max_tokens", [1, 7, ALONE_MIN, 512])
@settings(deadline=None)
@given(steps=st.lists(st.tuples(st.integers(1, 512), st.floats(0, 1e4), st.booleans()), max_size=20))
def test_chunks_stay_within_the_limits_whatever_the_clock_says(max_tokens, steps):
    pace = PrefillPace(max_tokens)
    for num_tokens, seconds, is_beside in steps:
        pace.record(num_tokens, seconds, is_beside=is_beside)
        for beside in (True, False):
            least = BESIDE_MIN if beside else ALONE_MIN
            assert min(least, max_tokens) <= pace.num_tokens(is_beside=beside) <= max_tokens


def test_one_slow_step_is_enough_and_a_fast_machine_is_found_again():
    pace = PrefillPace(512)
    pace.record(FIRST_TOKENS, 5.0, is_beside=False)
    assert pace.num_tokens(is_beside=False) == ALONE_MIN
    assert settled(pace, affine(0.0, 0.0005), num_steps=2) == 512


def test_short_prompt_counts_only_if_it_was_slow():
    pace = PrefillPace(512)
    pace.record(20, 0.12, is_beside=False)
    assert pace.num_tokens(is_beside=False) == FIRST_TOKENS
    pace.record(20, 0.7, is_beside=False)
    assert pace.num_tokens(is_beside=False) == ALONE_MIN


def test_steps_beside_others_are_measured_apart():
    pace = PrefillPace(512)
    pace.record(100, 3.0, is_beside=True)
    assert pace.num_tokens(is_beside=False) == FIRST_TOKENS


def test_chunks_beside_others_grow_again_after_a_slow_moment():
    pace = PrefillPace(512)
    pace.record(64, 2.0, is_beside=True)
    assert pace.num_tokens(is_beside=True) == BESIDE_MIN
    assert settled(pace, affine(0.004, 0.00025), is_beside=True) > 300


@pytest.mark.parametrize("num_prompt", [65, 300, 2000])
def test_equal_parts_of_a_prompt_count_as_full_chunks(num_prompt):
    pace, num_left, machine = PrefillPace(512), num_prompt, affine(0.004, 0.00025)
    while num_left:
        num_tokens = even_part(num_left, pace.num_tokens(is_beside=True))
        pace.record(num_tokens, machine(num_tokens), is_beside=True)
        num_left -= num_tokens
    assert pace.num_tokens(is_beside=True) > ALONE_MIN


@settings(deadline=None)
@given(fixed_s=st.floats(0, 0.09), token_s=st.floats(1e-5, 0.05 / ALONE_MIN))
def test_no_step_beside_others_is_long_on_a_machine_that_can_do_short_ones(fixed_s, token_s):
    pace, machine = PrefillPace(512), affine(fixed_s, token_s)
    num_left, durations = 2000, []
    while num_left:
        num_tokens = even_part(num_left, pace.num_tokens(is_beside=True))
        durations.append(machine(num_tokens))
        pace.record(num_tokens, durations[-1], is_beside=True)
        num_left -= num_tokens
    assert max(durations) < 0.15


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
