"""Worker: states, threads, and that nobody waits for ever."""

from __future__ import annotations

import random
import threading

import pytest

from inference.engine.worker import Worker
from inference.errors import EngineStopped, ModelFileError, PromptTooLong, QueueFull
from inference.types import FinishedEvent, FinishReason, ProgressEvent, Stage
from tests.inference.fake_models import (
    GatedModel,
    Receiver,
    engine_of,
    load_now,
    make_worker,
    settle,
)
from tests.inference.fakes import MarkerModel, break_books, expected_ids, finished, ids_of, make_engine, make_request
from tests.patience import PATIENCE_S

R = FinishReason


@pytest.fixture
def start():
    """Start workers with one model, "m", and stop them afterwards."""
    workers: list[Worker] = []

    def start_worker(engine) -> Worker:
        worker = make_worker({"m": engine})
        workers.append(worker)
        worker.start()
        load_now(worker, "m")
        return worker

    yield start_worker
    for worker in workers:
        engine = engine_of(worker, "m")
        assert worker.shutdown(PATIENCE_S)
        assert worker.state == "stopped"
        if engine is not None:
            engine.check_integrity()
            assert worker.stats("m").num_blocks_used == 0


def test_request_is_answered_on_the_worker_thread(start):
    worker = start(make_engine())
    receiver, names = Receiver(), set()
    request = make_request("a", "hello", max_tokens=5)
    worker.submit("m", request, lambda event: (names.add(threading.current_thread().name), receiver(event)))
    assert ids_of(receiver.wait()) == expected_ids(request)
    assert finished(receiver.events).finish_reason == R.LENGTH
    assert names == {"engine"}
    assert worker.stats("m").num_requests == 1


def test_reading_is_told_while_the_first_pass_runs(start):
    model = GatedModel()
    worker = start(make_engine(model))
    receiver = Receiver()
    worker.submit("m", make_request("a", "hello"), receiver)
    assert model.has_entered.wait(PATIENCE_S)
    assert receiver.events == [ProgressEvent("a", Stage.READING, num_done=0, num_total=5)]
    model.gate.set()
    receiver.wait()


def test_receiver_that_fails_before_the_first_pass_ends_its_request_only(start):
    model = GatedModel()
    worker = start(make_engine(model))
    seen: list = []

    def failing(event):
        seen.append(event)
        if isinstance(event, ProgressEvent):
            raise RuntimeError("boom")

    receiver, request = Receiver(), make_request("b", "hello")
    model.gate.set()
    worker.submit("m", make_request("a", "hello"), failing)
    worker.submit("m", request, receiver)
    assert finished(receiver.wait()).token_ids == tuple(expected_ids(request))
    assert [type(event) for event in seen] == [ProgressEvent, FinishedEvent]


def test_times_count_from_submission_even_if_a_step_is_under_way(start):
    model, now = GatedModel(), [0.0]
    engine = make_engine(model)
    engine.clock = lambda: now[0]
    worker = start(engine)
    first, second = Receiver(), Receiver()
    worker.submit("m", make_request("a", "hello"), first)
    assert model.has_entered.wait(PATIENCE_S)
    now[0] = 10.0
    worker.submit("m", make_request("b", "hello"), second)  # taken in only when the pass is over
    now[0] = 50.0
    model.gate.set()
    stats = finished(second.wait()).stats
    assert (stats.queue_s, stats.ttft_s) == (40.0, 40.0)
    first.wait()


def test_while_it_loads_a_request_waits_and_is_told_how_far():
    gate = threading.Event()

    def load(on_progress, run_kernels):
        on_progress(0.256)
        assert gate.wait(PATIENCE_S)
        return make_engine()

    worker = make_worker({"m": load})
    assert (worker.model("m").state, worker.stats("m").num_blocks) == ("unloaded", 0)
    worker.start()
    receiver, request = Receiver(), make_request("a", "hello")
    worker.submit("m", request, receiver)
    assert receiver.is_loading.wait(PATIENCE_S)
    assert (worker.model("m").state, worker.model("m").progress) == ("loading", 0.256)
    assert receiver.events[-1] == ProgressEvent("a", Stage.LOADING, num_done=256, num_total=1000)
    gate.set()
    assert ids_of(receiver.wait()) == expected_ids(request)
    assert worker.shutdown(PATIENCE_S)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(ModelFileError("m.gguf", "is truncated"), "m.gguf: is truncated"), (MemoryError(), "MemoryError")],
)
def test_failed_load_says_why_and_is_tried_again(error, sentence):
    outcomes = [error, make_engine()]

    def load(on_progress, run_kernels):
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    worker = make_worker({"m": load})
    worker.start()
    failed, later = Receiver(), Receiver()
    worker.submit("m", make_request("a", "hello"), failed)
    end = finished(failed.wait())
    assert (end.finish_reason, end.error) == (R.ERROR, sentence)
    assert (worker.model("m").state, worker.model("m").error) == ("failed", sentence)
    assert worker.state == "running"
    worker.submit("m", make_request("b", "hello"), later)
    assert finished(later.wait()).finish_reason == R.LENGTH
    assert worker.shutdown(PATIENCE_S)


