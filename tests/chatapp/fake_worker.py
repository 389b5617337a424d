"""An engine's worker that says what a test tells it to: no model, no thread, no time. Tokens are bytes, so every cut
through a character, a stop string or a template can be played.
"""

from __future__ import annotations

import datetime
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from inference.engine.model_hub import ModelState, ModelStatus
from inference.errors import EngineStopped
from inference.tokenizer.thinking import ThinkingMarks
from inference.types import (
    ChatMessage,
    EngineStats,
    Event,
    FinishedEvent,
    FinishReason,
    ModelInfo,
    ProgressEvent,
    Prompt,
    Rank,
    Request,
    RequestStats,
    Stage,
    TokenEvent,
)

END = 259
MARKS = {260: b"<think>", 261: b"</think>"}
MARK_IDS = {text.decode(): token for token, text in MARKS.items()}
THINKS = ThinkingMarks("<think>", "</think>", False, *MARKS)
HEADERS = {"system": 256, "user": 257, "assistant": 258}


class ByteTokenizer:
    """Token i is byte i; two more are the marks of thinking."""

    strips_leading_space = False

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return MARKS.get(token_id, b"") if token_id > 255 else bytes([token_id])

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def generated(self, text: str) -> list[int]:
        """As a model writes it: marks as control tokens."""
        parts = re.split("(<think>|</think>)", text)
        return [token for part in parts for token in ([MARK_IDS[part]] if part in MARK_IDS else part.encode())]


class ByteTemplate:
    """<role> bytes <end>, and the header of the reply."""

    stop_token_ids = (END,)
    takes_system_prompt = True

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.num_rendered = 0  # messages, of all prompts together
        self.num_chars_encoded = 0  # of last messages, of prompts that were open
        self.days: list[datetime.date | None] = []  # told to each prompt
        self.switches: list[bool] = []  # so is this: is thinking switched off?
        self.marks: ThinkingMarks | None = None  # of a model that thinks
        self.strips_thinking = False

    def thinking_marks(self, *, is_thinking_off: bool = False) -> ThinkingMarks | None:
        return self.marks

    def open(
        self, messages: Sequence[ChatMessage], *, today: datetime.date | None = None, is_thinking_off: bool = False
    ) -> SimpleNamespace:
        prompts: list[Prompt] = []  # of the messages as they are, once it is asked for

        def prompt(text: str) -> Prompt:
            if not prompts:
                prompts.append(self.build(messages, today=today, is_thinking_off=is_thinking_off))
            self.num_chars_encoded += len(text)
            first = prompts[0].spans[-1][0]
            ids = [*prompts[0].ids[:first], *text.encode(), END, HEADERS["assistant"]]
            spans = (*prompts[0].spans[:-1], (first, len(ids) - 2))
            return replace(prompts[0], ids=np.array(ids, np.int32), spans=spans)

        return SimpleNamespace(prompt=prompt)

    def build_history(
        self, messages: Sequence[ChatMessage], *, today: datetime.date | None = None, is_thinking_off: bool = False
    ) -> Prompt:
        prompt = self.build(messages, today=today)
        return replace(prompt, ids=np.append(prompt.ids[:-1], np.int32(HEADERS["user"])))

    def build(
        self, messages: Sequence[ChatMessage], *, today: datetime.date | None = None, is_thinking_off: bool = False
    ) -> Prompt:
        self.days.append(today)
        self.switches.append(is_thinking_off)
        self.num_rendered += len(messages)
        ids: list[int] = []
        spans = []
        num_public_tokens = 0
        for message in messages:
            ids.append(HEADERS[message.role])
            start = len(ids)
            ids.extend(message.content.encode() if message.token_ids is None else message.token_ids)
            spans.append((start, len(ids)))
            ids.append(END)
            if message.role == "system" and not message.is_private:
                num_public_tokens = len(ids)
        ids.append(HEADERS["assistant"])
        return Prompt(np.array(ids, np.int32), tuple(spans), num_public_tokens)


