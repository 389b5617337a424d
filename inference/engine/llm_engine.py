"""LLMEngine: requests in, events out. Synchronous: step() schedules, runs one forward pass and postprocesses.

Knows no thread and no clock of its own; everything happens inside the calls of one owner (see worker.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from inference.config import EngineConfig
from inference.types import EngineStats, Event, ModelInfo, Request

ProgressFn = Callable[[float], None]  # 0 to 1


class LLMEngine:
    """One model, one block pool, many requests."""

    config: EngineConfig
    info: ModelInfo
    max_model_len: int  # the window: prompt and reply together, in tokens

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises PromptTooLong, QueueFull, ValueError (a duplicate id, an id outside the vocabulary)."""
        raise NotImplementedError

    def cancel(self, request_id: str) -> None:
        """End a request with CANCELLED at the next step(); an unknown or finished id is ignored."""
        raise NotImplementedError

    def step(self) -> list[Event]:
        """Run one forward pass over all live requests and return what happened."""
        raise NotImplementedError

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to do or to report."""
        raise NotImplementedError

    def stats(self) -> EngineStats:
        """The snapshot made after the last change. Safe from any thread."""
        raise NotImplementedError

    def purge(self, tag: str) -> int:
        """Forget the cached KV that only requests with this tag have used; returns the number of blocks."""
        raise NotImplementedError

    def check_integrity(self) -> None:
        """Assert that blocks, references, keys and live requests agree."""
        raise NotImplementedError


def load_engine(path: Path | str, config: EngineConfig, *, on_progress: ProgressFn | None = None) -> LLMEngine:
    """Open the model file, load the model and build an engine around it. Raises ModelFileError, TemplateError, ValueError."""
    raise NotImplementedError
