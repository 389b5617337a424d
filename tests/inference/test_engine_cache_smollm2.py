"""The default model with its KV on disk and in memory: the same bits as without, sooner, in no more memory."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.model_loader import load_engine
from inference.types import ChatMessage, FinishedEvent, Request, SamplingParams, TokenEvent
from tests.inference.fakes import finished, ids_of, run

pytestmark = pytest.mark.model

CONFIG = EngineConfig(pool_tokens=4096, max_running=4)
SYSTEM = ChatMessage("system", "You are a helpful assistant who answers in one sentence. " * 6)
HISTORY = ChatMessage("user", "Tell me about the sea, the mountains and the desert, please. " * 12)


@pytest.fixture(scope="module")
def loaded(model_path) -> LLMEngine:
    return load_engine(model_path, CONFIG)


@pytest.fixture
def engines(loaded):
    """Make engines around the same weights; they are closed afterwards."""
    made: list[LLMEngine] = []

    def make(**config) -> LLMEngine:
        made.append(LLMEngine(loaded.model, loaded.tokenizer, loaded.chat_template, replace(CONFIG, **config)))
        return made[-1]

    yield make
    for engine in made:
        assert engine.stats().num_blocks_used == 0
        engine.check_integrity()
        engine.close(0.0)


def request_of(engine: LLMEngine, messages, *, max_tokens: int = 12, **fields) -> Request:
    prompt = engine.chat_template.build(messages)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return Request("r", prompt.ids, params, num_public_tokens=prompt.num_public_tokens, **fields)


def answer(engine: LLMEngine, messages, **fields):
    events = run(engine, request_of(engine, messages, **fields))["r"]
    return finished(events).stats, ids_of(events, engine.tokenizer)


def test_restart_gives_the_same_bits(engines, tmp_path):
    disk = {"kv_dir": tmp_path, "kv_disk_bytes": 1 << 30}
    question = [SYSTEM, HISTORY, ChatMessage("assistant", "Gladly."), ChatMessage("user", "Which one is the driest?")]
    _, expected = answer(engines(is_prefix_cache_enabled=False), question)
    first = engines(**disk)
    answer(first, [SYSTEM, HISTORY], max_tokens=4, salt=b"alice", tags=("c",))
    _, warm = answer(first, question, salt=b"alice", tags=("c",))
    first.close(20.0)
    again = engines(**disk)
    stats, restored = answer(again, question, salt=b"alice", tags=("c",))
    assert stats.num_reused_ram == 0
    assert stats.num_reused_disk == stats.num_prompt_tokens - 1
    assert restored == warm == expected
    stats, repeated = answer(again, question, salt=b"alice", tags=("c",))
    assert (stats.num_reused_ram, stats.num_computed) == (stats.num_prompt_tokens, 0)
    assert repeated == expected


def test_conversation_is_the_same_with_the_cache_on_and_off(engines):
    """Turn by turn, greedy and sampled, with an answer asked for again and a question edited in the middle."""

    def converse(engine: LLMEngine) -> tuple[list[list[int]], int]:
        messages, replies, num_reused = [SYSTEM], [], 0

        def ask(*asked: ChatMessage, seed: int) -> list[int]:
            nonlocal num_reused
            request = request_of(engine, asked, salt=b"a", tags=("c",))
            params = replace(request.sampling, temperature=0.0 if seed % 2 else 0.8, seed=seed)
            events = run(engine, replace(request, sampling=params))["r"]
            num_reused += finished(events).stats.num_reused_ram
            replies.append(ids_of(events, engine.tokenizer))
            return replies[-1]

        for seed, words in enumerate(("What is rain?", "And snow?", "Which of the two is heavier?")):
            messages.append(ChatMessage("user", words))
            ids = ask(*messages, seed=seed)
            ask(*messages, seed=seed + 10)
            messages.append(ChatMessage("assistant", engine.tokenizer.decode(ids), tuple(ids)))
        ask(*messages[:3], ChatMessage("user", "And hail?"), seed=20)
        return replies, num_reused

    cached, num_reused = converse(engines())
    computed, num_reused_without = converse(engines(is_prefix_cache_enabled=False))
    assert cached == computed
    assert len(cached) == 7
    assert (num_reused > 400, num_reused_without) == (True, 0)


def test_restored_logits_are_those_of_a_cold_run(engines, tmp_path):
    disk = {"kv_dir": tmp_path, "kv_disk_bytes": 1 << 30}
    kept: list[np.ndarray] = []
    for config in ({"is_prefix_cache_enabled": False}, disk, disk):
        engine = engines(**config)
        take = engine._take_logits
        engine._take_logits = lambda sequence, logits, take=take: (kept.append(logits.copy()), take(sequence, logits))
        answer(engine, [SYSTEM, HISTORY], max_tokens=1)
        engine.close(20.0)
    np.testing.assert_array_equal(kept[0], kept[1])
    np.testing.assert_array_equal(kept[0], kept[2])


def test_user_b_after_user_a_reuses_exactly_the_public_system_prompt(engines):
    engine = engines()
    request = request_of(engine, [SYSTEM, HISTORY], salt=b"a")
    run(engine, request)
    num_public = request.num_public_tokens // CONFIG.block_size * CONFIG.block_size
    assert num_public >= 48
    stats, _ = answer(engine, [SYSTEM, HISTORY], salt=b"b")
    assert stats.num_reused_ram == num_public
    cold, _ = answer(engines(), [SYSTEM, HISTORY], salt=b"b")
    assert cold.num_reused_ram == 0


def test_memory_does_not_rise_on_hits_nor_fall_when_a_reply_ends(engines):
    """Blocks are the pool's, and the pool is the engine's: a reply gives its references back, not its memory."""
    engine = engines()
    process = psutil.Process()

    def resident() -> int:
        return process.memory_info().rss

    answer(engine, [SYSTEM, HISTORY])  # the pages that this conversation needs
    answer(engine, [SYSTEM, HISTORY])
    before = resident()
    for _ in range(20):
        answer(engine, [SYSTEM, HISTORY], max_tokens=3)
    assert abs(resident() - before) < 2_000_000
    held = engine.stats()
    assert held.num_blocks_used == 0
    assert held.num_blocks_cached * held.block_size * engine.info.kv_bytes_per_token > 3_000_000
    engine.add_request(request_of(engine, [SYSTEM, HISTORY]))
    during = [resident() for _ in iter(lambda: engine.has_work and engine.step() is not None, False)]
    assert during[-1] - resident() < 2_000_000  # the reply has ended: nothing went back to the system
    assert engine.stats().num_blocks_cached == held.num_blocks_cached


@pytest.mark.slow
def test_first_token_after_a_restart_comes_13_times_sooner(engines, tmp_path):
    """2,000 tokens of history and a new message of 16."""
    rng = np.random.default_rng(1)
    history = rng.integers(1000, 40_000, 2000).astype(np.int32)
    disk = {"kv_dir": tmp_path, "kv_disk_bytes": 1 << 30}

    def ttft(engine: LLMEngine, ids) -> tuple[float, FinishedEvent]:
        engine.add_request(Request("r", ids, SamplingParams(temperature=0.0, max_tokens=4)))
        started_at, first = time.perf_counter(), 0.0
        while True:
            for event in engine.step():
                if isinstance(event, TokenEvent) and not first:
                    first = time.perf_counter() - started_at
                if isinstance(event, FinishedEvent):
                    return first, event

    first = engines(**disk)
    ttft(first, history)
    first.close(20.0)
    cold, warm = [], []
    for _ in range(3):
        prompt = np.concatenate([history, rng.integers(1000, 40_000, 16).astype(np.int32)])
        without, with_disk = engines(), engines(**disk)
        for engine in (without, with_disk):
            ttft(engine, np.arange(1, 20, dtype=np.int32))
        seconds, end = ttft(without, prompt)
        cold.append(seconds)
        seconds, restored = ttft(with_disk, prompt)
        warm.append(seconds)
        assert restored.stats.num_reused_disk == 2000
        assert restored.token_ids == end.token_ids
        with_disk.close(20.0)
    assert statistics.median(cold) >= 13 * statistics.median(warm), (cold, warm)
