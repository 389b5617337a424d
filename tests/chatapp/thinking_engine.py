"""The real engine on a model that writes what a test says, with the tokenizer and template of a thinking model.

The model's KV shows every wrong reuse (see tests.inference.fakes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from chatapp import llm
from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.worker import Worker
from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.tokenizer import Tokenizer
from inference.types import F32, ForwardBatch
from tests.inference.fakes import MarkerModel, MarkerStorage
from tests.inference.trained_tokenizers import spec_of


class ScriptedModel(MarkerModel):
    """Writes `reply` from the first position on that it is asked about, then the end of the turn.

    A prompt that ends in the beginning of a title is answered with `title`.
    """

    def __init__(self, tokenizer: Tokenizer, max_position_embeddings: int) -> None:
        super().__init__(max_position_embeddings)
        self.config = replace(self.config, vocab_size=tokenizer.vocab_size)
        self._end = tokenizer.eos_token_ids[0]
        self.title: list[int] = []
        self._stars = tokenizer.encode(": **")[-1]
        self._reply: list[int] = []
        self._start: int | None = None

    def write(self, reply: Sequence[int]) -> None:
        self._reply, self._start = [*reply, self._end], None

    def forward(self, batch: ForwardBatch, kv: MarkerStorage) -> F32:
        rows = super().forward(batch, kv)
        logits = np.full((len(rows), self.config.vocab_size), -50, np.float32)
        for row, position in enumerate(batch.positions[batch.logits_rows].tolist()):
            if batch.token_ids[batch.logits_rows[row]] == self._stars:
                self.write(self.title)
            self._start = position if self._start is None else self._start
            index = min(position - self._start, len(self._reply) - 1)
            logits[row, self._reply[index] if self._reply else self._end] = 50
        return logits


class ThinkingEngine:
    """Behind the door while `running` lasts. The pool is large enough for everything."""

    def __init__(self, source: str, *, family: str = "qwen", max_model_len: int = 2048) -> None:
        self.tokenizer = Tokenizer(spec_of(family))
        self.template = ChatTemplate(self.tokenizer, source)
        self.model = ScriptedModel(self.tokenizer, max_model_len)
        self.config = EngineConfig(block_size=4, pool_tokens=4 * max_model_len, max_batch_tokens=256)
        self.max_model_len = max_model_len

    def ids(self, text: str) -> list[int]:
        """As a model writes it: marks as control tokens, where they are some."""
        known = {mark: self.tokenizer.special_tokens.get(mark) for mark in ("<think>", "</think>")}
        ids: list[int] = []
        rest = text
        while rest:
            cut, mark = min(((at, mark) for mark in known if (at := rest.find(mark)) >= 0), default=(len(rest), ""))
            ids += self.tokenizer.encode(rest[:cut]) if cut else []
            if mark:
                token = known[mark]
                ids += self.tokenizer.encode(mark) if token is None else [token]
            rest = rest[cut + len(mark) :]
        return ids

    @contextmanager
    def running(self) -> Iterator[None]:
        engine = LLMEngine(self.model, self.tokenizer, self.template, self.config, name="thinker")  # type: ignore[arg-type]
        opened: Any = SimpleNamespace(
            name="thinker",
            config=self.config,
            memory_bytes=engine.info.memory_bytes,
            is_current=True,
            tokenizer=self.tokenizer,
            chat_template=self.template,
            max_model_len=self.max_model_len,
        )
        worker = Worker(lambda name: opened, max_bytes=1 << 30, load=lambda *args, **kwargs: engine)
        llm.shutdown()
        llm.start(worker, default_model="thinker")
        try:
            yield
        finally:
            assert llm.shutdown()
            llm.host.handle.worker = None
        engine.check_integrity()  # when its thread has ended
