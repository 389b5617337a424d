"""What every measurement asks of the engine: prompts made of common words, completed greedily to a fixed length.

Drives LLMEngine as the application does; the prompts are those with which tests/peers measures other engines.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inference.engine.llm_engine import LLMEngine
from inference.types import FinishedEvent, FinishReason, Request, RequestStats, SamplingParams, TokenEvent

VOCABULARY = (
    "the quick brown fox jumps over lazy dog while seven bright stars shine above a quiet river town where people "
    "walk and talk about history science music art"
)
MORE_WORDS = " and then"  # the new message behind a warm history
NUM_DECODED = 64
NUM_PARALLEL = 4


@dataclass(slots=True)
class Timing:
    """What was seen of one request; times on the clock of time.perf_counter."""

    started_at: float
    token_times: list[float] = field(default_factory=list)
    stats: RequestStats = field(default_factory=RequestStats)

    @property
    def ttft_s(self) -> float:
        return self.token_times[0] - self.started_at

    @property
    def decode_tok_s(self) -> float:
        return (len(self.token_times) - 1) / (self.token_times[-1] - self.token_times[0])


def prompt_text(num_words: int, seed: int) -> str:
    """num_words words, about as many tokens; the same in every engine that is compared."""
    rng, words = random.Random(seed), VOCABULARY.split()
    return " ".join(rng.choice(words) for _ in range(num_words))


def parallel_prompts() -> list[str]:
    return [prompt_text(64, seed=900 + index) for index in range(NUM_PARALLEL)]


def complete(engine: LLMEngine, prompts: Sequence[str], num_tokens: int) -> list[Timing]:
    """Greedy completions of exactly num_tokens, all requested at once. Raises RuntimeError when one ends otherwise."""
    timings: dict[str, Timing] = {}
    for index, prompt in enumerate(prompts):
        request_id = f"bench-{index}"
        sampling = SamplingParams(temperature=0, max_tokens=num_tokens)
        prompt_ids = np.array(engine.tokenizer.encode(prompt), np.int32)
        timings[request_id] = Timing(time.perf_counter())
        engine.add_request(Request(request_id, prompt_ids, sampling))
    while engine.has_work:
        events = engine.step()
        now = time.perf_counter()
        for event in events:
            timing = timings[event.request_id]
            if isinstance(event, TokenEvent):
                timing.token_times.extend([now] * len(event.token_ids))
            elif isinstance(event, FinishedEvent):
                if event.finish_reason != FinishReason.LENGTH:
                    raise RuntimeError(f"a request ended with {event.finish_reason}: {event.error}")
                timing.stats = event.stats
    return list(timings.values())


def measure_core(engine: LLMEngine, contexts: Sequence[int]) -> dict[str, Any]:
    """Prefill, decode and a warm start for each context, in words, then four sequences at once. Prints as it goes.

    {"contexts": {"512": {"prefill_tok_s": .., "decode_tok_s": .., "warm_ttft_ms": ..}, ..},
     "parallel": {"sequences": 4, "decode_tok_s": ..}, "beside": {"longest_gap_ms": .., "prefill_tok_s": ..}}
    """
    complete(engine, [prompt_text(64, seed=7)], 4)  # touch the weights and the scratch memory once
    engine.clear_cache()
    rows: dict[str, dict[str, float]] = {}
    for size in contexts:
        prompt = prompt_text(size, seed=size)
        (cold,) = complete(engine, [prompt], NUM_DECODED)
        (warm,) = complete(engine, [prompt + MORE_WORDS], 1)
        rows[str(size)] = {
            "prefill_tok_s": cold.stats.num_computed / cold.ttft_s,
            "decode_tok_s": cold.decode_tok_s,
            "warm_ttft_ms": warm.ttft_s * 1e3,
        }
        print(size, {key: round(value, 1) for key, value in rows[str(size)].items()}, flush=True)
    prompts = parallel_prompts()
    complete(engine, prompts, 1)  # as with the peers: the prompts are cached when the clock starts
    started_at = time.perf_counter()
    complete(engine, prompts, NUM_DECODED)
    seconds = time.perf_counter() - started_at
    parallel = {"sequences": NUM_PARALLEL, "decode_tok_s": NUM_PARALLEL * NUM_DECODED / seconds}
    print("parallel", round(parallel["decode_tok_s"], 1), flush=True)
    beside = measure_beside(engine, max(contexts))
    print("beside", {key: round(value, 1) for key, value in beside.items()}, flush=True)
    return {"contexts": rows, "parallel": parallel, "beside": beside}


def measure_beside(engine: LLMEngine, num_words: int) -> dict[str, float]:
    """One reply is written while another conversation's prompt of num_words is read."""
    greedy = SamplingParams(temperature=0, max_tokens=engine.max_model_len)
    short_ids, long_ids = (
        np.array(engine.tokenizer.encode(prompt_text(size, seed=3 + size)), np.int32) for size in (16, num_words)
    )
    engine.add_request(Request("writing", short_ids, greedy))
    while not any(isinstance(event, TokenEvent) for event in engine.step()):
        pass
    engine.add_request(Request("reading", long_ids, SamplingParams(temperature=0, max_tokens=1)))
    started_at = last_at = time.perf_counter()
    gaps, is_reading = [], True
    while is_reading:
        events = engine.step()
        now = time.perf_counter()
        if any(event.request_id == "writing" and isinstance(event, TokenEvent) for event in events):
            gaps.append(now - last_at)
            last_at = now
        is_reading = not any(event.request_id == "reading" and isinstance(event, FinishedEvent) for event in events)
    seconds = time.perf_counter() - started_at
    engine.cancel_all()
    engine.step()
    return {"longest_gap_ms": max(gaps) * 1e3, "prefill_tok_s": len(long_ids) / seconds}
