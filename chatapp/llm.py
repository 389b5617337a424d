"""The one door to the engine: everything of `inference` that the application uses goes through here, and nowhere else.

One worker per process runs the engines of all models; each is loaded in the background when it is first asked for.
`model` is a name of the catalogue, "" the default. What the engine raises becomes a ChatError here, once. Knows no rows
and no sockets: it is asked with ids, texts and token ids.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from django.conf import settings
from django.template.defaultfilters import filesizeformat
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from chatapp.errors import Busy, Conflict, Draining, EngineUnavailable, Invalid, WindowFull
from chatapp.places import Ticket
from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine, ProgressFn, load_opened
from inference.engine.model_hub import ModelState
from inference.engine.opened_model import OpenedModel, open_model
from inference.engine.worker import Worker
from inference.errors import (
    EngineStopped,
    InferenceError,
    ModelBusy,
    ModelTooLarge,
    PoolTooLarge,
    PromptTooLong,
    QueueFull,
    TemplateError,
)
from inference.formats.inspect import model_files, model_name, problem_of_config, problem_of_gguf
from inference.inspection import ModelFacts, inspect_model
from inference.model.base import RunKernels
from inference.tokenizer.thinking import PAIRS as THINKING_PAIRS
from inference.tokenizer.thinking import ThinkingReader, ThinkingSplit
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
    "THINKING_PAIRS",
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
    "ThinkingReader",
    "ThinkingSplit",
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
    """OFF: not started in this process (a management command, a test). UNLOADED: comes with the next message.
    DRAINING: about to stop, takes no new turns."""

    OFF = "off"
    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What a page or a health check is told of a model. `message` is a sentence for a person; "" when all is well."""

    state: EngineState
    progress: float  # of loading, 0 to 1
    message: str
    model: ModelInfo | None
    stats: EngineStats | None
    memory_bytes: int = 0  # that the model takes
    num_requests: int = 0  # running, or waiting for it


@dataclass(slots=True)
class _Handle:
    """The worker of this process, and who waits for it. Changed on the event loop only.

    There are as many places as the worker takes requests: what was reserved here is not refused there.
    """

    worker: Worker | None = None
    default_model: str = ""
    is_draining: bool = False
    places: Counter[int] = field(default_factory=Counter)  # by user

    @property
    def num_places(self) -> int:
        return settings.RECOLLECT_MAX_RUNNING + settings.RECOLLECT_MAX_WAITING


_handle = _Handle()


# --- life -------------------------------------------------------------------------------------------------------------


def new_worker(locate: Callable[[str], Path], kind: type[Worker] | None = None) -> Worker:
    """A worker as the settings say. locate: name of a model -> its path; may block and raise ChatError."""
    return (kind or Worker)(lambda name: _open(locate(name)), max_bytes=settings.RECOLLECT_MODEL_MEMORY, load=_load)


def start(worker: Worker, *, default_model: str = "") -> None:
    """Start the worker and begin to load the default model. Returns at once; see `status`."""
    if _handle.worker is not None and _handle.worker.state == "running":
        raise RuntimeError("the engine of this process has been started already")
    _handle.worker = worker
    _handle.default_model = default_model
    _handle.is_draining = False
    _handle.places.clear()
    worker.start()
    worker.load_soon(default_model)


def drain() -> None:
    """Refuse new turns from now on; running ones go on."""
    _handle.is_draining = True


def shutdown(timeout_s: float = 5.0) -> bool:
    """End the worker; running requests finish as cancelled. False when it did not end in time."""
    return _handle.worker is None or _handle.worker.shutdown(timeout_s)


def _open(path: Path) -> OpenedModel:
    """The model without its weights. RECOLLECT_MAX_MODEL_LEN is a limit here: not every model has so long a window."""
    config = EngineConfig(
        block_size=settings.RECOLLECT_BLOCK_SIZE,
        pool_tokens=settings.RECOLLECT_POOL_TOKENS,
        max_batch_tokens=settings.RECOLLECT_MAX_BATCH_TOKENS,
        max_running=settings.RECOLLECT_MAX_RUNNING,
        max_waiting=settings.RECOLLECT_MAX_WAITING,
        num_threads=settings.RECOLLECT_THREADS,
        kernels=settings.RECOLLECT_KERNELS,
        kernel_cache=str(settings.RECOLLECT_DATA / "kernels"),
        is_prefix_cache_enabled=settings.RECOLLECT_PREFIX_CACHE,
    )
    opened = open_model(path, config)
    limit: int = settings.RECOLLECT_MAX_MODEL_LEN
    return opened.limited(limit) if 0 < limit < opened.max_model_len else opened


