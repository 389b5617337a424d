"""Guessed tokens save passes and change nothing: equality with an engine that never guesses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.model_loader import load_engine
from inference.engine.prompt_lookup import FIRST_DRAFT, FIRST_PAUSE, MAX_PAUSE, PromptLookup
from inference.types import FinishedEvent, Request, SamplingParams
from tests.examples import examples
from tests.inference.fakes import MarkerModel, expected_ids, finished, ids_of, make_engine, make_request, run, text_of

CYCLE = {ord(a): ord(b) for a, b in ("ab", "bc", "cd", "de", "ea")}  # a model that goes round for ever


def ids(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def looping(**settings) -> LLMEngine:
    engine = make_engine(**settings)
    engine.model.script = dict(CYCLE)
    return engine


def test_guess_is_what_followed_the_last_time():
    lookup = PromptLookup()
    assert lookup.draft(ids("one two, one t"), 2) == tuple(b"wo")
    assert lookup.draft(ids("abcX abcY abc"), 1) == tuple(b"Y")
    assert lookup.draft(ids("aaaa"), 2) == tuple(b"aa")
    assert lookup.draft(ids("abcdefg"), 5) == ()
    assert lookup.draft(ids("abcabc"), 0) == ()
    for text in ("", "a", "ab", "abc"):
        assert lookup.draft(ids(text), 5) == ()


@settings(deadline=None)
@given(text=st.text("ab", max_size=30), max_tokens=st.integers(0, 9))
def test_guesses_continue_the_latest_earlier_occurrence(text, max_tokens):
    draft = bytes(PromptLookup().draft(ids(text), max_tokens)).decode()
    earlier = text[:-1].rfind(text[-3:]) if len(text) > 3 else -1
    expected = (text[earlier + 3 :] * 9)[: min(max_tokens, FIRST_DRAFT)] if earlier >= 0 else ""
    assert draft == expected


def test_drafts_grow_while_they_are_right_and_shrink_when_they_are_not():
    lookup, text = PromptLookup(), ids("0123456789" * 5)
    sizes = []
    for _ in range(3):
        sizes.append(len(lookup.draft(text, 16)))
        lookup.record(sizes[-1], sizes[-1])
    assert sizes == [3, 6, 12]
    lookup.record(12, 2)
    assert len(lookup.draft(text, 16)) == 2


def test_text_that_repeats_nothing_is_left_alone_ever_longer():
    lookup, text = PromptLookup(), ids("abcabc")
    num_drafted = []
    for _ in range(2000):
        if draft := lookup.draft(text, 8):
            lookup.record(len(draft), 0)
        num_drafted.append(len(draft))
    assert sum(num_drafted[:20]) > 0
    assert sum(size > 0 for size in num_drafted[1000:]) < 1000 / MAX_PAUSE * 8


def test_after_a_pause_a_right_guess_is_believed_again():
    lookup, text = PromptLookup(), ids("abcabc")
    while draft := lookup.draft(text, 8):
        lookup.record(len(draft), 0)
    assert [lookup.draft(text, 8) for _ in range(FIRST_PAUSE - 1)] == [()] * (FIRST_PAUSE - 1)
    draft = lookup.draft(text, 8)
    lookup.record(len(draft), len(draft))
    assert len(lookup.draft(text, 8)) > len(draft)


def test_repetition_takes_fewer_passes_for_the_same_reply():
    request = make_request("a", "abcdeab", max_tokens=40)
    plain, guessing = looping(max_draft_tokens=0), looping()
    expected = run(plain, request)["a"]
    events = run(guessing, request)["a"]
    assert ids_of(events) == ids_of(expected) == [*b"cdeab" * 8]
    assert guessing.model.num_passes < plain.model.num_passes / 4
    stats = finished(events).stats
    assert stats.num_generated == 40
    assert stats.num_drafted >= stats.num_accepted
    assert stats.num_accepted == plain.model.num_passes - guessing.model.num_passes
    assert guessing.stats().num_accepted == stats.num_accepted
    assert finished(expected).stats.num_drafted == 0


def test_four_share_the_guesses_of_a_step():
    engine = looping(max_draft_tokens=8, max_batch_tokens=64)
    requests = [make_request(name, "abcdeab", max_tokens=30) for name in "wxyz"]
    events = run(engine, *requests)
    for request in requests:
        assert ids_of(events[request.request_id]) == [*b"cdeab" * 6]
        assert finished(events[request.request_id]).stats.num_accepted > 10


def test_nobody_gives_way_for_a_guess():
    engine = looping(pool_tokens=20, max_model_len=20)  # five blocks: both fit exactly
    requests = [make_request("x", "abcdeab", max_tokens=1), make_request("y", "bcdeabc", max_tokens=5)]
    run(engine, *requests)
    assert engine.stats().num_preemptions == 0


words = st.text("abcdeXY", min_size=1, max_size=12)
sampling = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 2.0]),
        "seed": st.integers(0, 50),
        "top_k": st.sampled_from([0, 3]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 0.5]),
        "stop": st.sampled_from([(), ("eab",), ("dea", "cc")]),
        "max_tokens": st.integers(1, 40),
    }
)


@settings(max_examples=examples(80), deadline=None)
@given(
    prompts=st.lists(st.tuples(words, sampling), min_size=1, max_size=4),
    repeats=st.integers(1, 4),
    pool_tokens=st.sampled_from([92, 128, 400]),
    max_draft_tokens=st.sampled_from([1, 7, 13]),
    script=st.sampled_from([CYCLE, {}, CYCLE | {ord("d"): 257}]),
)
def test_replies_are_those_of_an_engine_that_never_guesses(prompts, repeats, pool_tokens, max_draft_tokens, script):
    requests = [make_request(str(i), text * repeats, **params) for i, (text, params) in enumerate(prompts)]
    outcomes = []
    for max_tokens in (0, max_draft_tokens):
        engine = make_engine(max_draft_tokens=max_tokens, pool_tokens=pool_tokens)
        engine.model.script = dict(script)
        events = run(engine, *requests)
        ends = [finished(events[request.request_id]) for request in requests]
        outcomes.append([(e.finish_reason, e.token_ids, text_of(events[e.request_id])) for e in ends])
        for end in ends:  # the blocks left behind hold the reply, not the guesses: the next turn would notice
            stats = end.stats
            assert stats.num_reused_ram + stats.num_computed == stats.num_prompt_tokens
        follow_up = make_request("next", [*requests[0].prompt_ids, *(ends[0].token_ids or ()), 88], max_tokens=3)
        model = MarkerModel()
        model.script = dict(script)
        assert ids_of(run(engine, follow_up)["next"]) == expected_ids(follow_up, engine.max_model_len, model)
    assert outcomes[0] == outcomes[1]


@pytest.mark.model
def test_real_model_repeats_a_text_with_and_without_guesses_alike(model_path: Path) -> None:
    lines = "".join(f"item {n}: the harbour light was lit at dusk and put out at dawn\n" for n in range(3))
    replies = []
    for max_draft_tokens in (0, 14):
        engine = load_engine(model_path, EngineConfig(pool_tokens=512, max_draft_tokens=max_draft_tokens))
        prompt_ids = np.array(engine.tokenizer.encode(lines), np.int32)
        for temperature in (0.0, 0.3):
            params = SamplingParams(temperature=temperature, seed=3, max_tokens=20)
            engine.add_request(Request(str(temperature), prompt_ids, params))
        events = [event for _ in range(200) if engine.has_work for event in engine.step()]
        replies.append({event.request_id: event for event in events if isinstance(event, FinishedEvent)})
    assert sum(guessed.stats.num_accepted for guessed in replies[1].values()) > 0
    for name, guessed in replies[1].items():
        assert guessed.token_ids == replies[0][name].token_ids
        assert guessed.stats.num_generated == 20