def test_shutdown_stops_a_load_at_its_next_report():
    def load(on_progress, run_kernels):
        while True:
            on_progress(0.5)

    worker = make_worker({"m": load})
    worker.start()
    receiver = Receiver()
    worker.submit("m", make_request("a", "hello"), receiver)
    assert receiver.is_loading.wait(PATIENCE_S)
    assert worker.shutdown(PATIENCE_S)
    assert worker.state == "stopped"
    assert finished(receiver.wait()).finish_reason == R.CANCELLED


def test_shutdown_before_start():
    worker = make_worker({"m": make_engine()})
    assert worker.shutdown()
    with pytest.raises(EngineStopped):
        worker.submit("m", make_request("a", "hello"), Receiver())


def test_shutdown_ends_every_request_as_cancelled(start):
    model = GatedModel()
    worker = start(make_engine(model, max_running=1))
    receivers = [Receiver() for _ in range(3)]
    for i, receiver in enumerate(receivers):
        worker.submit("m", make_request(str(i), "hello", max_tokens=400), receiver)
    assert model.has_entered.wait(PATIENCE_S)
    assert not worker.shutdown(0)  # the pass is not over
    model.gate.set()
    assert worker.shutdown(PATIENCE_S)
    assert [finished(receiver.wait()).finish_reason for receiver in receivers] == [R.CANCELLED] * 3
    assert worker.state == "stopped"
    with pytest.raises(EngineStopped, match="stopped"):
        worker.submit("m", make_request("x", "hello"), Receiver())


def test_cancel_ends_within_a_step(start):
    worker = start(make_engine())
    receiver = Receiver()
    worker.submit("m", make_request("a", "hello", max_tokens=400), receiver)
    assert receiver.has_token.wait(PATIENCE_S)
    worker.cancel("a")
    assert finished(receiver.wait()).finish_reason == R.CANCELLED
    worker.cancel("a")


def test_refusals_reach_the_caller(start):
    model = GatedModel()
    worker = start(make_engine(model, max_running=1, max_waiting=1))
    receivers = [Receiver(), Receiver()]
    with pytest.raises(PromptTooLong):
        worker.submit("m", make_request("long", "x" * 500), Receiver())
    with pytest.raises(ValueError):
        worker.submit("m", make_request("empty", ""), Receiver())
    worker.submit("m", make_request("a", "hello"), receivers[0])
    with pytest.raises(ValueError, match="already"):
        worker.submit("m", make_request("a", "hello"), Receiver())
    worker.submit("m", make_request("b", "hello"), receivers[1])
    with pytest.raises(QueueFull) as caught:
        worker.submit("m", make_request("c", "hello"), Receiver())
    assert (caught.value.num_waiting, caught.value.max_waiting) == (1, 1)
    model.gate.set()
    for receiver in receivers:
        receiver.wait()


def test_failing_receiver_costs_only_its_own_request(start):
    worker = start(make_engine())
    good, num_calls = Receiver(), []

    def bad(event):
        num_calls.append(event)
        raise RuntimeError("the loop is closed")

    worker.submit("m", make_request("bad", "hello", max_tokens=400), bad)
    request = make_request("good", "hello", max_tokens=9)
    worker.submit("m", request, good)
    assert ids_of(good.wait()) == expected_ids(request)
    last = Receiver()
    worker.submit("m", make_request("last", "hello"), last)
    last.wait()
    assert finished(num_calls).finish_reason == R.CANCELLED


