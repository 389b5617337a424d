"""An engine's worker that writes "w0 w1 w2 ..." at a pace of its own: long replies without a model, always the same.

A continued reply goes on counting where its prompt ends, so nothing may be written twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from inference.types import Event, FinishedEvent, FinishReason, ProgressEvent, Request, RequestStats, Stage, TokenEvent
from tests.chatapp.fake_worker import HEADERS, FakeWorker

NUM_READING_STEPS = 3


class PacedWorker(FakeWorker):
    """One thread per request; each prompt chunk and each word takes pace_s."""

    def __init__(self, *, num_words: int = 20, pace_s: float = 0.01, max_model_len: int = 100_000) -> None:
        super().__init__(max_model_len)
        self._num_words = num_words
        self._pace_s = pace_s
        self._cancelled: dict[str, threading.Event] = {}

    def submit(self, name: str, request: Request, on_event: Callable[[Event], None]) -> None:
        if request.is_prefill_only:
            super().submit(name, request, on_event)
            return
        self._cancelled[request.request_id] = threading.Event()
        on_event(ProgressEvent(request.request_id, Stage.QUEUED))
        threading.Thread(target=self._answer, args=(request, on_event), daemon=True).start()

    def cancel(self, request_id: str) -> None:
        if request_id in self._cancelled:
            self._cancelled[request_id].set()

    def shutdown(self, timeout: float = 10.0) -> bool:
        self.state = "stopped"
        for cancelled in list(self._cancelled.values()):
            cancelled.set()
        return True

    def _answer(self, request: Request, on_event: Callable[[Event], None]) -> None:
        name, prompt_ids = request.request_id, request.prompt_ids.tolist()
        cancelled = self._cancelled[name]
        reason, written = FinishReason.STOP, []
        for step in range(1, NUM_READING_STEPS + 1):
            if not cancelled.wait(self._pace_s):
                done = len(prompt_ids) * step // NUM_READING_STEPS
                on_event(ProgressEvent(name, Stage.READING, 0, done, len(prompt_ids)))
        begun = prompt_ids[len(prompt_ids) - prompt_ids[::-1].index(HEADERS["assistant"]) :]
        on_event(ProgressEvent(name, Stage.WRITING))
        for num in range(bytes(begun).count(b" "), self._num_words):
            if cancelled.wait(self._pace_s):
                reason = FinishReason.CANCELLED
                break
            word = f"w{num} "
            written.extend(word.encode())
            on_event(TokenEvent(name, tuple(word.encode()), word))
        stats = RequestStats(
            num_prompt_tokens=len(prompt_ids), num_computed=len(prompt_ids), num_generated=len(written), decode_s=1.0
        )
        del self._cancelled[name]
        on_event(FinishedEvent(name, reason, stats, token_ids=tuple(written)))


def words(num: int) -> str:
    """The reply of `num` words."""
    return "".join(f"w{n} " for n in range(num))
