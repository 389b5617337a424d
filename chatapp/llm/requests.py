"""Requests: a reply, what is written beside the turns, KV prepared ahead, how long it is kept, what it depends on."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from uuid import UUID

from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from chatapp.errors import Busy, WindowFull
from chatapp.llm.host import handle, model_info, name_of, opened_model, running_worker, unavailable_when_stopped
from chatapp.places import Ticket
from inference.errors import PromptTooLong, QueueFull
from inference.types import (
    Event,
    FinishedEvent,
    FinishReason,
    ProgressEvent,
    Prompt,
    Request,
    RequestStats,
    SamplingParams,
    Stage,
    TokenEvent,
)


@dataclass(frozen=True, slots=True)
class Aside:
    """What a model has written beside the turns."""

    text: str
    finish_reason: FinishReason
    stats: RequestStats


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
        stop_token_ids=opened_model(
            model
        ).chat_template.stop_token_ids,  # open already: its prompt was built a moment ago
    )
    async with aclosing(_events(model, request)) as events:
        async for event in events:
            yield event


async def prepare(
    *,
    user_id: int,
    request_id: str,
    prompt: Prompt,
    is_head_public: bool,
    model: str = "",
    tags: tuple[str, ...] = (),
    num_lasting_tokens: int | None = None,
    on_progress: Callable[[int, int], None] = lambda num_done, num_total: None,
) -> None:
    """Compute the KV of a prompt that is to come, while the engine has nothing else to do. It gives way to every turn
    and goes on after it.

    num_lasting_tokens: what lies behind so many is a guess, kept in memory only and the first to be evicted until a
    turn takes it up; None: all of it lasts.
    on_progress: so many of so many tokens have KV.
    Nothing is loaded for it (see load_if_free). Raises EngineUnavailable, also for a model that is neither loaded nor
    being loaded, Busy, WindowFull.
    """
    request = Request(
        request_id=request_id,
        prompt_ids=prompt.ids,
        sampling=SamplingParams(),
        salt=_salt(user_id),
        num_public_tokens=_num_public(prompt, is_head_public),
        tags=tags,
        is_prefill_only=True,
        is_low_retention=num_lasting_tokens is not None,
        num_lasting_tokens=num_lasting_tokens or 0,
    )
    async with aclosing(_events(model, request)) as events:
        async for event in events:
            if isinstance(event, ProgressEvent) and event.stage is Stage.READING:
                on_progress(event.num_done, event.num_total)


async def aside(
    *,
    user_id: int,
    request_id: str,
    prompt: Prompt,
    num_lasting_tokens: int,
    sampling: SamplingParams,
    is_head_public: bool,
    model: str = "",
    is_continuation: bool = False,
    tags: tuple[str, ...] = (),
) -> Aside:
    """Have something written that is no turn: a title. It gives way to every turn and takes nobody's place; the
    conversation's part of the prompt, num_lasting_tokens, is kept like it, and the rest is the first to be forgotten.

    finish_reason CANCELLED: there was no room for it, or its model is leaving; ERROR: the engine has given it up.
    Cancelling the coroutine cancels the request. Nothing is loaded for it. Raises EngineUnavailable, also for a model
    that is not loaded, Busy when too many wait already, WindowFull.
    """
    request = Request(
        request_id=request_id,
        prompt_ids=prompt.ids,
        sampling=sampling,
        salt=_salt(user_id),
        num_public_tokens=_num_public(prompt, is_head_public),
        tags=tags,
        is_low_retention=True,
        num_lasting_tokens=num_lasting_tokens,
        is_side=True,
        is_continuation=is_continuation,
        stop_token_ids=opened_model(model).chat_template.stop_token_ids,
    )
    text = ""
    async with aclosing(_events(model, request)) as events:
        async for event in events:
            if isinstance(event, TokenEvent | FinishedEvent):
                text += event.text
            if isinstance(event, FinishedEvent):
                return Aside(text, event.finish_reason, event.stats)
    raise AssertionError("a request ends with a FinishedEvent")


async def _events(model: str, request: Request) -> AsyncGenerator[Event, None]:
    """The events of a request, cancelled when the iterator is closed. Raises EngineUnavailable, Busy, WindowFull."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()

    def on_event(event: Event) -> None:  # on the worker's thread
        with suppress(RuntimeError):  # the loop has been closed: nobody listens any more
            loop.call_soon_threadsafe(events.put_nowait, event)

    try:
        with unavailable_when_stopped():
            running_worker().submit(name_of(model), request, on_event)
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
    if handle.worker is not None:
        handle.worker.cancel(request_id)


def protect(conversation_id: UUID, seconds: float) -> None:
    """Evict the cached KV of a conversation late for so long: somebody looks at it. 0 ends that, and takes it out of
    the archive."""
    if handle.worker is not None:
        handle.worker.protect(str(conversation_id), seconds)


def archive(conversation_id: UUID) -> None:
    """Evict the cached KV of a conversation first, until something is computed there again."""
    if handle.worker is not None:
        handle.worker.archive(str(conversation_id))


def count_cached(prompt: Prompt, *, model: str, user_id: int, is_head_public: bool) -> int:
    """How many leading tokens of a prompt need not be computed now. Blocking. Raises EngineUnavailable."""
    request = Request("", prompt.ids, SamplingParams(), _salt(user_id), _num_public(prompt, is_head_public))
    with unavailable_when_stopped():
        return running_worker().count_cached(name_of(model), request)


@dataclass(frozen=True, slots=True)
class KvIdentity:
    """What must be the same for KV to be reused, besides the tokens, and whose memory it lies in. 8 bytes each.

    model: weights, arithmetic, tokenizer and template; and its name, for two names of one file have memory of their
    own. salt: whose it is; a digest that tells nothing about the salt. run: of the process's worker. load: of the model
    into memory.
    """

    model: bytes
    salt: bytes
    run: bytes
    load: bytes


def kv_identity(*, model: str, user_id: int) -> KvIdentity | None:
    """Of what this person's requests to a model compute now; None while it has never been loaded in this process."""
    info = model_info(model)
    if info is None:
        return None
    facts = (f"{model} {info.fingerprint} {info.tokenizer_fingerprint}".encode(), _salt(user_id))
    model_digest, salt_digest = (hashlib.sha256(b"identity " + fact).digest()[:8] for fact in facts)
    return KvIdentity(model_digest, salt_digest, bytes.fromhex(handle.run_id), bytes.fromhex(info.load_id))


def _num_public(prompt: Prompt, is_head_public: bool) -> int:
    return prompt.num_public_tokens if is_head_public else 0


def _salt(user_id: int) -> bytes:
    """Keeps cached KV of one person from answering, or timing, another's guesses; needs the installation's key."""
    return salted_hmac("chatapp.llm.salt", str(user_id), algorithm="sha256").digest()
