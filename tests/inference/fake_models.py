"""Workers whose models come at once, or fail, or when a test lets them; and who receives their events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.worker import Worker
from inference.types import FinishedEvent, ProgressEvent, Stage, TokenEvent
from tests.inference.fakes import MarkerModel
from tests.patience import PATIENCE_S

MODEL_BYTES = 1000  # what a model takes unless a test says otherwise

Loading = Callable[..., LLMEngine]


def make_worker(
    models: dict[str, LLMEngine | Loading],
    *,
    max_bytes: int = 10 * MODEL_BYTES,
    sizes: dict[str, int] | None = None,
    config: EngineConfig | None = None,
) -> Worker:
    """Name -> the engine that loading gives, or a function that loads. Engines state the size that was estimated."""
    sizes = sizes or {}

    def open_model(name: str) -> Any:
        engine = models[name]
        known = engine.config if isinstance(engine, LLMEngine) else config or EngineConfig()
        return SimpleNamespace(name=name, config=known, memory_bytes=sizes.get(name, MODEL_BYTES), is_current=True)

    def load(opened: Any, *, on_progress: Any, run_kernels: Any) -> LLMEngine:
        found = models[opened.name]
        engine = found if isinstance(found, LLMEngine) else found(on_progress=on_progress, run_kernels=run_kernels)
        engine.info = sized_info(opened.name, opened.memory_bytes)
        return engine

    return Worker(open_model, max_bytes=max_bytes, load=load)


def sized_info(name: str, num_bytes: int) -> Any:
    return SimpleNamespace(name=name, memory_bytes=num_bytes)


def load_now(worker: Worker, name: str) -> None:
    """Load a model that there is room for, and return when it is ready."""
    worker.load(name)
    settle(worker)
    assert worker.model(name).state == "ready"


def settle(worker: Worker) -> None:
    """Return when the load under way has ended and the worker has heard of it."""
    worker._loader.join(PATIENCE_S)
    worker._call(lambda: None)


def engine_of(worker: Worker, name: str) -> LLMEngine | None:
    return worker._hub.slot(name).engine


class Receiver:
    """Collects the events of one request; wait() returns them after the last."""

    def __init__(self) -> None:
        self.events: list = []
        self.has_token = threading.Event()
        self.is_loading = threading.Event()  # and knows how far
        self._is_finished = threading.Event()

    def __call__(self, event) -> None:
        self.events.append(event)
        if isinstance(event, TokenEvent):
            self.has_token.set()
        if isinstance(event, ProgressEvent) and event.stage == Stage.LOADING and event.num_done:
            self.is_loading.set()
        if isinstance(event, FinishedEvent):
            self._is_finished.set()

    def wait(self) -> list:
        assert self._is_finished.wait(PATIENCE_S), "no FinishedEvent came"
        return self.events


class GatedModel(MarkerModel):
    """Passes wait until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.has_entered = threading.Event()

    def forward(self, batch, kv):
        self.has_entered.set()
        assert self.gate.wait(PATIENCE_S)
        return super().forward(batch, kv)
