"""LLMEngine on the marker model: what a request answers, what it reports, and what it leaves behind."""

from __future__ import annotations

import numpy as np
import pytest

from inference.errors import PromptTooLong, QueueFull
from inference.types import FinishReason, ProgressEvent, Stage, TokenEvent
from tests.inference.fakes import (
    EOS,
    MarkerModel,
    expected_ids,
    finished,
    ids_of,
    make_engine,
    make_request,
    markers_of,
    run,
    text_of,
)

HELLO = "hello world, how are you today"  # 30 tokens
R = FinishReason


def test_answer_is_that_of_a_model_without_engine():
    request = make_request("a", HELLO, max_tokens=9)
    events = run(make_engine(), request)["a"]
    assert ids_of(events) == expected_ids(request)
    assert finished(events).finish_reason == R.LENGTH
    assert finished(events).token_ids == tuple(ids_of(events))
    assert text_of(events) == bytes(ids_of(events)).decode(errors="replace")


@pytest.mark.parametrize("max_batch_tokens", [1, 2, 3, 5, 7, 16, 64])
@pytest.mark.parametrize("is_enabled", [True, False])
def test_answers_depend_on_neither_chunks_nor_cache_nor_companions(max_batch_tokens, is_enabled):
    engine = make_engine(max_batch_tokens=max_batch_tokens, is_prefix_cache_enabled=is_enabled)
    requests = [
        make_request("a", HELLO, max_tokens=6),
        make_request("b", HELLO[:17], max_tokens=9, temperature=1.0, seed=3),
        make_request("c", HELLO[:12] + "?", max_tokens=3),
    ]
    for _ in range(2):  # cold, warm
        events = run(engine, *requests)
        for request in requests:
            assert ids_of(events[request.request_id]) == expected_ids(request)
    assert (engine.stats().num_reused_ram > 0) == is_enabled


def test_events_come_in_the_order_of_the_stages():
    engine = make_engine(max_running=1)
    events = run(engine, make_request("a", HELLO, max_tokens=3), make_request("b", HELLO[:5], max_tokens=2))
    progress = [(e.stage, e.position, e.num_done, e.num_total) for e in events["a"] if isinstance(e, ProgressEvent)]
    assert progress == [
        (Stage.READING, 0, 0, 30),
        (Stage.READING, 0, 15, 30),
        (Stage.READING, 0, 30, 30),
        (Stage.WRITING, 0, 0, 0),
    ]
    progress = [(e.stage, e.position, e.num_done) for e in events["b"] if isinstance(e, ProgressEvent)]
    assert progress == [(Stage.QUEUED, 0, 0), (Stage.READING, 0, 4), (Stage.READING, 0, 5), (Stage.WRITING, 0, 0)]


def test_reading_is_told_before_the_pass_with_what_is_reused():
    model = MarkerModel()
    engine = make_engine(model)
    run(engine, make_request("a", HELLO[:9]))
    engine.add_request(make_request("b", HELLO))
    num_passes = model.num_passes
    assert engine.schedule_step() == [ProgressEvent("b", Stage.READING, num_done=9, num_total=30)]
    assert engine.stats().num_running == 1
    assert model.num_passes == num_passes
    assert engine.run_step()[0] == ProgressEvent("b", Stage.READING, num_done=20, num_total=30)
    assert model.num_passes == num_passes + 1


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


def test_chunks_follow_the_measured_speed_and_change_no_answer():
    now = [0.0]

    class SlowModel(MarkerModel):
        def forward(self, batch, kv):
            now[0] += len(batch.token_ids) / 150
            return super().forward(batch, kv)

    engine = make_engine(SlowModel(), pool_tokens=1024, max_batch_tokens=512)
    engine.clock = lambda: now[0]
    request = make_request("a", HELLO * 16, max_tokens=3)
    events = run(engine, request)["a"]
    done = [e.num_done for e in events if isinstance(e, ProgressEvent) and e.stage == Stage.READING]
    assert done == [0, 240, 300, 360, 420, 480]  # 1.6 s for the first chunk: from then on at most 75 tokens
    assert ids_of(events) == expected_ids(request)


