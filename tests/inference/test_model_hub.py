"""Several models behind one worker: who is loaded, who leaves, who waits; nobody pays for another's failure."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.model_hub import Slot, choose_leavers
from inference.engine.pace import FIRST_TOKENS, PrefillPace
from inference.engine.worker import Worker
from inference.errors import InferenceError, ModelBusy, ModelFileError, ModelTooLarge
from inference.types import FinishReason, ProgressEvent, Stage
from tests.inference.fake_models import (
    MODEL_BYTES,
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
    """Start workers and stop them afterwards."""
    workers: list[Worker] = []

    def start_worker(models, **options) -> Worker:
        worker = make_worker(models, **options)
        workers.append(worker)
        worker.start()
        return worker

    yield start_worker
    for worker in workers:
        assert worker.shutdown(PATIENCE_S)
        for slot in worker._hub.slots.values():
            if slot.engine is not None:
                slot.engine.check_integrity()


def states(worker: Worker) -> dict[str, str]:
    return {name: slot.state for name, slot in worker._hub.slots.items()}


def ask(worker: Worker, name: str, request_id: str, **fields) -> Receiver:
    receiver = Receiver()
    worker.submit(name, make_request(request_id, "hello", **fields), receiver)
    return receiver


def test_each_request_is_answered_by_its_model(start):
    worker = start({"a": make_engine(), "b": make_engine()})
    receivers = {name: ask(worker, name, name) for name in "ab"}
    for receiver in receivers.values():
        assert ids_of(receiver.wait()) == expected_ids(make_request("any", "hello"))
    assert states(worker) == {"a": "ready", "b": "ready"}
    assert worker.used_bytes == 2 * MODEL_BYTES
    assert [worker.stats(name).num_requests for name in "ab"] == [1, 1]


def test_the_idle_model_that_was_used_longest_ago_leaves(start):
    worker = start({name: make_engine() for name in "abc"}, max_bytes=2 * MODEL_BYTES)
    for name in ("a", "b", "a"):
        ask(worker, name, name).wait()
    ask(worker, "c", "c").wait()
    assert states(worker) == {"a": "ready", "b": "unloaded", "c": "ready"}
    assert engine_of(worker, "b") is None
    assert worker.used_bytes == 2 * MODEL_BYTES


def test_what_a_model_remembers_is_there_after_a_visit_to_another(start):
    worker = start({"a": make_engine(), "b": make_engine()})
    request = make_request("first", "hello world")
    for name, new in (("a", request), ("b", make_request("other", "hello world"))):
        receiver = Receiver()
        worker.submit(name, new, receiver)
        receiver.wait()
    assert worker.count_cached("a", request) == len(request.prompt_ids)
    assert worker.count_cached("c", request) == 0
    again = Receiver()
    worker.submit("a", make_request("again", "hello world"), again)
    assert finished(again.wait()).stats.num_reused_ram == len(request.prompt_ids)


def test_a_model_that_fits_not_even_alone_is_refused_with_numbers(start):
    worker = start({"a": make_engine(), "big": make_engine()}, sizes={"big": 99_000})
    for refused in (worker.open, worker.load, lambda name: ask(worker, name, "r")):
        with pytest.raises(ModelTooLarge) as caught:
            refused("big")
        assert (caught.value.num_bytes, caught.value.max_bytes) == (99_000, 10 * MODEL_BYTES)
    ask(worker, "a", "a").wait()


def test_a_busy_model_answers_what_it_has_and_then_makes_room(start):
    model = GatedModel()
    worker = start({"a": make_engine(model), "b": make_engine()}, max_bytes=MODEL_BYTES)
    first = ask(worker, "a", "first", max_tokens=6)
    assert model.has_entered.wait(PATIENCE_S)
    waiting = ask(worker, "b", "waiting")
    late = ask(worker, "a", "late")  # comes behind: else whoever waits for room could wait for ever
    model.gate.set()
    for receiver in (first, waiting, late):
        assert finished(receiver.wait()).finish_reason == R.LENGTH
    assert waiting.events[0] == ProgressEvent("waiting", Stage.LOADING)
    assert late.events[0] == ProgressEvent("late", Stage.LOADING)
    assert states(worker) == {"a": "ready", "b": "unloaded"}


def test_who_no_longer_waits_for_room_drives_nobody_out(start):
    model = GatedModel()
    worker = start({"a": make_engine(model), "b": make_engine()}, max_bytes=MODEL_BYTES)
    first = ask(worker, "a", "first", max_tokens=6)
    assert model.has_entered.wait(PATIENCE_S)
    waiting, late = ask(worker, "b", "waiting"), ask(worker, "a", "late")
    worker.cancel("waiting")
    model.gate.set()
    assert finished(waiting.wait()).finish_reason == R.CANCELLED
    assert [finished(receiver.wait()).finish_reason for receiver in (first, late)] == [R.LENGTH] * 2
    assert states(worker) == {"a": "ready", "b": "unloaded"}


def test_replies_go_on_while_another_model_is_loaded(start):
    gate = threading.Event()

    def load(on_progress, run_kernels):
        on_progress(0.5)
        assert gate.wait(PATIENCE_S)
        run_kernels(lambda: names.append(threading.current_thread().name))
        return make_engine()

    names: list[str] = []
    worker = start({"a": make_engine(), "b": load})
    load_now(worker, "a")
    slow = ask(worker, "b", "slow")
    assert slow.is_loading.wait(PATIENCE_S)
    assert finished(ask(worker, "a", "quick").wait()).finish_reason == R.LENGTH
    gate.set()
    assert finished(slow.wait()).finish_reason == R.LENGTH
    assert names == ["engine"]  # whoever loads does not use the kernels beside the one who computes


def test_a_failed_load_ends_those_who_waited_and_nobody_else(start):
    model = GatedModel()

    def load(on_progress, run_kernels):
        raise ModelFileError("b.gguf", "is truncated")

    worker = start({"a": make_engine(model), "b": load})
    running = ask(worker, "a", "running", max_tokens=6)
    assert model.has_entered.wait(PATIENCE_S)
    failed = [ask(worker, "b", str(n)) for n in range(3)]
    model.gate.set()
    for receiver in failed:
        end = finished(receiver.wait())
        assert (end.finish_reason, end.error) == (R.ERROR, "b.gguf: is truncated")
    assert finished(running.wait()).finish_reason == R.LENGTH
    assert (worker.model("b").state, worker.model("b").error) == ("failed", "b.gguf: is truncated")
    assert worker.used_bytes == MODEL_BYTES


def test_a_broken_engine_goes_and_the_others_stay(start):
    model = MarkerModel()
    broken = make_engine(model)
    worker = start({"a": broken, "b": make_engine()})
    load_now(worker, "a")
    model.error = AssertionError("our own mistake")
    break_books(broken)
    assert finished(ask(worker, "a", "r").wait()).finish_reason == R.ERROR
    settle(worker)
    assert worker.model("a").state == "failed"
    assert finished(ask(worker, "b", "s").wait()).finish_reason == R.LENGTH


def test_a_model_that_cannot_be_opened_says_so_at_once(start):
    def cannot(name):
        raise ModelFileError("x.gguf", "there is no file x.gguf")

    worker = start({})
    worker._shelf._open = cannot
    with pytest.raises(InferenceError, match="no file"):
        ask(worker, "x", "r")
    worker.load_soon("x")  # as at the start of a server: the state says it
    for thread in threading.enumerate():
        if thread.name == "model opener":
            thread.join(PATIENCE_S)
    worker._call(lambda: None)
    assert (worker.model("x").state, worker.model("x").error) == ("failed", "x.gguf: there is no file x.gguf")


def test_unloading_gives_room_and_refuses_while_replies_need_it(start):
    model = GatedModel()
    worker = start({"a": make_engine(model)})
    receiver = ask(worker, "a", "r", max_tokens=6)
    assert model.has_entered.wait(PATIENCE_S)
    threading.Timer(0.05, model.gate.set).start()  # the pass must end before anybody is heard
    with pytest.raises(ModelBusy) as caught:
        worker.unload("a")
    assert caught.value.num_requests == 1
    receiver.wait()
    worker._call(lambda: None)
    worker.unload("a")
    assert (worker.model("a").state, worker.used_bytes) == ("unloaded", 0)
    worker.unload("a")  # a second time does nothing
    assert finished(ask(worker, "a", "s").wait()).finish_reason == R.LENGTH  # it comes back


def test_steps_of_models_with_work_alternate(start):
    turns: list[str] = []

    class Noting(GatedModel):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def forward(self, batch, kv):
            turns.append(self.name)
            return super().forward(batch, kv)

    models = {name: Noting(name) for name in "abc"}
    worker = start({name: make_engine(model) for name, model in models.items()})
    for name in models:
        load_now(worker, name)
    first = ask(worker, "a", "a0", max_tokens=30)
    assert models["a"].has_entered.wait(PATIENCE_S)
    others = [ask(worker, name[0], name, max_tokens=30) for name in ("a1", "b0", "c0")]
    for model in models.values():
        model.gate.set()
    for receiver in (first, *others):
        receiver.wait()
    together = turns[1:61]  # more requests do not give a model more steps
    assert [together.count(name) for name in "abc"] == [20, 20, 20]
    assert all(set(together[i : i + 3]) == {"a", "b", "c"} for i in range(0, 60, 3))


def test_a_long_prompt_is_read_in_short_steps_while_another_model_has_work(start):
    sizes: list[tuple[int, bool]] = []  # tokens of each step of "a", and whether "b" had work

    class Slow(GatedModel):
        """Each pass takes as many hundredths of a second of the engine's clock as it has tokens."""

        def forward(self, batch, kv):
            is_alone = worker.model("b").num_requests == 0
            logits = super().forward(batch, kv)
            sizes.append((len(batch.token_ids), not is_alone))
            now[0] += len(batch.token_ids) / 100
            return logits

    now = [0.0]
    model, other = Slow(), GatedModel()
    model.config = replace(model.config, max_position_embeddings=4096)
    settings = {"pool_tokens": 4096, "max_batch_tokens": 512}
    reader = make_engine(model, **settings)
    reader.clock = lambda: now[0]
    worker = start({"a": reader, "b": make_engine(other)})
    for name in "ab":
        load_now(worker, name)
    model.gate.set()
    ask_long = make_request("long", "x" * 1500, max_tokens=1)
    alone = Receiver()
    worker.submit("a", ask_long, alone)
    alone.wait()
    assert FIRST_TOKENS // 2 < sizes[0][0] <= FIRST_TOKENS
    sizes.clear()
    reader.clear_cache()
    reader._pace = reader._scheduler._pace = PrefillPace(512)
    writing = ask(worker, "b", "w", max_tokens=300)
    assert other.has_entered.wait(PATIENCE_S)
    beside = Receiver()
    worker.submit("a", make_request("again", "y" * 1500, max_tokens=1), beside)
    other.gate.set()
    beside.wait()
    writing.wait()
    assert 0 < sizes[0][0] <= FIRST_TOKENS // 2
    assert sizes[0][1]


