"""More conversations than the pool has room for, taking turns."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from inference.bench.conversation import NUM_GENERATED, Interview, Reading, history, question, said
from inference.bench.workload import prompt_text
from inference.engine.llm_engine import LLMEngine
from inference.types import ChatMessage, HitCounts

NUM_CONVERSATIONS = 20
NUM_WITH_ROOM = 8
KV_DISK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Crowd:
    """What was seen of all turns but the first of each conversation, which is cold."""

    num_turns: int
    pool_tokens: int
    hits: HitCounts
    num_disk_tokens: int
    num_evicted_blocks: int
    median_ttft_ms: float


def measure_crowd(engine: LLMEngine, *, num_words: int, num_turns: int, kv_dir: Path | None = None) -> Crowd:
    """NUM_CONVERSATIONS of num_words words, then num_turns turns, each of one drawn at random, in a pool for
    NUM_WITH_ROOM of them as they are at the end.

    engine lends its weights. kv_dir: for files that keep what the pool cannot; None is without. The idle moments
    between two turns are used, as the worker uses them.
    """
    talks = [history(num_words, seed) for seed in range(NUM_CONVERSATIONS)]
    pool_tokens = NUM_WITH_ROOM * _num_tokens_at_the_end(engine, talks[0], num_turns / NUM_CONVERSATIONS)
    config = replace(
        engine.config, pool_tokens=pool_tokens, kv_dir=kv_dir, kv_disk_bytes=KV_DISK_BYTES if kv_dir else 0
    )
    small = LLMEngine(engine.model, engine.tokenizer, engine.chat_template, config)
    _take_turns(small, talks, range(NUM_CONVERSATIONS))
    before = small.stats().cache
    rng = random.Random(1)
    readings = _take_turns(small, talks, [rng.randrange(NUM_CONVERSATIONS) for _ in range(num_turns)])
    after = small.stats().cache
    small.close(0.0)
    return Crowd(
        num_turns=num_turns,
        pool_tokens=small.stats().num_blocks * small.stats().block_size,
        hits=after.since_start - before.since_start,
        num_disk_tokens=sum(reading.reused_disk for reading in readings),
        num_evicted_blocks=after.num_evicted_blocks - before.num_evicted_blocks,
        median_ttft_ms=statistics.median(reading.ttft_ms for reading in readings),
    )


def _num_tokens_at_the_end(engine: LLMEngine, talk: list[ChatMessage], num_turns: float) -> int:
    num_tokens = len(engine.chat_template.build(talk).ids)
    reply = ChatMessage("assistant", prompt_text(NUM_GENERATED, 0))
    num_more = len(engine.chat_template.build([*talk, reply, question(0)]).ids) - num_tokens
    return num_tokens + round(num_turns * num_more)


def _take_turns(engine: LLMEngine, talks: list[list[ChatMessage]], numbers: Iterable[int]) -> list[Reading]:
    """A question to each of these conversations, which grow."""
    interview = Interview(engine)
    readings = []
    for turn, number in enumerate(numbers):
        reply = interview.ask(talks[number], tag=f"conversation {number}")
        readings.append(reply.reading)
        talks[number] += [said(engine, reply.token_ids), question(turn)]
        while engine.idle() == 0.0:
            pass
    return readings