def test_place_in_the_queue_is_reported_when_it_changes():
    engine = make_engine(max_running=1)
    events = run(engine, *(make_request(name, HELLO[:5], max_tokens=3) for name in "abc"))
    assert [e.position for e in events["c"] if isinstance(e, ProgressEvent) and e.stage == Stage.QUEUED] == [1, 0]


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_numbers_of_cold_and_warm_requests():
    engine = make_engine()
    cold = finished(run(engine, make_request("a", HELLO, max_tokens=4))["a"]).stats
    warm = finished(run(engine, make_request("b", HELLO, max_tokens=4))["b"]).stats
    assert (cold.num_prompt_tokens, cold.num_reused_ram, cold.num_computed, cold.num_generated) == (30, 0, 30, 4)
    assert (warm.num_prompt_tokens, warm.num_reused_ram, warm.num_computed, warm.num_generated) == (30, 30, 0, 4)
    stats = engine.stats()
    assert (stats.num_requests, stats.num_requests_hit, stats.num_prompt_tokens) == (2, 1, 60)
    assert (stats.num_reused_ram, stats.num_computed, stats.num_generated) == (30, 30, 8)


def test_second_turn_computes_the_new_message_and_the_end_of_turn_only():
    engine = make_engine(pool_tokens=512)
    first = run(engine, make_request("a", HELLO, max_tokens=11))["a"]
    history = [*HELLO.encode(), *finished(first).token_ids]
    second = finished(run(engine, make_request("b", [*history, EOS, 10, 65, 66, 67], max_tokens=2))["b"]).stats
    assert second.num_reused_ram == len(history) - 1  # the last token of a reply has not been computed
    assert second.num_computed == 1 + 5


def test_times_add_up():
    now = [0.0]

    def clock() -> float:
        now[0] += 1
        return now[0]

    engine = make_engine()
    engine.clock = clock
    stats = finished(run(engine, make_request("a", HELLO, max_tokens=4))["a"]).stats
    assert stats.queue_s + stats.prefill_s == stats.ttft_s > 0
    assert stats.decode_tok_s == 3 / stats.decode_s


def test_preempted_request_answers_the_same_and_counts_apart():
    engine = make_engine(pool_tokens=48, max_batch_tokens=64)
    requests = [
        make_request(name, f"{name}bcdefghij", max_tokens=24, temperature=1.0, seed=5, repetition_penalty=1.2)
        for name in "xyz"
    ]
    events = run(engine, *requests)
    assert engine.stats().num_preemptions > 0
    for request in requests:
        assert ids_of(events[request.request_id]) == expected_ids(request)
        stats = finished(events[request.request_id]).stats
        assert (stats.num_reused_ram, stats.num_computed, stats.num_prompt_tokens) == (0, 10, 10)
    assert sum(finished(events[name]).stats.num_recomputed for name in "xyz") > 0


def test_counters_of_cold_requests_do_not_claim_hits():
    engine = make_engine()
    run(engine, make_request("a", HELLO), make_request("b", "something else"))
    assert engine.stats().num_requests_hit == engine.stats().num_reused_ram == 0


# --- ends -------------------------------------------------------------------------------------------------------------


def scripted(*ids: int) -> MarkerModel:
    """A model that answers a prompt ending in "?" with these ids."""
    model = MarkerModel()
    model.script = dict(zip([ord("?"), *ids], ids, strict=False))
    return model


def test_stop_token_is_counted_and_neither_shown_nor_stored():
    events = run(make_engine(scripted(65, 66, EOS)), make_request("a", "go?", max_tokens=9))["a"]
    end = finished(events)
    assert (end.finish_reason, end.token_ids, end.stats.num_generated) == (R.STOP, (65, 66), 3)
    assert (ids_of(events), text_of(events)) == ([65, 66], "AB")


def test_reply_may_be_empty():
    end = finished(run(make_engine(scripted(EOS)), make_request("a", "go?"))["a"])
    assert (end.finish_reason, end.token_ids, end.stats.num_generated) == (R.STOP, (), 1)


def test_stop_string_takes_its_tokens_with_it():
    model = scripted(65, 66, *b"\nYou:")
    events = run(make_engine(model), make_request("a", "go?", max_tokens=20, stop=("\nYou:", "zzz")))["a"]
    end = finished(events)
    assert (end.finish_reason, text_of(events), end.token_ids) == (R.STOP, "AB", (65, 66))
    assert end.stats.num_generated == 7
    assert [e.token_ids for e in events if isinstance(e, TokenEvent)] == [(65,), (66,), (), (), (), (), ()]