class FakeWorker:
    """Holds requests until the test answers them with `write` and `finish`.

    Those that only prefill are kept apart, and are done at once unless the test is_holding them.
    """

    used_bytes, max_bytes = 0, 1 << 30

    def __init__(self, max_model_len: int = 4096, tokenizer_fingerprint: str = "bytes") -> None:
        self.state = "running"
        self.model_state: ModelState = "ready"  # of every model
        self.loaded_names = ["fake"]
        self.error = ""
        self.model_error = ""
        self.requests: list[Request] = []
        self.models: list[str] = []  # that the requests were for
        self.purged: list[str] = []
        self.prefills: list[Request] = []
        self.is_holding = False
        self.hints: list[tuple[str, float]] = []  # tag and seconds of protection; -1: archived
        self.has_room = True  # to load a model without another one leaving
        self.num_cached = 0  # of any prompt
        self.num_reused: int | None = None  # of any prompt; None: half of it
        self.opened_of: dict[str, Any] = {}  # by model, where it is not `opened`
        self._listeners: dict[str, Callable[[Event], None]] = {}
        self._written: dict[str, list[int]] = {}
        self.opened = SimpleNamespace(
            max_model_len=max_model_len,
            tokenizer=ByteTokenizer(),
            chat_template=ByteTemplate(tokenizer_fingerprint),
        )
        self.weights_of: dict[str, str] = {}  # name -> another one, of the same file
        self.info = ModelInfo(
            *("fake", "fake.gguf", "llama", 1, 1, 260, 4096, "fake", "model", tokenizer_fingerprint, 8),
            load_id=secrets.token_hex(8),
        )

    # what the door calls

    def start(self) -> None:
        self.state = "running"

    def load_soon(self, name: str) -> None:
        pass

    def load(self, name: str) -> None:
        self.model_state = "ready"

    def unload(self, name: str) -> None:
        self.model_state = "unloaded"

    def open(self, name: str) -> Any:
        return self.opened_of.get(name, self.opened)

    @property
    def loaded(self) -> list[str]:
        return self.loaded_names if self.model_state == "ready" else []

    def model(self, name: str) -> ModelStatus:
        is_there = self.model_state == "ready"
        info = (
            replace(self.info, name=name, fingerprint=f"{self.info.fingerprint} {self.weights_of.get(name, name)}")
            if is_there
            else None
        )
        return ModelStatus(name, self.model_state, float(is_there), self.model_error, 0, info)

    def count_cached(self, name: str, request: Request) -> int:
        return self.num_cached

    def submit(self, name: str, request: Request, on_event: Callable[[Event], None]) -> None:
        if self.state != "running" or (request.rank != Rank.TURN and self.model_state != "ready"):
            raise EngineStopped
        if request.is_prefill_only:
            self.prefills.append(request)
        else:
            self.requests.append(request)
            self.models.append(name)
        self._listeners[request.request_id] = on_event
        self._written[request.request_id] = []
        on_event(ProgressEvent(request.request_id, Stage.QUEUED))
        if request.is_prefill_only and not self.is_holding:
            num_tokens = len(request.prompt_ids)
            self.read(num_tokens, num_tokens, request.request_id)
            self.finish(FinishReason.PREFILLED, request_id=request.request_id)

    def cancel(self, request_id: str) -> None:
        if request_id in self._listeners:
            self.finish(FinishReason.CANCELLED, request_id=request_id)

    def purge(self, tag: str) -> None:
        self.purged.append(tag)

    def clear_cache(self) -> None:
        self.purged.append("*")

    def settle(self, timeout: float) -> bool:
        return True

    def protect(self, tag: str, seconds: float) -> None:
        self.hints.append((tag, seconds))

    def archive(self, tag: str) -> None:
        self.hints.append((tag, -1))

    def load_if_free(self, name: str) -> bool:
        if self.has_room:
            self.model_state = "ready"
        return self.has_room

    def stats(self, name: str = "") -> EngineStats:
        return EngineStats(num_running=len(self._listeners))

    def shutdown(self, timeout: float = 10.0) -> bool:
        self.state = "stopped"
        for request_id in list(self._listeners):
            self.finish(FinishReason.CANCELLED, request_id=request_id)
        return True

    # what a test calls; without a request_id the newest request is meant

    def load_further(self, num_done: int, num_total: int) -> None:
        request_id = self.requests[-1].request_id
        self._listeners[request_id](ProgressEvent(request_id, Stage.LOADING, 0, num_done, num_total))

    def read(self, num_done: int, num_total: int, request_id: str = "") -> None:
        request_id = request_id or self.requests[-1].request_id
        self._listeners[request_id](ProgressEvent(request_id, Stage.READING, 0, num_done, num_total))

    def write(self, text: str, *, held_back: bytes = b"", request_id: str = "") -> None:
        """More of the reply; held_back: bytes whose text is not shown yet."""
        request_id = request_id or self.requests[-1].request_id
        ids = (*self.opened.tokenizer.generated(text), *held_back)
        if not self._written[request_id]:
            self._listeners[request_id](ProgressEvent(request_id, Stage.WRITING))
        self._written[request_id].extend(ids)
        self._listeners[request_id](TokenEvent(request_id, ids, text))

    def finish(
        self,
        reason: FinishReason = FinishReason.STOP,
        *,
        text: str = "",
        error: str = "",
        ids: tuple[int, ...] | None = (),
        request_id: str = "",
    ) -> None:
        """The end. ids: what decodes to the whole text, when that is not what has been written."""
        request_id = request_id or self.requests[-1].request_id
        written = self._written[request_id]
        num_prompt = len(next(r for r in self.requests + self.prefills if r.request_id == request_id).prompt_ids)
        num_reused = num_prompt // 2 if self.num_reused is None else min(self.num_reused, num_prompt)
        stats = RequestStats(
            num_prompt_tokens=num_prompt,
            num_reused_ram=num_reused,
            num_computed=num_prompt - num_reused,
            num_kept=num_prompt + len(written),
            num_generated=len(written) + 1,
            ttft_s=0.05,
            decode_s=0.5,
        )
        token_ids = ids if ids is None or ids else tuple(written) + tuple(text.encode())
        on_event = self._listeners.pop(request_id)
        on_event(FinishedEvent(request_id, reason, stats, text, error, token_ids))
