"""The one door to the engine: everything of `inference` that the application uses goes through here, and nowhere else.

One engine per process, loaded in the background by `start`. What the engine raises becomes a ChatError here, once.
Knows no rows and no sockets: it is asked with ids, texts and token ids.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self
from uuid import UUID

from inference.engine.worker import Worker
from inference.types import (
    ChatMessage,
    EngineStats,
    Event,
    FinishedEvent,
    FinishReason,
    ModelInfo,
    ProgressEvent,
    Prompt,
    RequestStats,
    SamplingParams,
    Stage,
    TokenEvent,
)

__all__ = [
    "ChatMessage",
    "EngineState",
    "EngineStats",
    "EngineStatus",
    "Event",
    "FinishReason",
    "FinishedEvent",
    "ModelInfo",
    "ProgressEvent",
    "Prompt",
    "RequestStats",
    "SamplingParams",
    "Stage",
    "Ticket",
    "TokenEvent",
]


class EngineState(StrEnum):
    """OFF: not started in this process (a management command, a test). DRAINING: about to stop, takes no new turns."""

    OFF = "off"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What a page or a health check is told. `message` is a sentence for a person; "" when ready."""

    state: EngineState
    progress: float  # of loading, 0 to 1
    message: str
    model: ModelInfo | None
    stats: EngineStats | None


class Ticket:
    """A place in the queue. Held from before the first work for a turn until its end; `with ticket:` gives it back."""

    user_id: int
    priority: int

    def release(self) -> None:
        """Give the place back; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def start(worker: Worker | None = None) -> None:
    """Begin loading the model of the settings, or take the given worker. Returns at once; `status` tells how it goes."""
    raise NotImplementedError


def drain() -> None:
    """Refuse new turns from now on; running ones go on."""
    raise NotImplementedError


def shutdown(timeout_s: float = 5.0) -> None:
    """End the worker; running requests finish as cancelled."""
    raise NotImplementedError


def status() -> EngineStatus:
    """The state of the engine, cheap enough for every page view. Never raises."""
    raise NotImplementedError


def reserve(user_id: int) -> Ticket:
    """A place in the queue, in constant time. Raises Busy, EngineUnavailable or Draining."""
    raise NotImplementedError


def window() -> int:
    """How many tokens prompt and reply may have together. Raises EngineUnavailable."""
    raise NotImplementedError


def token_fingerprint() -> str:
    """What stored token ids depend on: tokenizer and template. Raises EngineUnavailable."""
    raise NotImplementedError


def build_prompt(messages: Sequence[ChatMessage]) -> Prompt:
    """The rendered conversation, ready for a reply. Blocking: call it from a thread. Raises EngineUnavailable."""
    raise NotImplementedError


def count_tokens(messages: Sequence[ChatMessage]) -> int:
    """How long the prompt of these messages is, exactly. Blocking. Raises EngineUnavailable."""
    raise NotImplementedError


def encode(text: str) -> list[int]:
    """Token ids of plain text; never a control token. Raises EngineUnavailable."""
    raise NotImplementedError


def decode(ids: Sequence[int]) -> str:
    """Text of token ids. Raises EngineUnavailable."""
    raise NotImplementedError


def generate(
    *, ticket: Ticket, request_id: str, prompt: Prompt, sampling: SamplingParams, tags: tuple[str, ...] = ()
) -> AsyncGenerator[Event, None]:
    """The events of one request, the last one a FinishedEvent. Closing the iterator cancels the request."""
    raise NotImplementedError


def cancel(request_id: str) -> None:
    """Stop a request within one step; its iterator ends with a FinishedEvent. Unknown ids are ignored."""
    raise NotImplementedError


def purge(conversation_id: UUID) -> None:
    """Forget the cached KV of a conversation. Without an engine in this process there is nothing to forget."""
    raise NotImplementedError