def test_stop_string_that_begins_inside_a_token_leaves_no_ids():
    model = scripted(65, 258, ord(":"))  # 258 is "b\nU"
    events = run(make_engine(model), make_request("a", "go?", max_tokens=20, stop=("\nU:",)))["a"]
    assert (text_of(events), finished(events).token_ids) == ("Ab", None)


def test_text_held_back_for_a_stop_string_comes_with_the_end():
    model = scripted(65, *b"\nYo", EOS)
    events = run(make_engine(model), make_request("a", "go?", max_tokens=20, stop=("\nYou:",)))["a"]
    end = finished(events)
    assert (end.text, text_of(events), end.token_ids) == ("\nYo", "A\nYo", (65, *b"\nYo"))


def test_ids_and_text_go_together_at_every_moment():
    """What is saved in mid-reply can be continued: neither runs ahead of the other, even inside a token."""
    model = scripted(65, 258, ord("x"), 259, 260, EOS)  # 258 is "b\nU", of which "\nU" may begin the stop string
    events = run(make_engine(model), make_request("a", "go?", max_tokens=20, stop=("\nU:",)))["a"]
    tokens = [(e.token_ids, e.text) for e in events if isinstance(e, TokenEvent)]
    assert tokens == [((65,), "A"), ((), ""), ((258, 120), "b\nUx"), ((), ""), ((259, 260), "€")]
    assert ids_of(events) == [65, 258, 120, 259, 260]


def test_characters_are_never_cut_in_two():
    events = run(make_engine(scripted(259, 260, EOS)), make_request("a", "go?", max_tokens=9))["a"]
    tokens = [(e.token_ids, e.text) for e in events if isinstance(e, TokenEvent)]
    assert tokens == [((), ""), ((259, 260), "€")]


def test_half_a_character_at_the_limit_is_marked_and_its_ids_are_kept():
    events = run(make_engine(scripted(65, 259)), make_request("a", "go?", max_tokens=2))["a"]
    assert (text_of(events), finished(events).token_ids) == ("A\ufffd", (65, 259))


def test_end_of_the_window_ends_the_reply():
    engine = make_engine(max_model_len=40)
    events = run(engine, make_request("a", HELLO, max_tokens=100))["a"]
    assert finished(events).finish_reason == R.LENGTH
    assert len(ids_of(events)) == 10


def test_pool_smaller_than_the_model_is_the_window():
    engine = make_engine(pool_tokens=36)
    assert engine.max_model_len == 36
    assert len(ids_of(run(engine, make_request("a", HELLO, max_tokens=100))["a"])) == 6


def test_window_beyond_the_model_is_refused():
    with pytest.raises(ValueError, match="max_model_len is 600, the model holds 512"):
        make_engine(max_model_len=600)


# --- refused ----------------------------------------------------------------------------------------------------------


def test_prompt_that_can_never_fit_is_refused_with_numbers():
    engine = make_engine(max_model_len=30)
    with pytest.raises(PromptTooLong) as caught:
        engine.add_request(make_request("a", HELLO))
    assert (caught.value.num_prompt_tokens, caught.value.max_tokens) == (30, 30)
    assert not engine.has_work
    run(engine, make_request("a", HELLO[:29]))


@pytest.mark.parametrize(
    ("prompt", "fields", "message"),
    [([], {}, "at least one id"), ([1, 999], {}, "vocabulary"), ([-1], {}, "vocabulary"), ([1], {"seed": -4}, "seed")],
)
def test_senseless_request_is_refused(prompt, fields, message):
    with pytest.raises(ValueError, match=message):
        make_engine().add_request(make_request("a", prompt, **fields))


def test_id_in_use_is_refused_and_free_again_afterwards():
    engine = make_engine()
    engine.add_request(make_request("a", HELLO))
    with pytest.raises(ValueError, match="already"):
        engine.add_request(make_request("a", HELLO))
    run(engine)
    run(engine, make_request("a", HELLO))


