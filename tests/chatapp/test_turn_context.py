"""Which turns stay: exact counts, whole turns, rarely moved. Pure, on prompts whose tokens are counted by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.errors import WindowFull
from chatapp.llm import Prompt
from chatapp.turn.context import Fit, Rules, fit

HEAD = 10  # tokens of a system prompt


def fitted(sizes: Sequence[int], rules: Rules, first: int = 0) -> Fit:
    """Turns of these sizes; token t of a prompt is the number of its turn."""

    def build(first: int) -> tuple[Prompt, list[int]]:
        kept = sizes[first:]
        starts = [HEAD + sum(kept[:i]) for i in range(len(kept))]
        ids = np.repeat(np.arange(first - 1, len(sizes)), [HEAD, *kept]).astype(np.int32)
        return Prompt(ids, (), 0), starts

    return fit(len(sizes), build, rules, first)


def test_what_fits_stays_and_the_reply_gets_what_it_asked_for() -> None:
    found = fitted([100, 100], Rules(window=1000, max_tokens=100))
    assert (found.first, len(found.prompt.ids), found.max_reply_tokens) == (0, 210, 100)


def test_without_cutting_too_much_is_refused_with_numbers() -> None:
    with pytest.raises(WindowFull) as caught:
        fitted([600, 400], Rules(window=1000, max_tokens=100))
    assert caught.value.detail == {"num_prompt_tokens": 1010, "num_reserved_tokens": 100, "window": 1000}
    assert "let the oldest turns leave" in caught.value.message


def test_a_newest_turn_that_is_too_large_alone_is_refused_whatever_the_policy() -> None:
    for is_cut in (False, True):
        with pytest.raises(WindowFull, match="without anything earlier") as caught:
            fitted([900], Rules(window=1000, max_tokens=100, is_cut=is_cut))
        assert caught.value.detail["num_prompt_tokens"] == 910


def test_past_the_trigger_turns_leave_until_the_target() -> None:
    rules = Rules(window=1000, max_tokens=200, is_cut=True, trigger=0.85, target=0.55)  # 680 and 440 of 800
    assert fitted([67] * 10, rules).first == 0  # 680
    found = fitted([68] * 10, rules)
    assert (found.first, len(found.prompt.ids)) == (4, 418)
    assert fitted([68] * 11, rules, first=4).first == 4  # the window has moved, and stays there


def test_a_large_new_turn_stays_below_the_room_even_above_the_target() -> None:
    found = fitted([100, 100, 700], Rules(window=1000, max_tokens=200, is_cut=True))
    assert (found.first, len(found.prompt.ids)) == (2, 710)


def test_the_last_tokens_only() -> None:
    rules = Rules(window=100_000, max_tokens=100, is_cut=True, recent_tokens=1000)
    found = fitted([100] * 11, rules)
    assert (found.first, len(found.prompt.ids) - HEAD) == (5, 600)  # at most 1000 * 0.55 / 0.85 = 647
    assert fitted([100] * 15, rules, first=5).first == 5


def test_recent_tokens_beyond_the_window_change_nothing() -> None:
    sizes = [68] * 10
    small = Rules(window=1000, max_tokens=200, is_cut=True)
    large = Rules(window=1000, max_tokens=200, is_cut=True, recent_tokens=5000)
    assert fitted(sizes, small).first == fitted(sizes, large).first
    assert small.limit == large.limit


@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=60),
    window=st.integers(20, 3000),
    max_tokens=st.integers(1, 3000),
    is_cut=st.booleans(),
    recent=st.sampled_from([0, 50, 500, 5000]),
    start=st.floats(0, 1, exclude_max=True),
)
def test_a_prompt_and_its_reply_fit_or_the_turn_is_refused(
    sizes: list[int], window: int, max_tokens: int, is_cut: bool, recent: int, start: float
) -> None:
    rules = Rules(window=window, max_tokens=max_tokens, is_cut=is_cut, recent_tokens=recent)
    first = int(start * len(sizes))
    least = HEAD + (sizes[-1] if is_cut else sum(sizes[first:]))
    if least > rules.room:
        with pytest.raises(WindowFull) as caught:
            fitted(sizes, rules, first)
        assert caught.value.detail["num_prompt_tokens"] == least
        return
    found = fitted(sizes, rules, first)
    num_tokens = len(found.prompt.ids)
    assert num_tokens + rules.reserve <= window
    assert found.max_reply_tokens == min(max_tokens, window - num_tokens) >= rules.reserve
    assert num_tokens == HEAD + sum(sizes[found.first :])  # the head and whole turns, the newest among them
    assert found.first >= first
    trigger, target = rules.marks(HEAD)
    if found.first > first:  # no more has left than was needed
        assert is_cut
        assert HEAD + sum(sizes[first:]) > trigger
        assert num_tokens + sizes[found.first - 1] > target


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=300), window=st.sampled_from([1000, 8000]))
def test_the_window_moves_as_rarely_as_it_can(sizes: list[int], window: int) -> None:
    rules = Rules(window=window, max_tokens=100, is_cut=True)
    first = num_moves = 0
    for num in range(1, len(sizes) + 1):
        found = fitted(sizes[:num], rules, first)
        num_moves += found.first != first
        first = found.first
    trigger, target = rules.marks(HEAD)
    assert num_moves <= math.ceil(sum(sizes) / (trigger - target))