def _load(opened: OpenedModel, /, *, on_progress: ProgressFn, run_kernels: RunKernels) -> LLMEngine:
    try:
        return load_opened(opened, on_progress=on_progress, run_kernels=run_kernels)
    except PoolTooLarge as error:
        raise InferenceError(f"{error}: lower RECOLLECT_POOL_TOKENS") from error


def default_model() -> str:
    """The name of the model that answers where no other was chosen; "" before `start`."""
    return _handle.default_model


def status(model: str = "") -> EngineStatus:
    """The state of a model, cheap enough for every page view. Never raises."""
    worker = _handle.worker
    if worker is None:
        return EngineStatus(EngineState.OFF, 0.0, _("No model runs in this process."), None, None)
    name = model or _handle.default_model
    found = worker.model(name)
    if worker.state == "failed":
        state, message = EngineState.FAILED, _("The engine has failed: %(error)s. Start the server again.")
        message %= {"error": worker.error.rstrip(".")}
    elif worker.state == "stopped":
        state, message = EngineState.STOPPED, _("The model has been stopped. Start the server again.")
    elif _handle.is_draining:
        state, message = EngineState.DRAINING, _("The server is about to stop.")
    else:
        state = _STATES[found.state]
        message = {
            EngineState.LOADING: _("The model is being loaded."),
            EngineState.FAILED: _not_loaded(name, found.error),
            EngineState.UNLOADED: _("The model is not loaded. The next message loads it."),
        }.get(state, "")
    stats = worker.stats(name) if found.state == "ready" else None
    return EngineStatus(state, found.progress, message, found.info, stats, found.memory_bytes, found.num_requests)


_STATES: dict[ModelState, EngineState] = {
    "unloaded": EngineState.UNLOADED,
    "waiting": EngineState.LOADING,
    "loading": EngineState.LOADING,
    "ready": EngineState.READY,
    "failed": EngineState.FAILED,
}


def _not_loaded(name: str, error: str) -> str:
    sentence = _("The model %(name)s could not be loaded: %(error)s.")
    if name == _handle.default_model:
        sentence = _(
            "The model could not be loaded: %(error)s. Fetch the default one with the command %(command)s, or set "
            "RECOLLECT_MODEL to a model of yours."
        )
    return sentence % {"name": name, "error": error.rstrip("."), "command": FETCH_COMMAND}


def takes_turns() -> bool:
    """Whether a send to the default model would be answered: it has been there, and comes back when it is asked for."""
    worker = _handle.worker
    if worker is None or worker.state != "running" or _handle.is_draining:
        return False
    found = worker.model(_handle.default_model)
    return found.info is not None and found.state != "failed"


def memory() -> tuple[int, int]:
    """Bytes that the loaded models take, and that they may take. (0, 0) without a worker."""
    worker = _handle.worker
    return (worker.used_bytes, worker.max_bytes) if worker is not None else (0, 0)


def load(model: str) -> None:
    """Have a model loaded, when there is room. Blocking while it is opened. Raises EngineUnavailable."""
    _opened(model)
    with _stopped():
        _worker().load(_name(model))


def unload(model: str) -> None:
    """Give a model's memory back. Raises Conflict while replies need it, EngineUnavailable."""
    try:
        with _stopped():
            _worker().unload(_name(model))
    except ModelBusy as error:
        raise Conflict(
            _("%(name)s cannot be unloaded: %(num)s replies need it.")
            % {"name": error.name, "num": error.num_requests},
            num_requests=error.num_requests,
        ) from error


# --- before a turn ----------------------------------------------------------------------------------------------------


