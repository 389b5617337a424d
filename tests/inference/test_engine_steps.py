"""Steps of the engine: what a request answers, which events come in which order, and the numbers at the end."""

from __future__ import annotations

import numpy as np
import pytest

from inference.types import FinishReason, ProgressEvent, Stage
from tests.inference.fakes import (
    EOS,
    HELLO,
    MarkerModel,
    expected_ids,
    finished,
    ids_of,
    make_engine,
    make_request,
    run,
    text_of,
)

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
    assert (stats.num_requests, stats.cache.since_start.num_requests_hit, stats.num_prompt_tokens) == (2, 1, 60)
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
    num_recomputed = sum(finished(events[name]).stats.num_recomputed for name in "xyz")
    assert engine.stats().num_recomputed == num_recomputed > 0


def test_counters_of_cold_requests_do_not_claim_hits():
    engine = make_engine()
    run(engine, make_request("a", HELLO), make_request("b", "something else"))
    assert engine.stats().cache.since_start.num_requests_hit == engine.stats().num_reused_ram == 0


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
