"""LLMEngine with a folder for its KV: restarts, damage, eviction and hints, besides all that test_engine_machine does.

The markers in every block, restored ones included, decide every answer: one wrong row gives another text.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from inference.kvcache import kv_folder
from tests.examples import examples
from tests.inference.fakes import MarkerModel, make_engine
from tests.inference.test_engine_machine import MAX_WAITING, WINDOW, EngineMachine

BUDGET = 8 * 4096  # a few files: it is often short
TAILS = ("ab" * 3, "ab" * 6, "ab" * 10, "ab" * 6 + "bb", "abb")  # of conversations that go on, and that branch


class DiskMachine(EngineMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())

    @initialize(
        is_enabled=st.just(True),
        max_batch_tokens=st.sampled_from([4, 64]),
        max_running=st.integers(1, 3),
        block_size=st.sampled_from([4, 8]),
    )
    def build(self, is_enabled, max_batch_tokens, max_running, block_size):
        self.model = MarkerModel()
        self.options = {
            "block_size": block_size,
            "max_batch_tokens": max_batch_tokens,
            "max_running": max_running,
            "max_waiting": MAX_WAITING,
            "max_model_len": WINDOW,
            "is_prefix_cache_enabled": is_enabled,
            "kv_dir": self.folder,
            "kv_disk_bytes": BUDGET,
        }
        self.engine = make_engine(self.model, pool_tokens=WINDOW, **self.options)

    @rule(
        tail=st.sampled_from(TAILS),
        has_system=st.booleans(),
        salt=st.sampled_from([b"alice", b"alice", b"alice", b"bob"]),
        tag=st.sampled_from(["x", "y", ""]),
        max_tokens=st.integers(1, 6),
    )
    def serve(self, tail, has_system, salt, tag, max_tokens):
        """A whole request, alone, and the time after it."""
        self.add(tail, has_system, salt, tag, max_tokens=max_tokens)
        while self.engine.has_work:
            self.take(self.engine.step())
        self.idle()

    @rule()
    def idle(self):
        """Long enough for everything."""
        if not self.engine.has_work:
            self.engine.cache.flush(10.0)

    @rule(num_blocks=st.integers(0, 6), is_kind=st.booleans())
    def restart(self, num_blocks, is_kind):
        """With another pool, and with or without time to save what is cached."""
        self.engine.cancel_all()
        self.take(self.engine.step())
        self.engine.close(timeout=5.0 if is_kind else 0.0)
        self.engine = make_engine(self.model, pool_tokens=WINDOW + 8 * num_blocks, **self.options)
        assert self.engine.stats().cache.disk_problem == ""

    @rule()
    def forget_ram(self):
        self.engine.cache.forget_ram()

    @precondition(lambda self: any(self.folder.rglob("*.kv")))
    @rule(n=st.integers(0, 99), position=st.integers(0, 1 << 20), has_truncated=st.booleans())
    def damage(self, n, position, has_truncated):
        paths = sorted(self.folder.rglob("*.kv"), key=lambda path: path.stat().st_mtime_ns)
        path = paths[n % len(paths)]
        intact = path.read_bytes()
        position %= len(intact)
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged[:position] if has_truncated else damaged)

    def take(self, events):
        super().take(events)
        self.engine.cache._saver.wait_for_writer(10.0)  # whether it is quick must not decide what happens next

    @rule(tag=st.sampled_from(["x", "y"]), seconds=st.sampled_from([0.0, 60.0]))
    def protect(self, tag, seconds):
        self.engine.protect(tag, seconds)

    @rule(tag=st.sampled_from(["x", "y"]))
    def archive(self, tag):
        self.engine.archive(tag)

    @invariant()
    def files_keep_to_the_budget(self):
        if hasattr(self, "engine"):
            assert sum(summary.num_bytes for summary in kv_folder.survey(self.folder)) <= BUDGET

    def teardown(self):
        super().teardown()
        if hasattr(self, "engine"):
            self.engine.close(5.0)
            left = [segment.tags for segment in map(segment_of, self.folder.rglob("*.kv")) if segment is not None]
            assert not any("x" in tags or "y" in tags for tags in left)
        shutil.rmtree(self.folder)


def segment_of(path: Path):
    try:
        fd, segment = kv_folder.open_segment(path)
    except kv_folder.BadSegment:
        return None
    os.close(fd)
    return segment


DiskMachine.TestCase.settings = settings(max_examples=examples(250), stateful_step_count=30, deadline=None)
TestEngineOnDisk = DiskMachine.TestCase