def reserve(user_id: int) -> Ticket:
    """A place in the queue, in constant time. Raises Busy, EngineUnavailable or Draining.

    The last eighth of the places is for people who hold none: one person alone cannot fill the queue.
    """
    if _handle.is_draining:
        raise Draining(_("The server is about to stop and takes nothing new. Nothing has been stored; try again soon."))
    _worker()
    num_held = _handle.places.total()
    num_open = _handle.num_places - (_handle.num_places // 8 if _handle.places[user_id] else 0)
    if num_held >= num_open:
        raise Busy(
            _("Too many replies are waiting (%(num)s). Nothing has been stored; try again.") % {"num": num_held},
            num_waiting=num_held,
            max_waiting=_handle.num_places,
        )
    return Ticket(_handle.places, user_id)


def window(model: str = "") -> int:
    """How many tokens prompt and reply may have together. Blocking. Raises EngineUnavailable."""
    return _opened(model).max_model_len


def model_info(model: str = "") -> ModelInfo | None:
    """The model as it was when it was last loaded; None before that."""
    return None if _handle.worker is None else _handle.worker.model(_name(model)).info


def token_fingerprint(model: str = "") -> str:
    """What stored token ids depend on: tokenizer and template. Blocking. Raises EngineUnavailable."""
    return _opened(model).chat_template.fingerprint


def build_prompt(
    messages: Sequence[ChatMessage],
    *,
    model: str = "",
    today: datetime.date | None = None,
    is_thinking_off: bool = False,
) -> Prompt:
    """The rendered conversation, ready for a reply. Blocking: use a thread. Raises EngineUnavailable, Invalid.

    today: what a template is told that asks for the date; the same for all prompts of a conversation.
    is_thinking_off: the model is told to answer at once, if its template knows how.
    """
    with _template_errors():
        return _opened(model).chat_template.build(messages, today=today, is_thinking_off=is_thinking_off)


def build_history(
    messages: Sequence[ChatMessage],
    *,
    model: str = "",
    today: datetime.date | None = None,
    is_thinking_off: bool = False,
) -> Prompt:
    """What a prompt begins with when a question follows these messages, whatever it is. As build_prompt."""
    with _template_errors():
        return _opened(model).chat_template.build_history(messages, today=today, is_thinking_off=is_thinking_off)


@contextmanager
def _template_errors() -> Iterator[None]:
    try:
        yield
    except TemplateError as error:  # some templates refuse what others take: a system prompt, two questions in a row
        raise Invalid(_("The model cannot be given this conversation: %(error)s.") % {"error": error}) from error


def strips_thinking(model: str = "") -> bool:
    """Whether the model's template leaves the thinking out of earlier replies. Blocking. Raises EngineUnavailable."""
    return _opened(model).chat_template.strips_thinking


def thinking_reader(model: str = "", *, is_thinking_off: bool = False) -> ThinkingReader | None:
    """Tells a model's thinking from its answers; None for one that is not known to think. As strips_thinking."""
    opened = _opened(model)
    marks = opened.chat_template.thinking_marks(is_thinking_off=is_thinking_off)
    return ThinkingReader(marks, opened.tokenizer) if marks is not None else None


def extended(prompt: Prompt, ids: Sequence[int]) -> Prompt:
    """The same prompt with the beginning of the reply behind it: the model goes on from there."""
    return replace(prompt, ids=np.concatenate([prompt.ids, np.asarray(ids, dtype=np.int32)]))


def count_cached(prompt: Prompt, *, model: str, user_id: int, is_head_public: bool) -> int:
    """How many leading tokens of a prompt need not be computed now. Blocking. Raises EngineUnavailable."""
    request = Request("", prompt.ids, SamplingParams(), _salt(user_id), _num_public(prompt, is_head_public))
    with _stopped():
        return _worker().count_cached(_name(model), request)


def encode(text: str, *, model: str = "") -> list[int]:
    """Token ids of plain text; never a control token. Blocking. Raises EngineUnavailable."""
    return _opened(model).tokenizer.encode(text)


def decode(ids: Sequence[int], *, model: str = "") -> str:
    """Text of token ids. Blocking. Raises EngineUnavailable."""
    return _opened(model).tokenizer.decode(list(ids))


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
    model: str = "",
    is_continuation: bool = False,
    tags: tuple[str, ...] = (),
) -> AsyncGenerator[Event, None]:
    """The events of one request, the last one a FinishedEvent. Closing the iterator cancels the request.

    is_head_public: the system prompt is everybody's, so its cached KV may be shared; all else is salted per person.
    is_continuation: the prompt ends inside the reply.
    Raises EngineUnavailable, Busy, WindowFull.
    """
    request = Request(
        request_id=request_id,
        prompt_ids=prompt.ids,
        sampling=sampling,
        salt=_salt(ticket.user_id),
        num_public_tokens=_num_public(prompt, is_head_public),
        tags=tags,
        priority=ticket.priority,
        is_continuation=is_continuation,
        stop_token_ids=_opened(model).chat_template.stop_token_ids,  # open already: its prompt was built a moment ago
    )
    async with aclosing(_events(model, request)) as events:
        async for event in events:
            yield event