def test_step_that_raises_ends_its_requests_and_the_worker_goes_on(start):
    model = MarkerModel()
    worker = start(make_engine(model))
    model.error = AssertionError("our own mistake")
    failed, later = Receiver(), Receiver()
    worker.submit("m", make_request("a", "hello"), failed)
    end = finished(failed.wait())
    assert (end.finish_reason, end.error) == (R.ERROR, "internal error: AssertionError")
    worker.submit("m", make_request("b", "hello"), later)
    assert finished(later.wait()).finish_reason == R.LENGTH


def test_broken_engine_leaves_nobody_waiting(start):
    model = MarkerModel()
    engine = make_engine(model, max_running=1)
    worker = start(engine)
    model.error = AssertionError("our own mistake")
    break_books(engine)
    running, waiting = Receiver(), Receiver()
    worker.submit("m", make_request("a", "hello"), running)
    worker.submit("m", make_request("b", "hello"), waiting)
    assert finished(running.wait()).finish_reason == R.ERROR
    assert finished(waiting.wait()).finish_reason == R.ERROR
    settle(worker)
    assert (worker.model("m").state, engine_of(worker, "m")) == ("failed", None)
    assert worker.model("m").error


def test_ids_that_died_with_the_engine_are_not_claimed(start):
    """The text may have been written for minutes: "no ids" would stand for an empty reply."""
    model = GatedModel()
    engine = make_engine(model)
    worker = start(engine)
    receiver = Receiver()
    worker.submit("m", make_request("a", "hello", max_tokens=100), receiver)
    assert model.has_entered.wait(PATIENCE_S)
    engine.fail_step = None  # what clears up is broken, too
    model.error = AssertionError("our own mistake")
    model.gate.set()
    end = finished(receiver.wait())
    assert (end.finish_reason, end.token_ids) == (R.ERROR, None)


def test_deleted_conversation_leaves_nothing_even_of_a_pass_under_way(start):
    model = GatedModel()
    engine = make_engine(model, pool_tokens=512)
    worker = start(engine)
    receivers = [Receiver(), Receiver()]
    worker.submit("m", make_request("a", "hello world", tags=("talk",), max_tokens=100), receivers[0])
    assert model.has_entered.wait(PATIENCE_S)
    worker.purge("talk")  # asked for while the pass runs, done before the next one
    model.gate.set()
    assert receivers[0].has_token.wait(PATIENCE_S)
    worker.submit(
        "m", make_request("b", "hello world", tags=("talk",), max_tokens=100), receivers[1]
    )  # too late to know
    assert receivers[1].has_token.wait(PATIENCE_S)
    for name in "ab":
        worker.cancel(name)
    worker.purge("talk")
    for receiver in receivers:
        receiver.wait()
    assert worker.shutdown(PATIENCE_S)
    assert not engine.cache._storage.rows.any()


def test_purge_is_done_before_what_is_submitted_after_it(start):
    worker = start(make_engine())
    receivers = [Receiver() for _ in range(3)]
    worker.submit("m", make_request("a", "hello world", tags=("talk",)), receivers[0])
    receivers[0].wait()
    worker.submit("m", make_request("b", "hello world", tags=("talk",)), receivers[1])
    assert finished(receivers[1].wait()).stats.num_reused_ram == 11
    worker.purge("talk")
    worker.submit("m", make_request("c", "hello world", tags=("talk",)), receivers[2])
    assert finished(receivers[2].wait()).stats.num_reused_ram == 0


def test_many_threads_that_submit_and_cancel(start):
    worker = start(make_engine(pool_tokens=96, max_running=3, max_waiting=1000))
    outcomes: list[tuple] = []

    def client(seed: int) -> None:
        draw = random.Random(seed)
        for n in range(12):
            prompt = "hello world "[: draw.randint(1, 12)] * draw.randint(1, 3)
            request = make_request(f"{seed}-{n}", prompt, max_tokens=draw.randint(1, 30), temperature=1.0, seed=n)
            receiver = Receiver()
            worker.submit("m", request, receiver)
            if draw.random() < 0.4:
                receiver.has_token.wait(draw.random() * 0.01)
                worker.cancel(request.request_id)
            outcomes.append((request, receiver))

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(outcomes) == 48
    for request, receiver in outcomes:
        end = finished(receiver.wait())
        expected = expected_ids(request, max_model_len=96)
        if end.finish_reason == R.CANCELLED:
            assert ids_of(receiver.events) == expected[: len(ids_of(receiver.events))]
        else:
            assert ids_of(receiver.events) == expected
