"""Worker: the one thread that owns the engine. Requests go in from any thread, events come out on the worker's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal

from inference.engine.llm_engine import LLMEngine, ProgressFn
from inference.types import EngineStats, Event, Request

State = Literal["loading", "ready", "failed", "stopped"]


class Worker:
    """Loads an engine in the background and runs it until shutdown."""

    state: State
    progress: float  # of loading, 0 to 1
    error: str  # a sentence, "" while all is well
    engine: LLMEngine | None  # None until ready; only its read-only attributes may be used from other threads

    def __init__(self, load: Callable[[ProgressFn], LLMEngine]) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Start the thread; returns at once, in state "loading"."""
        raise NotImplementedError

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Hand a request over. Raises EngineStopped (loading, failed, stopped), PromptTooLong, QueueFull, ValueError.

        on_event is called on the worker thread, in order, FinishedEvent exactly once and last. It must not block.
        """
        raise NotImplementedError

    def cancel(self, request_id: str) -> None:
        """Ask for the end of a request: its FinishedEvent follows within one step. Unknown ids are ignored."""
        raise NotImplementedError

    def purge(self, tag: str) -> Future[int]:
        """Forget cached KV between two steps; the future holds the number of blocks, or EngineStopped."""
        raise NotImplementedError

    def stats(self) -> EngineStats:
        """The engine's latest snapshot; zeros before it is ready."""
        raise NotImplementedError

    def shutdown(self, timeout: float = 10.0) -> bool:
        """End every request with CANCELLED and stop the thread; True when it ended within timeout seconds."""
        raise NotImplementedError