async def prepare(
    *, user_id: int, request_id: str, prompt: Prompt, is_head_public: bool, model: str = "", tags: tuple[str, ...] = ()
) -> None:
    """Compute the KV of a prompt that is to come, while the engine has nothing else to do. It gives way to every turn
    and goes on after it.

    Nothing is loaded for it: that would drive out another model for a guess. Raises EngineUnavailable, also for a model
    that is not loaded, Busy, WindowFull.
    """
    request = Request(
        request_id=request_id,
        prompt_ids=prompt.ids,
        sampling=SamplingParams(),
        salt=_salt(user_id),
        num_public_tokens=_num_public(prompt, is_head_public),
        tags=tags,
        is_prefill_only=True,
    )
    async with aclosing(_events(model, request)) as events:
        async for _event in events:
            pass


async def _events(model: str, request: Request) -> AsyncGenerator[Event, None]:
    """The events of a request, cancelled when the iterator is closed. Raises EngineUnavailable, Busy, WindowFull."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()

    def on_event(event: Event) -> None:  # on the worker's thread
        with suppress(RuntimeError):  # the loop has been closed: nobody listens any more
            loop.call_soon_threadsafe(events.put_nowait, event)

    try:
        with _stopped():
            _worker().submit(_name(model), request, on_event)
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
        cancel(request.request_id)


def cancel(request_id: str) -> None:
    """Stop a request within one step; its iterator ends with a FinishedEvent. Unknown ids are ignored."""
    if _handle.worker is not None:
        _handle.worker.cancel(request_id)


def purge(conversation_id: UUID) -> None:
    """Forget the cached KV of a conversation, soon. Without an engine in this process there is nothing to forget."""
    if _handle.worker is not None:
        _handle.worker.purge(str(conversation_id))


def _worker() -> Worker:
    if _handle.worker is None or _handle.worker.state != "running":
        raise EngineUnavailable(status().message)
    return _handle.worker


def _name(model: str) -> str:
    return model or _handle.default_model


def _opened(model: str) -> OpenedModel:
    worker, name = _worker(), _name(model)
    try:
        return worker.open(name)
    except ModelTooLarge as error:
        raise EngineUnavailable(
            _(
                "%(name)s needs %(need)s of memory, and all models together may take %(max)s: raise "
                "RECOLLECT_MODEL_MEMORY, or lower RECOLLECT_POOL_TOKENS."
            )
            % {"name": name, "need": filesizeformat(error.num_bytes), "max": filesizeformat(error.max_bytes)},
            num_bytes=error.num_bytes,
            max_bytes=error.max_bytes,
        ) from error
    except (InferenceError, ValueError) as error:
        raise EngineUnavailable(_not_loaded(name, str(error))) from error


@contextmanager
def _stopped() -> Iterator[None]:
    """An engine that has stopped meanwhile is a refusal."""
    try:
        yield
    except EngineStopped as error:
        raise EngineUnavailable(_("The engine has stopped: %(error)s.") % {"error": error}) from error


def _num_public(prompt: Prompt, is_head_public: bool) -> int:
    return prompt.num_public_tokens if is_head_public else 0


def _salt(user_id: int) -> bytes:
    """Keeps cached KV of one person from answering, or timing, another's guesses; needs the installation's key."""
    return salted_hmac("chatapp.llm.salt", str(user_id), algorithm="sha256").digest()
