"""Requests that are cancelled or fail: they end at once, and the others go on."""

from __future__ import annotations

import pytest

from inference.types import FinishReason
from tests.inference.fakes import (
    HELLO,
    MarkerModel,
    expected_ids,
    finished,
    ids_of,
    make_engine,
    make_request,
    run,
    scripted,
    steps,
    text_of,
)

R = FinishReason


def test_cancel_while_waiting():
    engine = make_engine(max_running=1)
    engine.add_request(make_request("a", HELLO))
    engine.add_request(make_request("b", HELLO))
    steps(engine, 1)
    engine.cancel("b")
    (end,) = [e for e in engine.step() if e.request_id == "b"]
    assert (end.finish_reason, end.stats.num_prompt_tokens, end.token_ids) == (R.CANCELLED, 0, ())
    assert run(engine).keys() == {"a"}


def test_cancel_between_the_halves_of_a_step_leaves_the_others_in_the_batch():
    engine = make_engine()
    requests = [make_request(name, f"{name}bcdef") for name in "xy"]
    for request in requests:
        engine.add_request(request)
    engine.schedule_step()
    engine.cancel("x")
    events = engine.run_step()
    assert [event.finish_reason for event in events if event.request_id == "x"] == [R.CANCELLED]
    engine.check_integrity()
    assert run(engine).keys() == {"y"}


def test_cancelled_request_ends_before_the_pass_of_the_others():
    engine = make_engine()
    for name in "ab":
        engine.add_request(make_request(name, HELLO))
    engine.step()
    engine.cancel("a")
    assert finished([event for event in engine.schedule_step() if event.request_id == "a"])
    assert run(engine).keys() == {"b"}


def test_cancel_between_two_chunks_ends_at_once_and_a_retry_reuses_what_was_computed():
    model = MarkerModel()
    engine = make_engine(model, max_batch_tokens=7)
    engine.add_request(make_request("a", HELLO))
    steps(engine, 2)
    engine.cancel("a")
    engine.cancel("a")
    assert engine.has_work
    end = finished(engine.step())
    assert end.finish_reason == R.CANCELLED
    assert model.num_computed_tokens == 12  # two of five equal parts
    assert not engine.has_work
    engine.check_integrity()
    retry = make_request("b", HELLO)
    events = run(engine, retry)["b"]
    assert ids_of(events) == expected_ids(retry)
    assert finished(events).stats.num_reused_ram == 12


def test_cancel_while_writing_keeps_the_text_so_far():
    engine = make_engine(scripted(*b"abcdefgh"))
    engine.add_request(make_request("a", "go?", max_tokens=50))
    events = steps(engine, 4)
    engine.cancel("a")
    events += engine.step()
    end = finished(events)
    assert (end.finish_reason, text_of(events), end.token_ids) == (R.CANCELLED, "abcd", tuple(b"abcd"))


def test_cancel_of_unknown_and_finished_requests_does_nothing():
    engine = make_engine()
    engine.cancel("nobody")
    run(engine, make_request("a", HELLO))
    engine.cancel("a")
    assert not engine.has_work


def test_leader_may_be_cancelled_while_a_follower_uses_its_blocks():
    engine = make_engine(max_batch_tokens=64)
    leader, follower = make_request("a", HELLO, max_tokens=9), make_request("b", HELLO, max_tokens=9)
    engine.add_request(leader)
    steps(engine, 1)
    engine.add_request(follower)
    steps(engine, 2)
    engine.cancel("a")
    assert finished(run(engine)["b"]).token_ids == tuple(expected_ids(follower))


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError(), FloatingPointError("x"), IndexError("y")])
def test_failing_pass_ends_its_batch_and_the_engine_goes_on(error):
    model = MarkerModel()
    engine = make_engine(model, max_running=1)
    model.error = error
    events = run(engine, make_request("a", HELLO), make_request("b", HELLO))
    assert finished(events["a"]).finish_reason == R.ERROR
    assert type(error).__name__ in finished(events["a"]).error
    assert finished(events["b"]).finish_reason == R.LENGTH
    assert ids_of(events["b"]) == expected_ids(make_request("b", HELLO))


def test_unusable_logits_end_one_request_and_its_kv_is_not_kept():
    model = MarkerModel()
    engine = make_engine(model)
    model.nan_token = ord("!")
    good, bad = make_request("a", HELLO), make_request("b", HELLO + "!")
    events = run(engine, good, bad)
    assert finished(events["b"]).finish_reason == R.ERROR
    assert "logits" in finished(events["b"]).error
    assert ids_of(events["a"]) == expected_ids(good)
    model.nan_token = None
    assert ids_of(run(engine, bad)["b"]) == expected_ids(bad)


@pytest.mark.parametrize("num_tokens", [3, 5, 30])
def test_kv_of_unusable_logits_is_forgotten(num_tokens):
    model = MarkerModel()
    model.nan_token = ord("!")
    engine = make_engine(model)
    end = finished(run(engine, make_request("a", HELLO[:num_tokens] + "!"))["a"])
    assert (end.finish_reason, end.stats.num_computed) == (R.ERROR, num_tokens + 1)
    assert engine.stats().num_blocks_cached == 0
    assert not engine.cache._storage.rows.any()


def test_failed_step_can_be_cleared_up():
    """What the worker does when step() raises: everything alive ends, nothing leaks."""
    model = MarkerModel()
    engine = make_engine(model)
    engine.add_request(make_request("a", HELLO))
    model.error = AssertionError("our own mistake")
    with pytest.raises(AssertionError):
        engine.step()
    assert finished(engine.fail_step("internal")).error == "internal"
    engine.check_integrity()
    assert run(engine, make_request("b", HELLO)).keys() == {"b"}
    engine.add_request(make_request("c", HELLO))
    assert finished(engine.fail_step("internal")).request_id == "c"
