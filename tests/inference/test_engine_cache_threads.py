"""Many threads at one worker whose engine keeps its KV on disk: every answer is right, every request ends once."""

from __future__ import annotations

import random
import threading
from queue import SimpleQueue

import pytest

from inference.errors import EngineStopped, QueueFull
from inference.types import FinishedEvent, FinishReason
from tests.inference.fake_models import load_now, make_worker
from tests.inference.fakes import expected_ids, make_engine, make_request
from tests.patience import PATIENCE_S

NUM_THREADS = 4
NUM_REQUESTS = 40


class Client(threading.Thread):
    """Asks, cancels, purges and gives hints; keeps what it finds wrong."""

    def __init__(self, worker, seed: int) -> None:
        super().__init__()
        self.worker, self.rng, self.seed = worker, random.Random(seed), seed
        self.problems: list[str] = []
        self.reasons: set[FinishReason] = set()

    def run(self) -> None:
        for i in range(NUM_REQUESTS):
            self.ask(f"{self.seed}-{i}")
            tag = self.rng.choice("xy")
            match self.rng.randrange(4):
                case 0:
                    self.worker.purge(tag)
                case 1:
                    self.worker.protect(tag, 60.0)
                case 2:
                    self.worker.archive(tag)

    def ask(self, request_id: str) -> None:
        rng = self.rng
        request = make_request(
            request_id,
            "system: " + "ab" * rng.randint(1, 12),
            num_public_tokens=8,
            salt=rng.choice([b"alice", b"bob"]),
            tags=(rng.choice("xy"),),
            max_tokens=rng.randint(1, 8),
            is_prefill_only=rng.random() < 0.3,
            is_side=rng.random() < 0.3,
        )
        events: SimpleQueue = SimpleQueue()
        try:
            self.worker.submit("m", request, events.put)
        except QueueFull:
            return
        if rng.random() < 0.3:
            self.worker.cancel(request_id)
        while not isinstance(event := events.get(timeout=PATIENCE_S), FinishedEvent):
            pass
        stats, expected = event.stats, expected_ids(request)
        num_known = stats.num_reused_ram + stats.num_reused_disk + stats.num_computed
        if num_known not in (0, len(request.prompt_ids)) or num_known != stats.num_prompt_tokens:
            self.problems.append(f"{stats}")
        is_cut = event.finish_reason in (FinishReason.CANCELLED, FinishReason.PREFILLED)
        if list(event.token_ids) != (expected[: len(event.token_ids)] if is_cut else expected) or event.error:
            self.problems.append(f"{event} instead of {expected}")
        self.reasons.add(event.finish_reason)


@pytest.mark.parametrize("pool_tokens", [48, 512])
def test_many_threads_get_right_answers(tmp_path, pool_tokens):
    engine = make_engine(
        pool_tokens=pool_tokens, max_model_len=48, max_running=3, kv_dir=tmp_path, kv_disk_bytes=20 * 4096
    )
    worker = make_worker({"m": engine})
    worker.start()
    load_now(worker, "m")
    clients = [Client(worker, seed) for seed in range(NUM_THREADS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(PATIENCE_S)
        assert not client.is_alive(), "somebody waits for ever"
    assert worker.shutdown(PATIENCE_S)
    assert [problem for client in clients for problem in client.problems] == []
    assert set().union(*(client.reasons for client in clients)) >= {FinishReason.LENGTH, FinishReason.PREFILLED}
    assert worker.error == ""


def test_prefill_only_is_not_worth_loading_a_model(tmp_path):
    worker = make_worker({"m": make_engine()})
    worker.start()
    with pytest.raises(EngineStopped, match="m is not loaded"):
        worker.submit("m", make_request("w", "hello", is_prefill_only=True), lambda event: None)
    assert worker.shutdown(PATIENCE_S)


def test_idle_worker_writes_without_being_asked(tmp_path):
    engine = make_engine(kv_dir=tmp_path, kv_disk_bytes=1 << 20)
    worker = make_worker({"m": engine})
    worker.start()
    load_now(worker, "m")
    events: SimpleQueue = SimpleQueue()
    worker.submit("m", make_request("a", "hello world"), events.put)
    while not isinstance(events.get(timeout=PATIENCE_S), FinishedEvent):
        pass
    for _ in range(10_000):  # until it has become idle, and the writer has written
        worker._call(lambda: None)
        if any(tmp_path.rglob("*.kv")):
            break
    else:
        raise AssertionError("nothing has been written")
    worker.unload("m")
    again = make_engine(kv_dir=tmp_path, kv_disk_bytes=1 << 20)
    assert again.stats().cache.disk_problem == ""
    assert worker.shutdown(PATIENCE_S)