def test_full_queue_refuses_and_leaves_the_others_alone():
    engine = make_engine(max_running=1, max_waiting=1)
    engine.add_request(make_request("a", HELLO))
    engine.add_request(make_request("b", HELLO))
    with pytest.raises(QueueFull):
        engine.add_request(make_request("c", HELLO))
    assert run(engine).keys() == {"a", "b"}


# --- cancelled --------------------------------------------------------------------------------------------------------


def steps(engine, num: int) -> list:
    return [event for _ in range(num) for event in engine.step()]


def test_cancel_while_waiting():
    engine = make_engine(max_running=1)
    engine.add_request(make_request("a", HELLO))
    engine.add_request(make_request("b", HELLO))
    steps(engine, 1)
    engine.cancel("b")
    (end,) = [e for e in engine.step() if e.request_id == "b"]
    assert (end.finish_reason, end.stats.num_prompt_tokens, end.token_ids) == (R.CANCELLED, 0, ())
    assert run(engine).keys() == {"a"}


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


# --- sharing and forgetting -------------------------------------------------------------------------------------------


def reused(engine, request) -> int:
    return finished(run(engine, request)[request.request_id]).stats.num_reused_ram


def test_other_user_reuses_exactly_the_public_head():
    engine = make_engine(pool_tokens=512)
    alice = {"salt": b"alice", "num_public_tokens": 14}
    bob = {"salt": b"bob", "num_public_tokens": 14}
    assert reused(engine, make_request("a", HELLO, **alice)) == 0
    assert reused(engine, make_request("b", HELLO, **bob)) == 12
    assert reused(engine, make_request("c", HELLO, **alice)) == 30


def test_purge_leaves_nothing_of_a_conversation_in_the_pool():
    engine = make_engine(pool_tokens=512)
    run(engine, make_request("a", HELLO, num_public_tokens=9, tags=("talk",), max_tokens=9))
    assert engine.purge("talk") > 0
    engine.check_integrity()
    rows = {int(row) for row in engine.cache._storage.rows.flat}
    assert rows == {0, *markers_of(HELLO.encode()[:8])}
    assert reused(engine, make_request("b", HELLO, num_public_tokens=9)) == 8


def test_purge_in_mid_reply_lets_it_end_and_keeps_nothing():
    engine = make_engine(max_running=1)
    running = make_request("a", HELLO, tags=("talk",), max_tokens=9)
    waiting = make_request("b", HELLO[:9], tags=("talk",), max_tokens=9)
    engine.add_request(running)
    engine.add_request(waiting)
    events = steps(engine, 4)
    engine.purge("talk")
    for name, later in run(engine).items():
        events += [event for event in later if event.request_id == name]
    assert finished([e for e in events if e.request_id == "a"]).token_ids == tuple(expected_ids(running))
    assert finished([e for e in events if e.request_id == "b"]).token_ids == tuple(expected_ids(waiting))
    assert engine.stats().num_blocks_cached == 0
    assert not engine.cache._storage.rows.any()


def test_side_request_does_not_cost_the_conversation_its_cache():
    engine = make_engine(pool_tokens=48)
    run(engine, make_request("a", HELLO, max_tokens=2))
    side = make_request("title", HELLO + "title?", is_low_retention=True, max_tokens=2)
    assert reused(engine, side) == 30
    run(engine, make_request("other", "12345678", max_tokens=1))
    assert reused(engine, make_request("b", HELLO + "next", max_tokens=2)) == 30


def test_cleared_cache_is_cold():
    engine = make_engine()
    run(engine, make_request("a", HELLO))
    engine.clear_cache()
    assert reused(engine, make_request("b", HELLO)) == 0


def test_switched_off_cache_zeroes_what_it_gives_back():
    engine = make_engine(is_prefix_cache_enabled=False)
    run(engine, make_request("a", HELLO))
    assert engine.stats().num_blocks_free == 32
    assert not engine.cache._storage.rows.any()


def test_stats_describe_the_pool():
    engine = make_engine()
    engine.add_request(make_request("a", HELLO, max_tokens=3))
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_blocks_used, stats.num_blocks_free) == (1, 8, 24)
    run(engine)
    stats = engine.stats()
    assert (stats.num_running, stats.num_blocks_used, stats.num_blocks_cached, stats.num_blocks_free) == (0, 0, 8, 24)
    assert stats.pool_bytes == np.dtype(np.uint64).itemsize * 128
