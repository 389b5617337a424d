"""The engine takes its memory at the start: turns do not make it grow, and a hit allocates nothing of size."""

from __future__ import annotations

import logging
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from inference.config import EngineConfig
from inference.engine.model_loader import load_engine
from inference.kvcache.block_table import BlockTable
from inference.sampler.sampler import Sampler
from inference.types import SamplingParams
from tests.conftest import ROOT
from tests.inference import tiny_models as tiny
from tests.inference.cache_world import CacheWorld, P

GROWTH_BYTES = 4 << 20  # of a thousand turns; a leak of a kilobyte a token would be twice that

# Conversations that grow turn by turn, end, and give way to others: the pool is used up many times over. A process of
# its own; the first turns fill the pool and whatever is made once.
TURNS = """
import sys
import numpy as np
from inference.config import EngineConfig
from inference.engine.model_loader import load_engine
from inference.types import FinishedEvent, Request, SamplingParams

def resident():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024

engine = load_engine(sys.argv[1], EngineConfig(pool_tokens=512, num_threads=1, kernels="numpy"))
rng = np.random.default_rng(5)
history = []
before = 0
for turn in range(1200):
    if len(history) > 90:
        history = []
    history += rng.integers(3, engine.info.vocab_size, 6).tolist()
    params = SamplingParams(max_tokens=8, temperature=0.8, seed=turn, repetition_penalty=1.1)
    engine.add_request(Request(str(turn), np.array(history, np.int32), params, tags=(str(turn // 7),)))
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, FinishedEvent):
                history += event.token_ids or ()
    if turn % 50 == 0:
        engine.purge(str(turn // 7 - 1))
    if turn == 200:
        before = resident()
engine.check_integrity()
print(before, resident(), engine.stats().num_reused_ram, engine.stats().cache.num_evicted_blocks)
"""


@pytest.mark.slow
def test_a_thousand_turns_leave_the_memory_as_it_was(tmp_path: Path) -> None:
    path = tiny.tiny_gguf().write(tmp_path / "m.gguf")
    command = [sys.executable, "-c", TURNS, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    before, after, num_reused, num_evicted = map(int, done.stdout.split())
    assert num_reused > 10_000
    assert num_evicted > 100
    assert after - before < GROWTH_BYTES


def test_pool_and_weights_are_stated_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tiny.tiny_gguf().write(tmp_path / "m.gguf")
    with caplog.at_level(logging.INFO, "inference.engine.model_loader"):
        load_engine(path, EngineConfig(pool_tokens=100, kernels="numpy"))
    (line,) = [record.getMessage() for record in caplog.records if "pool" in record.getMessage()]
    assert line.startswith("m: kernels numpy, weights ")
    assert "pool of 112 tokens" in line


def test_hit_of_thousands_of_tokens_allocates_a_few_bytes_each() -> None:
    num_tokens = 8_000
    world = CacheWorld(num_blocks=num_tokens // P + 8)
    ids = np.random.default_rng(0).integers(0, 256, num_tokens).astype(np.int32)
    world.serve(ids)
    table = BlockTable()
    tracemalloc.start()
    try:
        reuse = world.cache.allocate(table, ids)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reuse is not None
    assert reuse.num_tokens > num_tokens - P
    assert peak < 64 * num_tokens  # keys and ids of blocks; the KV of the default model is 46 kB a token


def test_requests_without_penalties_hold_nothing_of_the_size_of_the_vocabulary() -> None:
    ids = np.array([1, 2, 3], np.int32)
    tracemalloc.start()
    try:
        kept = [Sampler(SamplingParams(seed=1), ids, 1 << 20) for _ in range(4)]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(kept) == 4
    assert size < 1 << 16
