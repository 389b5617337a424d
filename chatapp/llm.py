"""The one door to the engine: everything of `inference` that the application uses goes through here, and nowhere else.

One engine per process, loaded in the background by `start`. What the engine raises becomes a ChatError here, once.
Knows no rows and no sockets: it is asked with ids, texts and token ids.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import numpy as np
from django.conf import settings
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from chatapp.errors import Busy, Draining, EngineUnavailable, Invalid, WindowFull
from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine, ProgressFn, load_engine
from inference.engine.worker import Worker
from inference.errors import EngineStopped, InferenceError, PoolTooLarge, PromptTooLong, QueueFull, TemplateError
from inference.formats.inspect import model_files, model_name, problem_of_config, problem_of_gguf
from inference.inspection import ModelFacts, inspect_model
from inference.types import (
    ChatMessage,
    EngineStats,
    Event,
    FinishedEvent,
    FinishReason,
    ModelInfo,
    ProgressEvent,
    Prompt,
    Request,
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
    "ModelFacts",
    "ModelInfo",
    "ProgressEvent",
    "Prompt",
    "RequestStats",
    "SamplingParams",
    "Stage",
    "Ticket",
    "TokenEvent",
    "inspect_model",
    "model_files",
    "model_name",
    "problem_of_config",
    "problem_of_gguf",
]


FETCH_COMMAND = "python manage.py fetch_model"


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
    """A place in the queue. Held from before the first work for a turn until its end; `with ticket:` gives it back.

    The more places a person holds already, the later the new one runs: fifty sends of one do not delay another's first.
    """

    def __init__(self, places: Counter[int], user_id: int) -> None:
        self.user_id = user_id
        self.priority = places[user_id]
        self._places: Counter[int] | None = places
        places[user_id] += 1

    def release(self) -> None:
        """Give the place back; a second call does nothing."""
        if self._places is not None:
            self._places[self.user_id] -= 1
            self._places += Counter()  # drops the entries at zero
            self._places = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@dataclass(slots=True)
class _Handle:
    """The engine of this process, and who waits for it. Changed on the event loop only.

    There are as many places as the engine takes requests: what was reserved here is not refused there.
    """

    worker: Worker | None = None
    is_draining: bool = False
    places: Counter[int] = field(default_factory=Counter)  # by user

    @property
    def num_places(self) -> int:
        return settings.RECOLLECT_MAX_RUNNING + settings.RECOLLECT_MAX_WAITING


_handle = _Handle()


# --- life -------------------------------------------------------------------------------------------------------------


def start(worker: Worker | None = None) -> None:
    """Begin loading the model of the settings, or take the given worker. Returns at once; see `status`."""
    if _handle.worker is not None and _handle.worker.state in ("loading", "ready"):
        raise RuntimeError("the engine of this process has been started already")
    _handle.worker = worker if worker is not None else Worker(load)
    _handle.is_draining = False
    _handle.places.clear()
    _handle.worker.start()


def drain() -> None:
    """Refuse new turns from now on; running ones go on."""
    _handle.is_draining = True


def shutdown(timeout_s: float = 5.0) -> bool:
    """End the worker; running requests finish as cancelled. False when it did not end in time."""
    return _handle.worker is None or _handle.worker.shutdown(timeout_s)


def load(on_progress: ProgressFn) -> LLMEngine:
    """The engine of the settings. What it raises, the worker keeps as its error."""
    config = EngineConfig(
        block_size=settings.RECOLLECT_BLOCK_SIZE,
        pool_tokens=settings.RECOLLECT_POOL_TOKENS,
        max_batch_tokens=settings.RECOLLECT_MAX_BATCH_TOKENS,
        max_running=settings.RECOLLECT_MAX_RUNNING,
        max_waiting=settings.RECOLLECT_MAX_WAITING,
        max_model_len=settings.RECOLLECT_MAX_MODEL_LEN,
        num_threads=settings.RECOLLECT_THREADS,
        kernels=settings.RECOLLECT_KERNELS,
        is_prefix_cache_enabled=settings.RECOLLECT_PREFIX_CACHE,
    )
    try:
        return load_engine(settings.RECOLLECT_MODEL, config, on_progress=on_progress)
    except PoolTooLarge as error:
        raise InferenceError(f"{error}: lower RECOLLECT_POOL_TOKENS") from error


def status() -> EngineStatus:
    """The state of the engine, cheap enough for every page view. Never raises."""
    worker = _handle.worker
    if worker is None:
        return EngineStatus(EngineState.OFF, 0.0, _("No model runs in this process."), None, None)
    state = EngineState(worker.state)
    if state is EngineState.READY and _handle.is_draining:
        state = EngineState.DRAINING
    engine = worker.engine
    failure = (
        _("The engine has failed: %(error)s. Start the server again.")
        if engine
        else _(
            "The model could not be loaded: %(error)s. Fetch the default one with the command %(command)s, or set "
            "RECOLLECT_MODEL to a model of yours; then start the server again."
        )
    )
    message = {
        EngineState.LOADING: _("The model is being loaded."),
        EngineState.FAILED: failure % {"error": worker.error.rstrip("."), "command": FETCH_COMMAND},
        EngineState.STOPPED: worker.error or _("The model has been stopped. Start the server again."),
        EngineState.DRAINING: _("The server is about to stop."),
    }.get(state, "")
    return EngineStatus(
        state, worker.progress, message, engine.info if engine else None, worker.stats() if engine else None
    )


# --- before a turn ----------------------------------------------------------------------------------------------------


def reserve(user_id: int) -> Ticket:
    """A place in the queue, in constant time. Raises Busy, EngineUnavailable or Draining.

    The last eighth of the places is for people who hold none: one person alone cannot fill the queue.
    """
    if _handle.is_draining:
        raise Draining(_("The server is about to stop and takes nothing new. Nothing has been stored; try again soon."))
    _engine()
    num_held = _handle.places.total()
    num_open = _handle.num_places - (_handle.num_places // 8 if _handle.places[user_id] else 0)
    if num_held >= num_open:
        raise Busy(
            _("Too many replies are waiting (%(num)s). Nothing has been stored; try again.") % {"num": num_held},
            num_waiting=num_held,
            max_waiting=_handle.num_places,
        )
    return Ticket(_handle.places, user_id)


def window() -> int:
    """How many tokens prompt and reply may have together. Raises EngineUnavailable."""
    return _engine().max_model_len


def model_info() -> ModelInfo:
    """The loaded model. Raises EngineUnavailable."""
    return _engine().info


def token_fingerprint() -> str:
    """What stored token ids depend on: tokenizer and template. Raises EngineUnavailable."""
    return _engine().info.tokenizer_fingerprint


def build_prompt(messages: Sequence[ChatMessage], *, today: datetime.date | None = None) -> Prompt:
    """The rendered conversation, ready for a reply. Blocking: use a thread. Raises EngineUnavailable, Invalid.

    today: what a template is told that asks for the date; the same for all prompts of a conversation.
    """
    try:
        return _engine().chat_template.build(messages, today=today)
    except TemplateError as error:  # some templates refuse what others take: a system prompt, two questions in a row
        raise Invalid(_("The model cannot be given this conversation: %(error)s.") % {"error": error}) from error


def extended(prompt: Prompt, ids: Sequence[int]) -> Prompt:
    """The same prompt with the beginning of the reply behind it: the model goes on from there."""
    return replace(prompt, ids=np.concatenate([prompt.ids, np.asarray(ids, dtype=np.int32)]))


def count_tokens(messages: Sequence[ChatMessage]) -> int:
    """How long the prompt of these messages is, exactly. Blocking. Raises EngineUnavailable."""
    return len(build_prompt(messages).ids)


def encode(text: str) -> list[int]:
    """Token ids of plain text; never a control token. Raises EngineUnavailable."""
    return _engine().tokenizer.encode(text)


def decode(ids: Sequence[int]) -> str:
    """Text of token ids. Raises EngineUnavailable."""
    return _engine().tokenizer.decode(list(ids))


def sampling_params(values: dict[str, Any]) -> SamplingParams:
    """Stored sampling values, checked. Raises Invalid naming what is unknown or out of range."""
    legal = [known.name for known in fields(SamplingParams)]
    if unknown := sorted(set(values) - set(legal)):
        raise Invalid(
            _("There is no sampling value named %(unknown)s; legal are %(legal)s.")
            % {"unknown": ", ".join(map(repr, unknown)), "legal": ", ".join(legal)}
        )
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        return SamplingParams(**plain)
    except ValueError as error:
        raise Invalid(
            _("The sampling values of this conversation cannot be used: %(error)s") % {"error": error}
        ) from error


# --- a request --------------------------------------------------------------------------------------------------------


async def generate(
    *,
    ticket: Ticket,
    request_id: str,
    prompt: Prompt,
    sampling: SamplingParams,
    is_head_public: bool,
    is_continuation: bool = False,
    tags: tuple[str, ...] = (),
) -> AsyncGenerator[Event, None]:
    """The events of one request, the last one a FinishedEvent. Closing the iterator cancels the request.

    is_head_public: the system prompt is everybody's, so its cached KV may be shared; all else is salted per person.
    is_continuation: the prompt ends inside the reply.
    Raises EngineUnavailable, Busy, WindowFull.
    """
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()

    def on_event(event: Event) -> None:  # on the worker's thread
        with suppress(RuntimeError):  # the loop has been closed: nobody listens any more
            loop.call_soon_threadsafe(events.put_nowait, event)

    engine = _engine()
    request = Request(
        request_id=request_id,
        prompt_ids=prompt.ids,
        sampling=sampling,
        salt=_salt(ticket.user_id),
        num_public_tokens=prompt.num_public_tokens if is_head_public else 0,
        tags=tags,
        priority=ticket.priority,
        is_continuation=is_continuation,
        stop_token_ids=engine.chat_template.stop_token_ids,
    )
    try:
        _worker().submit(request, on_event)
    except EngineStopped as error:
        raise EngineUnavailable(_("The engine has stopped: %(error)s.") % {"error": error}) from error
    except QueueFull as error:
        raise Busy(
            _("Too many replies are waiting (%(num)s). Try again.") % {"num": error.num_waiting},
            num_waiting=error.num_waiting,
            max_waiting=error.max_waiting,
        ) from error
    except PromptTooLong as error:
        raise WindowFull(
            _("The prompt has %(prompt)s tokens, and with a reply that is more than the model's window of %(window)s.")
            % {"prompt": f"{error.num_prompt_tokens:,}", "window": f"{error.max_tokens:,}"},
            num_prompt_tokens=error.num_prompt_tokens,
            window=error.max_tokens,
        ) from error
    try:
        while True:
            event = await events.get()
            if isinstance(event, FinishedEvent) and event.error:
                sentence = _("The engine gave this reply up: %(error)s.") % {"error": event.error.rstrip(".")}
                event = replace(event, error=sentence)
            yield event
            if isinstance(event, FinishedEvent):
                return
    finally:
        cancel(request_id)


def cancel(request_id: str) -> None:
    """Stop a request within one step; its iterator ends with a FinishedEvent. Unknown ids are ignored."""
    if _handle.worker is not None:
        _handle.worker.cancel(request_id)


def purge(conversation_id: UUID) -> None:
    """Forget the cached KV of a conversation, soon. Without an engine in this process there is nothing to forget."""
    if _handle.worker is not None and _handle.worker.engine is not None:
        _handle.worker.purge(str(conversation_id))


def _worker() -> Worker:
    if _handle.worker is None or _handle.worker.state != "ready":
        raise EngineUnavailable(status().message)
    return _handle.worker


def _engine() -> LLMEngine:
    engine = _worker().engine
    assert engine is not None, "a ready worker has an engine"
    return engine


def _salt(user_id: int) -> bytes:
    """Keeps cached KV of one person from answering, or timing, another's guesses; needs the installation's key."""
    return salted_hmac("chatapp.llm.salt", str(user_id), algorithm="sha256").digest()