def test_purging_reaches_every_model(start):
    worker = start({"a": make_engine(), "b": make_engine()})
    for name in "ab":
        ask(worker, name, name, tags=("talk",)).wait()
    request = make_request("again", "hello")
    assert all(worker.count_cached(name, request) for name in "ab")
    worker.purge("talk")
    assert not any(worker.count_cached(name, request) for name in "ab")


def test_shutdown_ends_those_who_wait_for_a_model(start):
    model = GatedModel()
    worker = start({"a": make_engine(model), "b": make_engine()}, max_bytes=MODEL_BYTES)
    running = ask(worker, "a", "r", max_tokens=100)
    assert model.has_entered.wait(PATIENCE_S)
    waiting = ask(worker, "b", "w")
    assert not worker.shutdown(0)
    model.gate.set()
    assert worker.shutdown(PATIENCE_S)
    assert [finished(receiver.wait()).finish_reason for receiver in (running, waiting)] == [R.CANCELLED] * 2


@given(
    sizes=st.lists(st.integers(1, 50), max_size=6),
    missing=st.integers(-5, 320),
)
def test_leavers_are_enough_and_none_is_in_vain(sizes: list[int], missing: int) -> None:
    slots = [Slot(str(n), memory_bytes=size, used_at=float(n)) for n, size in enumerate(sizes)]
    leavers = choose_leavers(slots, missing)
    freed = sum(slot.memory_bytes for slot in leavers)
    assert freed >= min(missing, sum(sizes))
    if missing <= sum(sizes):
        assert all(freed - slot.memory_bytes < missing for slot in leavers)
    if missing <= 0:
        assert not leavers
