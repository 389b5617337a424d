"""What the engine makes of the prefix cache: repeats, followers, prefills that give way, causes and numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.stats import HitRecorder
from inference.errors import QueueFull
from inference.types import FinishReason, MissCause, ProgressEvent, RequestStats, Stage, TokenEvent
from tests.examples import examples
from tests.inference.fakes import MarkerModel, expected_ids, finished, ids_of, make_engine, make_request, run

HELLO = "hello world, how are you today"  # 30 tokens
LONG = "x" * 60
FIRST_CHUNK = 15  # of LONG: four equal ones, of at most 16 tokens
ALICE, BOB = {"salt": b"alice"}, {"salt": b"bob"}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def stats_of(engine, request) -> RequestStats:
    return finished(run(engine, request)[request.request_id]).stats


def cause(engine, prompt, **fields) -> MissCause:
    return stats_of(engine, make_request("asks", prompt, **fields)).miss_cause


# --- an exact repeat --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 4, 8, 29, 30])
def test_exact_repeat_computes_nothing_of_the_prompt(length):
    model = MarkerModel()
    engine = make_engine(model)
    prompt = HELLO[:length]
    first = run(engine, make_request("a", prompt))["a"]
    num_computed = model.num_computed_tokens
    repeat = run(engine, make_request("b", prompt))["b"]
    stats = finished(repeat).stats
    assert (stats.num_reused_ram, stats.num_computed, stats.miss_cause) == (length, 0, MissCause.NONE)
    assert ids_of(repeat) == ids_of(first)
    assert model.num_computed_tokens == num_computed + 3  # four tokens of the reply, the first of them for nothing
    assert engine.stats().cache.num_exact_repeats == 1


def test_first_token_of_a_repeat_comes_before_the_pass():
    engine = make_engine()
    run(engine, make_request("a", HELLO))
    engine.add_request(make_request("b", HELLO))
    assert any(isinstance(event, TokenEvent) for event in engine.schedule_step())
    run(engine)


def test_repeat_is_sampled_anew():
    engine = make_engine()
    run(engine, make_request("a", HELLO))
    request = make_request("b", HELLO, temperature=1.0, seed=5, repetition_penalty=1.3)
    assert ids_of(run(engine, request)["b"]) == expected_ids(request)


def test_repeat_of_one_token_ends_at_once():
    engine = make_engine()
    run(engine, make_request("a", HELLO))
    assert finished(run(engine, make_request("b", HELLO, max_tokens=1))["b"]).finish_reason == FinishReason.LENGTH


def test_logits_are_not_enough_when_the_kv_has_gone():
    engine = make_engine(pool_tokens=64)
    run(engine, make_request("a", HELLO))
    run(engine, make_request("b", LONG, max_tokens=1))
    request = make_request("c", HELLO)
    events = run(engine, request)["c"]
    assert finished(events).stats.num_computed > 0
    assert ids_of(events) == expected_ids(request)


def test_logits_of_another_salt_or_a_purged_tag_are_not_used():
    engine = make_engine()
    run(engine, make_request("a", HELLO, tags=("x",), **ALICE))
    assert stats_of(engine, make_request("b", HELLO, **BOB)).num_computed == 30
    engine.purge("x")
    assert stats_of(engine, make_request("c", HELLO, **ALICE)).num_computed == 30


def test_side_request_leaves_no_logits():
    engine = make_engine()
    run(engine, make_request("a", HELLO, is_low_retention=True))
    assert stats_of(engine, make_request("b", HELLO)).num_computed == 1


# --- leaders ----------------------------------------------------------------------------------------------------------


def start(engine, *requests) -> None:
    for request in requests:
        engine.add_request(request)
    engine.step()


def test_second_request_waits_for_what_the_first_is_computing():
    model = MarkerModel()
    engine = make_engine(model)
    events = run(engine, make_request("first", LONG, max_tokens=1), make_request("second", LONG + "!", max_tokens=1))
    assert model.num_computed_tokens == 60 + 1
    assert finished(events["second"]).stats.num_reused_ram == 60
    assert ids_of(events["second"]) == expected_ids(make_request("second", LONG + "!", max_tokens=1))


def test_follower_goes_on_alone_when_its_leader_is_cancelled():
    engine = make_engine()
    start(engine, make_request("first", LONG), make_request("second", LONG))
    assert engine.stats().num_running == 1
    engine.cancel("first")
    events = run(engine)
    stats = finished(events["second"]).stats
    assert stats.num_reused_ram == FIRST_CHUNK  # what the leader had computed
    assert ids_of(events["second"]) == expected_ids(make_request("second", LONG))


def test_follower_goes_on_alone_when_its_leader_fails():
    model = MarkerModel()
    engine = make_engine(model)
    start(engine, make_request("first", LONG), make_request("second", LONG))
    model.error = RuntimeError("boom")
    events = run(engine)
    assert finished(events["first"]).finish_reason == FinishReason.ERROR
    assert ids_of(events["second"]) == expected_ids(make_request("second", LONG))


def test_nobody_waits_for_private_text_of_another():
    engine = make_engine()
    start(engine, make_request("first", LONG, **ALICE), make_request("second", LONG, **BOB))
    assert engine.stats().num_running == 2


def test_public_head_is_waited_for_by_all():
    engine = make_engine()
    start(
        engine,
        make_request("first", LONG, num_public_tokens=40, **ALICE),
        make_request("second", LONG, num_public_tokens=40, **BOB),
    )
    assert engine.stats().num_running == 1
    assert finished(run(engine)["second"]).stats.num_reused_ram == 40


def test_others_pass_by_who_waits_for_a_leader():
    engine = make_engine()
    start(engine, make_request("first", LONG), make_request("second", LONG), make_request("other", "abc"))
    assert engine.stats().num_running == 2


def test_nobody_waits_for_what_will_not_be_kept():
    engine = make_engine()
    engine.add_request(make_request("first", LONG, tags=("x",)))
    engine.step()
    engine.purge("x")
    engine.add_request(make_request("second", LONG))
    engine.step()
    assert engine.stats().num_running == 2


# --- only prefill -----------------------------------------------------------------------------------------------------


def warm_up(request_id: str, prompt, **fields):
    return make_request(request_id, prompt, is_prefill_only=True, **fields)


def test_prefill_only_makes_the_next_request_free():
    model = MarkerModel()
    engine = make_engine(model)
    end = finished(run(engine, warm_up("w", HELLO))["w"])
    assert (end.finish_reason, end.text, end.token_ids) == (FinishReason.PREFILLED, "", ())
    assert (end.stats.num_computed, end.stats.num_generated) == (30, 0)
    assert stats_of(engine, make_request("a", HELLO)).num_computed == 0
    stats = engine.stats()
    assert (stats.num_requests, stats.num_prompt_tokens) == (1, 30)
    assert (stats.cache.num_prefill_only, stats.cache.num_prefill_only_tokens) == (1, 30)


def test_prefill_only_of_what_is_there_computes_nothing():
    engine = make_engine()
    run(engine, make_request("a", HELLO))
    end = finished(run(engine, warm_up("w", HELLO))["w"])
    assert (end.finish_reason, end.stats.num_computed) == (FinishReason.PREFILLED, 0)


def test_prefill_only_gives_way_at_once_and_resumes_with_a_hit():
    model = MarkerModel()
    engine = make_engine(model)
    start(engine, warm_up("w", LONG))
    engine.add_request(make_request("a", HELLO, max_tokens=2))
    events = engine.schedule_step()
    reading = [
        event.request_id for event in events if isinstance(event, ProgressEvent) and event.stage == Stage.READING
    ]
    assert reading == ["a"]
    rest = run(engine)
    assert finished(rest["a"]).stats.num_generated == 2
    stats = finished(rest["w"]).stats
    assert (stats.num_computed, stats.num_recomputed) == (60, 0)
    assert model.num_computed_tokens == 60 + 30 + 1
    assert engine.stats().num_yields == 1
    assert engine.stats().num_preemptions == 0
    assert engine.stats().cache.num_relookups == 1
    assert engine.stats().cache.num_relookup_tokens_hit == FIRST_CHUNK


def test_request_does_not_wait_for_a_prefill_of_its_own_prompt():
    engine = make_engine()
    start(engine, warm_up("w", LONG))
    start(engine, make_request("a", LONG))
    assert engine.stats().num_running == 1
    rest = run(engine)
    assert finished(rest["a"]).stats.num_reused_ram == FIRST_CHUNK
    assert finished(rest["w"]).finish_reason == FinishReason.PREFILLED


def test_prefill_only_can_be_cancelled():
    engine = make_engine()
    start(engine, warm_up("w", LONG))
    engine.cancel("w")
    assert finished(run(engine)["w"]).finish_reason == FinishReason.CANCELLED
    assert stats_of(engine, make_request("a", LONG)).num_reused_ram == FIRST_CHUNK


def test_prefill_only_takes_nobodys_place_in_the_queue():
    engine = make_engine(max_running=2, max_waiting=1)
    engine.add_request(warm_up("w1", LONG))
    engine.add_request(warm_up("w2", LONG))
    with pytest.raises(QueueFull):
        engine.add_request(warm_up("w3", LONG))
    for name in ("a", "b", "c"):
        engine.add_request(make_request(name, HELLO))
    with pytest.raises(QueueFull):
        engine.add_request(make_request("d", HELLO))
    run(engine)


def test_unusable_logits_end_a_prefill_and_nothing_is_kept():
    model = MarkerModel()
    engine = make_engine(model)
    model.nan_token = ord("y")
    end = finished(run(engine, warm_up("w", HELLO))["w"])
    assert end.finish_reason == FinishReason.ERROR
    assert engine.cache.num_cached == 0


# --- why not more -----------------------------------------------------------------------------------------------------


def test_cause_of_a_miss_is_told_where_it_is_known():
    engine = make_engine(pool_tokens=64)
    assert cause(engine, HELLO, tags=("x",)) == MissCause.NEW
    assert cause(engine, HELLO, tags=("x",)) == MissCause.NONE
    assert cause(engine, HELLO + " then") == MissCause.NEW
    assert cause(engine, LONG, max_tokens=1) == MissCause.NEW
    assert cause(engine, HELLO, tags=("x",)) == MissCause.EVICTED
    engine.purge("x")
    assert cause(engine, HELLO) == MissCause.PURGED
    assert cause(make_engine(is_prefix_cache_enabled=False), HELLO) == MissCause.DISABLED


def test_cause_tells_nothing_about_other_salts():
    engine = make_engine(pool_tokens=64)
    run(engine, make_request("a", HELLO, **ALICE))
    assert cause(engine, HELLO, **BOB) == MissCause.NEW
    run(engine, make_request("b", LONG, max_tokens=1, **ALICE))
    assert cause(engine, HELLO, **BOB) in (MissCause.NEW, MissCause.EVICTED, MissCause.NONE)
    engine = make_engine(pool_tokens=64)
    run(engine, make_request("a", HELLO, **ALICE))
    run(engine, make_request("b", LONG, max_tokens=1, **ALICE))
    assert cause(engine, HELLO, **BOB) == MissCause.NEW


# --- retention --------------------------------------------------------------------------------------------------------


def test_archived_goes_first_until_it_is_asked_for_again():
    def reused_after(*, is_asked_again: bool) -> int:
        engine = make_engine(pool_tokens=96)
        run(engine, make_request("a", HELLO, max_tokens=1, tags=("old",)))
        run(engine, make_request("b", LONG[:28], max_tokens=1, tags=("older",)))
        engine.archive("older")
        if is_asked_again:
            run(engine, make_request("c", LONG[:28], max_tokens=1, tags=("older",)))
        run(engine, make_request("d", "z" * 60, max_tokens=1))
        return stats_of(engine, make_request("e", HELLO, max_tokens=1, tags=("old",))).num_reused_ram

    assert reused_after(is_asked_again=False) == 30
    assert reused_after(is_asked_again=True) < 30


def test_what_is_looked_at_stays_as_long_as_it_was_said():
    clock = Clock()
    engine = make_engine(pool_tokens=96, clock=clock)
    for name, prompt in (("open", HELLO), ("other", LONG[:28])):
        run(engine, make_request(name, prompt, max_tokens=1, tags=(name,)))
    engine.protect("open", 60.0)
    run(engine, make_request("x", "z" * 60, max_tokens=1))
    assert stats_of(engine, make_request("again", HELLO, max_tokens=1, tags=("open",))).num_computed == 0
    clock.now = 61.0
    run(engine, make_request("other", LONG[:28], max_tokens=1, tags=("other",)))
    run(engine, make_request("y", "v" * 60, max_tokens=1))
    assert stats_of(engine, make_request("late", HELLO, max_tokens=1, tags=("open",))).num_computed > 0


def test_one_users_flood_does_not_push_out_another():
    engine = make_engine(pool_tokens=128)
    run(engine, make_request("bob", HELLO, max_tokens=1, **BOB))
    for i in range(8):
        run(engine, make_request(f"a{i}", chr(65 + i) * 40, max_tokens=1, **ALICE))
        engine.protect(f"tab {i}", 60.0)
    assert stats_of(engine, make_request("again", HELLO, max_tokens=1, **BOB)).num_computed == 0


def test_fork_point_outlives_its_branches():
    engine = make_engine(pool_tokens=96)
    run(engine, make_request("a", HELLO[:20] + "abcdefgh", max_tokens=1))
    run(engine, make_request("b", HELLO[:20] + "stuvwxyz", max_tokens=1))
    run(engine, make_request("c", LONG, max_tokens=1))
    assert stats_of(engine, make_request("d", HELLO[:20] + "12345678", max_tokens=1)).num_reused_ram == 20


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_hit_ratio_of_three_turns_is_sixty_percent():
    hits = HitRecorder(block_size=16)
    for num_reused in (0, 900, 900):
        hits.record(RequestStats(num_prompt_tokens=1000, num_reused_ram=num_reused, num_computed=1000 - num_reused))
    counts = hits.since_start
    assert (counts.num_tokens_hit, counts.num_tokens, counts.token_ratio) == (1800, 3000, 0.6)
    assert (counts.num_requests_hit, counts.num_requests) == (2, 3)
    assert (counts.num_blocks_hit, counts.num_blocks) == (2 * 56, 3 * 62)
    assert hits.recent == counts


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=20), st.integers(1, 5))
@settings(max_examples=examples(50))
def test_recent_counts_are_those_of_the_last_requests(requests, num_recent):
    hits, last = HitRecorder(4, num_recent), HitRecorder(4)
    stats = [RequestStats(num_prompt_tokens=max(a, b), num_reused_ram=min(a, b)) for a, b in requests]
    looked_up = [each for each in stats if each.num_prompt_tokens]
    for each in stats:
        hits.record(each)
    for each in looked_up[-num_recent:]:
        last.record(each)
    assert hits.recent == last.since_start


def test_saved_time_is_reused_tokens_at_the_measured_speed():
    clock = Clock()

    class SlowModel(MarkerModel):
        def forward(self, batch, kv):
            clock.now += 0.5 * len(batch.token_ids)
            return super().forward(batch, kv)

    engine = make_engine(SlowModel(), clock=clock)
    run(engine, make_request("a", HELLO, max_tokens=1))
    run(engine, make_request("b", HELLO, max_tokens=1))
    assert engine.stats().cache.prefill_saved_s == 15.0


def test_evictions_and_ages_are_counted():
    clock = Clock()
    engine = make_engine(pool_tokens=64, clock=clock)
    run(engine, make_request("a", HELLO, max_tokens=1))
    clock.now = 5.0
    run(engine, make_request("b", LONG, max_tokens=1))
    stats = engine.stats().cache
    assert (stats.num_evicted_blocks, stats.mean_evicted_age_s) == (7, 5.0)
    assert stats.num_evicted_by_age == (7, 0, 0, 0, 0)
    assert stats.oldest_idle_s == 5.0


def test_age_of_the_oldest_block_grows_while_nothing_happens():
    clock = Clock()
    engine = make_engine(clock=clock)
    assert engine.stats().cache.oldest_idle_s == 0.0
    run(engine, make_request("a", HELLO, max_tokens=1))
    clock.now = 90.0
    assert engine.stats().cache.oldest_idle_s == 90.0
    engine.clear_cache()
    assert engine.stats().cache.oldest_idle_s == 0.0
