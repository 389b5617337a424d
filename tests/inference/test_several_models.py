"""Real files behind one worker: families side by side, sizes known beforehand, memory that goes back to the system."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from inference.config import EngineConfig
from inference.engine.model_loader import load_opened
from inference.engine.opened_model import open_model
from inference.engine.worker import Worker
from inference.errors import ModelBusy
from inference.types import FinishReason, Request, SamplingParams
from tests.conftest import ROOT
from tests.inference.fake_models import Receiver
from tests.inference.fakes import finished
from tests.inference.row_invariance import FIXTURES
from tests.inference.test_formats_memory import write
from tests.patience import PATIENCE_S

CONFIG = EngineConfig(pool_tokens=2048, num_threads=2)
FAMILIES = {path.name: path for path in FIXTURES if path.name in ("llama", "qwen3", "gemma3_text")}


def request_of(name: str, request_id: str) -> tuple[Request, list[int]]:
    """A prompt, and the greedy ids that the reference has for it."""
    with np.load(FAMILIES[name] / "expected.npz") as expected:
        ids, greedy = expected["ids_0"], expected["greedy_0"].tolist()
    sampling = SamplingParams(temperature=0.0, max_tokens=len(greedy))
    return Request(request_id, ids.astype(np.int32), sampling), greedy


def test_families_side_by_side_answer_as_each_does_alone() -> None:
    worker = Worker(lambda name: open_model(FAMILIES[name], CONFIG), max_bytes=1 << 30)
    worker.start()
    asked = []
    for n in range(2):
        for name in FAMILIES:
            request, greedy = request_of(name, f"{name} {n}")
            receiver = Receiver()
            worker.submit(name, request, receiver)
            asked.append((receiver, greedy))
    for receiver, greedy in asked:
        assert list(finished(receiver.wait()).token_ids or ()) == greedy
    assert all(worker.model(name).state == "ready" for name in FAMILIES)
    assert worker.shutdown(PATIENCE_S)


def test_three_models_in_the_room_of_two_answer_as_each_does_alone() -> None:
    """Several people ask, change their minds and have models unloaded at once, while each answer drives another out."""
    sizes = {name: open_model(path, CONFIG).memory_bytes for name, path in FAMILIES.items()}
    max_bytes = sum(sizes.values()) - min(sizes.values())
    worker = Worker(lambda name: open_model(FAMILIES[name], CONFIG), max_bytes=max_bytes)
    worker.start()
    too_much: list[int] = []

    def person(number: int) -> None:
        rng = random.Random(number)
        for n in range(6):
            name = rng.choice(sorted(FAMILIES))
            request, greedy = request_of(name, f"{number} {n}")
            receiver = Receiver()
            worker.submit(name, request, receiver)
            is_impatient = rng.random() < 0.3
            if is_impatient:
                worker.cancel(request.request_id)
            with suppress(ModelBusy):
                worker.unload(rng.choice(sorted(FAMILIES)))
            end = finished(receiver.wait())
            ids = list(end.token_ids or ())
            assert ids == greedy if end.finish_reason != FinishReason.CANCELLED else ids == greedy[: len(ids)]
            assert is_impatient or end.finish_reason == FinishReason.LENGTH
            if worker.used_bytes > max_bytes:
                too_much.append(worker.used_bytes)

    with ThreadPoolExecutor(4) as people:
        for asked in [people.submit(person, number) for number in range(4)]:
            asked.result(PATIENCE_S)
    assert not too_much
    for name in FAMILIES:
        worker.unload(name)
    assert (worker.used_bytes, worker.loaded, worker._accepted) == (0, [], {})
    assert not any(slot.held or slot.opened for slot in worker._hub.slots.values())
    assert worker.shutdown(PATIENCE_S)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_what_a_model_takes_is_known_before_it_is_loaded(path: Path) -> None:
    opened = open_model(path, CONFIG)
    engine = load_opened(opened)
    assert opened.pool_bytes == engine.info.pool_bytes == engine.stats().pool_bytes
    assert opened.weight_bytes == pytest.approx(engine.info.weight_bytes, rel=0.1)
    assert opened.max_model_len == engine.max_model_len
    assert opened.chat_template.fingerprint == engine.info.tokenizer_fingerprint


# A model of some 50 MB and its pool, loaded and unloaded: in a process of its own, which nothing else makes larger.
PROGRAM = """
import sys, threading
from inference.config import EngineConfig
from inference.engine.opened_model import open_model
from inference.engine.worker import Worker
from inference.types import FinishedEvent, Request, SamplingParams
import numpy as np

def resident():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024

config = EngineConfig(pool_tokens=128, num_threads=2)
worker = Worker(lambda name: open_model(sys.argv[1], config), max_bytes=1 << 30)
worker.start()

def ask(name):
    done = threading.Event()
    ids = np.arange(100, dtype=np.int32) % 7
    request = Request(name, ids, SamplingParams(temperature=0.0, max_tokens=2))
    worker.submit("m", request, lambda event: done.set() if isinstance(event, FinishedEvent) else None)
    assert done.wait(60)
    worker._call(lambda: None)

ask("warm")
worker.unload("m")
before = resident()
ask("again")
loaded, size = resident(), worker.model("m").memory_bytes
ask("hit")
after_hit = resident()
worker.unload("m")
print(before, loaded, after_hit, resident(), size)
"""


def test_an_unloaded_model_gives_its_memory_back_to_the_system(tmp_path: Path) -> None:
    path = write(tmp_path, "GGUF F32")
    command = [sys.executable, "-c", PROGRAM, str(path)]
    ran = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120)
    before, loaded, after_hit, after, size = map(int, ran.stdout.split())
    assert loaded - before > 0.7 * size  # it was there
    assert abs(after_hit - loaded) < 0.1 * size  # a hit makes nothing larger, and the end of a reply nothing smaller
    assert after - before < 0.15 * size
