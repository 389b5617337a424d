"""Conversations that a benchmark has with the engine: made of common words, asked turn by turn.

How much of a prompt has been computed before is worked out here from the tokens alone, without the engine's cache, so
that what the engine says it reused can be held against it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inference.bench.workload import prompt_text
from inference.engine.llm_engine import LLMEngine
from inference.kvcache.cached_blocks import num_common
from inference.types import I32, ChatMessage, FinishedEvent, FinishReason, Request, SamplingParams, TokenEvent

SYSTEM = ChatMessage("system", "You are a helpful assistant who answers in a few plain words.")
WORDS_PER_TURN = 128  # a question and its reply, one to three
NUM_QUESTION_WORDS = 16
NUM_GENERATED = 8  # tokens of each reply; greedy, nothing ends it sooner
SALT = b"bench"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one request reused, and how long its first token took. The fields are the keys of the benchmark's JSON."""

    prompt_tokens: int
    reused_ram: int
    reused_disk: int
    computed: int
    ttft_ms: float  # from handing the request over to its first token


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. num_shared: tokens at the head of its prompt that had been computed before, as far as needed again."""

    reading: Reading
    num_shared: int
    token_ids: tuple[int, ...]


def question(seed: int) -> ChatMessage:
    return ChatMessage("user", prompt_text(NUM_QUESTION_WORDS, seed))


def said(engine: LLMEngine, token_ids: tuple[int, ...]) -> ChatMessage:
    """What the engine has generated, as a message of the next prompt."""
    return ChatMessage("assistant", engine.tokenizer.decode(token_ids), token_ids)


def history(num_words: int, seed: int) -> list[ChatMessage]:
    """A system prompt, questions and replies of about num_words words together, and a new question."""
    num_turns = max(1, num_words // WORDS_PER_TURN)
    words = prompt_text(num_words, seed).split()
    messages = [SYSTEM]
    for turn in range(num_turns):
        of_turn = words[turn * len(words) // num_turns : (turn + 1) * len(words) // num_turns]
        cut = len(of_turn) // 4
        messages += [
            ChatMessage("user", " ".join(of_turn[:cut])),
            ChatMessage("assistant", " ".join(of_turn[cut:])),
        ]
    return [*messages, question(seed)]


class Interview:
    """Asks an engine, one request at a time, and remembers what it has computed."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self._computed: list[I32] = []  # tokens whose KV has been made, of each request
        self._prompts: set[bytes] = set()  # whose last logits have been kept

    def ask(self, messages: Sequence[ChatMessage], *, tag: str = "bench", is_side_request: bool = False) -> Reply:
        """The engine's answer. Raises RuntimeError when it ends with anything but its last token."""
        engine = self.engine
        prompt = engine.chat_template.build(messages)
        request = Request(
            "bench",
            prompt.ids,
            SamplingParams(temperature=0, max_tokens=NUM_GENERATED),
            salt=SALT,
            num_public_tokens=prompt.num_public_tokens,
            tags=(tag,),
            is_low_retention=is_side_request,
            is_side=is_side_request,
        )
        num_shared = self._num_shared(prompt.ids)
        seconds, end = _run(engine, request)
        token_ids = end.token_ids or ()
        self.remember(prompt.ids, token_ids)
        if not is_side_request:
            self._prompts.add(prompt.ids.tobytes())
        stats = end.stats
        reading = Reading(
            stats.num_prompt_tokens, stats.num_reused_ram, stats.num_reused_disk, stats.num_computed, seconds * 1e3
        )
        return Reply(reading, num_shared, token_ids)

    def remember(self, prompt_ids: I32, token_ids: Sequence[int]) -> None:
        """A prompt and what was generated behind it have been computed, all but the last token."""
        self._computed.append(np.append(prompt_ids, np.array(token_ids[:-1], np.int32)))

    def forget(self) -> None:
        """Empty the engine's cache."""
        self.engine.clear_cache()
        self._computed.clear()
        self._prompts.clear()

    def _num_shared(self, ids: I32) -> int:
        """Of the prompt ids (T,), the tokens that nobody needs to compute: of the last one the logits are wanted."""
        most = max((num_common(known, ids) for known in self._computed), default=0)
        return most if ids.tobytes() in self._prompts else min(most, len(ids) - 1)


def _run(engine: LLMEngine, request: Request) -> tuple[float, FinishedEvent]:
    """Seconds to the first token, and the end. In half steps, as the worker makes them: a repeated prompt has its first
    token before the first pass."""
    started_at = time.perf_counter()
    first_s = 0.0
    engine.add_request(request)
    while True:
        for half in (engine.schedule_step, engine.run_step):
            for event in half():
                if isinstance(event, TokenEvent) and not first_s:
                    first_s = time.perf_counter() - started_at
                if isinstance(event, FinishedEvent):
                    if event.finish_reason != FinishReason.LENGTH:
                        raise RuntimeError(f"a request ended with {event.finish_reason}: {event.error}")
                    return first_s, event
