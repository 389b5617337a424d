"""Three levels of letting go: of references, of blocks, of memory. Each is told apart by what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.inference.test_formats_memory import write

pytestmark = pytest.mark.slow

SLACK_BYTES = 4 << 20

# A model of 90 MB with a pool of 50, used whole, in a process of its own: nothing else makes it larger.
PROGRAM = """
import json, sys, threading
import numpy as np
from inference.config import EngineConfig
from inference.engine.opened_model import open_model
from inference.engine.worker import Worker
from inference.types import FinishedEvent, Request, SamplingParams, TokenEvent

def resident():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024

NUM_PROMPTS, NUM_TOKENS = 8, 120
config = EngineConfig(pool_tokens=NUM_PROMPTS * 128, num_threads=1, kernels="numpy")
worker = Worker(lambda name: open_model(sys.argv[1], config), max_bytes=1 << 31)
worker.start()
told = {}

def note(when):
    if when in told:
        return
    stats = worker.stats("m")
    told[when] = {"resident": resident(), "used": stats.num_blocks_used, "cached": stats.num_blocks_cached,
                  "free": stats.num_blocks_free, "reused": stats.num_reused_ram}

def ask(seed, on_token=lambda: None):
    ended = threading.Event()
    def hear(event):  # on the worker's thread
        if isinstance(event, TokenEvent):
            on_token()
        if isinstance(event, FinishedEvent):
            ended.set()
    ids = np.random.default_rng(seed).integers(3, 50, NUM_TOKENS).astype(np.int32)
    params = SamplingParams(temperature=0.0, max_tokens=3)
    worker.submit("m", Request("r", ids, params, tags=(f"t{seed}",)), hear)
    assert ended.wait(120)
    worker._call(lambda: None)

ask(0)  # whatever is made once
worker.unload("m")
told["unloaded before"] = {"resident": resident()}
for seed in range(NUM_PROMPTS):
    ask(seed)
note("full")
ask(NUM_PROMPTS - 1, lambda: note("answering"))
note("ended")
for seed in range(1, NUM_PROMPTS):
    ask(seed)
note("after hits")
for seed in range(NUM_PROMPTS):
    worker.purge(f"t{seed}")
worker._call(lambda: None)
note("purged")
info = worker.model("m").info
told["sizes"] = {"pool": info.pool_bytes, "model": info.memory_bytes}
worker.unload("m")
told["unloaded"] = {"resident": resident()}
assert worker.shutdown(20)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """What the pool and the system said at each moment."""
    path = write(tmp_path_factory.mktemp("levels"), "GGUF F32")
    command = [sys.executable, "-c", PROGRAM, str(path)]
    ran = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=300)
    found: dict[str, dict[str, int]] = json.loads(ran.stdout)
    return found


def resident(told: dict[str, dict[str, int]], when: str) -> int:
    return told[when]["resident"]


def test_a_reply_that_ends_gives_back_references_and_no_memory(told: dict[str, dict[str, int]]) -> None:
    assert told["answering"]["used"] > 0
    assert told["ended"]["used"] == 0
    assert told["ended"]["cached"] >= told["answering"]["cached"] + told["answering"]["used"] - 1
    assert resident(told, "ended") >= resident(told, "answering") - SLACK_BYTES


def test_memory_does_not_rise_on_hits(told: dict[str, dict[str, int]]) -> None:
    assert told["after hits"]["reused"] - told["ended"]["reused"] > 500
    assert abs(resident(told, "after hits") - resident(told, "full")) < SLACK_BYTES


def test_the_pool_uses_its_blocks_again_and_keeps_their_memory(told: dict[str, dict[str, int]]) -> None:
    assert told["after hits"]["cached"] > told["purged"]["cached"] == 0
    assert told["purged"]["free"] == told["full"]["cached"] + told["full"]["free"]
    assert resident(told, "purged") >= resident(told, "full") - SLACK_BYTES


def test_unloading_gives_the_memory_of_weights_and_pool_back_to_the_system(told: dict[str, dict[str, int]]) -> None:
    freed = resident(told, "purged") - resident(told, "unloaded")
    assert told["sizes"]["pool"] > 5 * SLACK_BYTES
    assert freed > told["sizes"]["model"] - SLACK_BYTES
    assert abs(resident(told, "unloaded") - resident(told, "unloaded before")) < 3 * SLACK_BYTES
