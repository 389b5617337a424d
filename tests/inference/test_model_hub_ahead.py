"""What nobody waits for, among several models: it holds up no turn of any, keeps no model in memory, drives none out;
and models that are loaded later have heard the hints.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from inference.engine.worker import Worker
from inference.kvcache.block_pool import Retention
from inference.types import FinishReason, TokenEvent
from tests.inference.fake_models import MODEL_BYTES, GatedModel, Receiver, engine_of, load_now, make_worker
from tests.inference.fakes import MarkerModel, finished, make_engine, make_request
from tests.patience import PATIENCE_S

R = FinishReason


@pytest.fixture
def start() -> Iterator:
    workers: list[Worker] = []

    def start_worker(models, **options) -> Worker:
        worker = make_worker(models, **options)
        workers.append(worker)
        worker.start()
        return worker

    yield start_worker
    for worker in workers:
        assert worker.shutdown(PATIENCE_S)


def ask(worker: Worker, name: str, request_id: str, prompt="hello", **fields) -> Receiver:
    receiver = Receiver()
    worker.submit(name, make_request(request_id, prompt, **fields), receiver)
    return receiver


def ahead(worker: Worker, name: str, request_id: str, prompt="x" * 60, **fields) -> Receiver:
    return ask(worker, name, request_id, prompt, is_prefill_only=True, **fields)


def state(worker: Worker, name: str) -> str:
    return worker.model(name).state


class Noting(MarkerModel):
    """Notes its passes, and whom each is for; the first one waits until the gate is open."""

    def __init__(self, name: str, passes: list[str]) -> None:
        super().__init__()
        self.name, self.passes = name, passes
        self.gate, self.has_entered = threading.Event(), threading.Event()

    def forward(self, batch, kv):
        self.passes.append(self.name)
        self.has_entered.set()
        assert self.gate.wait(PATIENCE_S)
        return super().forward(batch, kv)


def test_a_turn_of_another_model_has_every_step_to_itself(start):
    passes: list[str] = []
    models = {name: Noting(name, passes) for name in ("idle", "asked")}
    worker = start({name: make_engine(model) for name, model in models.items()})
    for name in models:
        load_now(worker, name)
    models["asked"].gate.set()
    warmed = ahead(worker, "idle", "w")  # 60 tokens, 16 a step
    assert models["idle"].has_entered.wait(PATIENCE_S)
    turn = ask(worker, "asked", "t", max_tokens=20)
    models["idle"].gate.set()
    turn.wait()
    assert finished(warmed.wait()).finish_reason == R.PREFILLED
    assert passes[:22] == ["idle", *["asked"] * 20, "idle"]


def test_a_turn_of_the_same_model_waits_for_one_step_at_most(start):
    passes: list[str] = []
    model = Noting("m", passes)
    worker = start({"m": make_engine(model)})
    load_now(worker, "m")
    warmed = ahead(worker, "m", "w")
    assert model.has_entered.wait(PATIENCE_S)
    seen: list[int] = []

    class Turn(Receiver):
        def __call__(self, event) -> None:
            if isinstance(event, TokenEvent):
                seen.append(len(passes))
            super().__call__(event)

    turn = Turn()
    worker.submit("m", make_request("t", "hello", max_tokens=5), turn)
    model.gate.set()
    turn.wait()
    assert seen == [2, 3, 4, 5, 6]  # the step that was under way, then its own only
    assert finished(warmed.wait()).finish_reason == R.PREFILLED


def test_a_model_that_only_works_ahead_leaves_at_once(start):
    model = GatedModel()
    worker = start({"a": make_engine(model), "b": make_engine()}, max_bytes=MODEL_BYTES)
    load_now(worker, "a")
    warmed = ahead(worker, "a", "w")
    assert model.has_entered.wait(PATIENCE_S)
    turn = ask(worker, "b", "t")
    model.gate.set()
    assert finished(turn.wait()).finish_reason == R.LENGTH
    assert finished(warmed.wait()).finish_reason == R.CANCELLED
    assert (state(worker, "a"), state(worker, "b")) == ("unloaded", "ready")


def test_work_ahead_does_not_keep_a_model_from_being_unloaded(start):
    model = GatedModel()
    worker = start({"a": make_engine(model)})
    load_now(worker, "a")
    warmed = ahead(worker, "a", "w")
    assert model.has_entered.wait(PATIENCE_S)
    threading.Timer(0.05, model.gate.set).start()  # the pass must end before anybody is heard
    worker.unload("a")
    assert finished(warmed.wait()).finish_reason == R.CANCELLED
    assert state(worker, "a") == "unloaded"


def test_a_model_is_loaded_ahead_only_where_there_is_room(start):
    worker = start({name: make_engine() for name in "abc"}, max_bytes=2 * MODEL_BYTES)
    load_now(worker, "a")
    assert worker.load_if_free("a")
    assert worker.load_if_free("b")
    load_now(worker, "b")
    assert not worker.load_if_free("c")
    assert (state(worker, "a"), state(worker, "b"), state(worker, "c")) == ("ready", "ready", "unloaded")


def test_two_that_would_fit_alone_are_not_both_promised_the_room(start):
    gate = threading.Event()

    def load(on_progress, run_kernels):
        assert gate.wait(PATIENCE_S)
        return make_engine()

    worker = start({"a": load, "b": load, "c": make_engine()}, max_bytes=2 * MODEL_BYTES)
    answers = [worker.load_if_free(name) for name in "abc"]
    gate.set()
    assert answers == [True, True, False]


def test_work_ahead_waits_for_a_model_that_is_being_loaded(start):
    gate = threading.Event()

    def load(on_progress, run_kernels):
        assert gate.wait(PATIENCE_S)
        return make_engine()

    worker = start({"a": load})
    assert worker.load_if_free("a")
    while state(worker, "a") != "loading":
        worker._call(lambda: None)
    warmed = ahead(worker, "a", "w")
    dropped = ahead(worker, "a", "d")
    worker.cancel("d")
    assert finished(dropped.wait()).finish_reason == R.CANCELLED
    gate.set()
    assert finished(warmed.wait()).finish_reason == R.PREFILLED


def retention(worker: Worker, name: str, tag: str) -> Retention:
    engine = engine_of(worker, name)
    assert engine is not None
    found = worker._call(
        lambda: [engine.cache.pool.retention[i] for i, t in enumerate(engine.cache.blocks.tags) if tag in t]
    )
    assert found
    assert len(set(found)) == 1
    return Retention(found[0])


def test_a_model_that_is_loaded_later_has_heard_the_hints(start):
    worker = start({"m": make_engine()})
    worker.protect("open", 1000)
    worker.archive("away")
    worker.protect("closed", 1000)
    worker.protect("closed", 0)
    worker.archive("back")
    load_now(worker, "m")
    for number, tag in enumerate(("open", "closed", "back")):  # a request takes its tag out of the archive
        ask(worker, "m", tag, f"{number} hello world", tags=(tag,)).wait()
    assert [retention(worker, "m", tag) for tag in ("open", "closed", "back")] == [
        Retention.PROTECTED,
        Retention.NORMAL,
        Retention.NORMAL,
    ]
    engine = engine_of(worker, "m")
    assert engine is not None
    assert engine.cache._hints.retention_of({"away"}) == Retention.LOW


def test_a_request_takes_its_tag_out_of_the_archive_of_all_models(start):
    worker = start({"a": make_engine(), "b": make_engine()})
    worker.archive("talk")
    ask(worker, "a", "r", tags=("talk",)).wait()
    load_now(worker, "b")
    engine = engine_of(worker, "b")
    assert engine is not None
    assert engine.cache._hints.retention_of({"talk"}) == Retention.NORMAL
