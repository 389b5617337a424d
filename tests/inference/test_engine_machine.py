"""LLMEngine under random requests, cancellations, purges and failures.

Every answer is that of a model without an engine, every request ends once, and the pool is empty when nobody is left.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference.errors import QueueFull
from inference.types import FinishedEvent, FinishReason, Rank, TokenEvent
from tests.examples import examples
from tests.inference.fakes import MarkerModel, expected_ids, make_engine, make_request, markers_of

SYSTEM = b"system: be kind. "
WINDOW = 56
MAX_WAITING = 3


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, object] = {}
        self.ids: dict[str, list[int]] = {}
        self.ends: dict[str, FinishedEvent] = {}
        self.num_tokens = 0

    @initialize(
        is_enabled=st.booleans(),
        max_batch_tokens=st.sampled_from([1, 4, 9, 64]),
        max_running=st.integers(1, 4),
        block_size=st.sampled_from([1, 4, 8]),
    )
    def build(self, is_enabled, max_batch_tokens, max_running, block_size):
        self.model = MarkerModel()
        self.engine = make_engine(
            self.model,
            pool_tokens=WINDOW,
            block_size=block_size,
            max_batch_tokens=max_batch_tokens,
            max_running=max_running,
            max_waiting=MAX_WAITING,
            is_prefix_cache_enabled=is_enabled,
        )

    @rule(
        tail=st.text(alphabet="ab", min_size=1, max_size=20),
        has_system=st.booleans(),
        salt=st.sampled_from([b"alice", b"bob"]),
        tag=st.sampled_from(["x", "y", ""]),
        max_tokens=st.integers(1, 20),
        temperature=st.sampled_from([0.0, 1.0]),
        is_low_retention=st.booleans(),
        num_lasting_tokens=st.sampled_from([0, 9, 20]),
        is_side=st.sampled_from([False, False, True]),
        is_prefill_only=st.sampled_from([False, False, True]),
        priority=st.sampled_from([0, 0, 1]),
    )
    def submit(self, **fields):
        self.add(**fields)

    def add(self, tail, has_system, salt, tag, **fields):
        name = f"r{len(self.requests)}"
        head = SYSTEM if has_system else b""
        request = make_request(
            name,
            head + tail.encode(),
            salt=salt,
            num_public_tokens=len(head),
            tags=(tag,) if tag else (),
            seed=3,
            **fields,
        )
        try:
            self.engine.add_request(request)
        except QueueFull:
            assert request.rank != Rank.TURN or self.engine.stats().num_waiting >= MAX_WAITING
            return
        self.requests[name] = request
        self.ids[name] = []

    @rule(num=st.integers(1, 5))
    def step(self, num):
        for _ in range(num):
            if not self.engine.has_work:
                return
            before = self.model.num_computed_tokens, len(self.ends), self.num_tokens
            is_alive = len(self.ends) < len(self.requests)
            self.take(self.engine.step())
            assert not is_alive or (self.model.num_computed_tokens, len(self.ends), self.num_tokens) != before

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data):
        self.engine.cancel(data.draw(st.sampled_from(sorted(self.requests))))

    @rule(tag=st.sampled_from(["x", "y"]))
    def purge(self, tag):
        self.engine.purge(tag)

    @rule()
    def clear_cache(self):
        self.engine.clear_cache()

    @precondition(lambda self: self.engine.has_work)
    @rule()
    def fail(self):
        self.model.error = RuntimeError("boom")
        self.take(self.engine.step())
        self.model.error = None

    def take(self, events):
        for event in events:
            name = event.request_id
            assert name not in self.ends, "an event after the end"
            if isinstance(event, TokenEvent):
                self.num_tokens += 1
                self.ids[name] += event.token_ids
            elif isinstance(event, FinishedEvent):
                self.ends[name] = event
                assert list(event.token_ids[: len(self.ids[name])]) == self.ids[name]
                self.ids[name] = list(event.token_ids)
                self.check_end(name, event)

    def check_end(self, name, end):
        expected = expected_ids(self.requests[name], max_model_len=self.engine.max_model_len)
        stats = end.stats
        assert stats.num_reused_ram + stats.num_reused_disk + stats.num_computed == stats.num_prompt_tokens
        assert stats.num_prompt_tokens in (0, len(self.requests[name].prompt_ids))
        assert stats.num_generated == len(self.ids[name])
        if self.requests[name].is_prefill_only:
            assert end.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR, FinishReason.PREFILLED)
            assert self.ids[name] == []
        elif end.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR):
            assert self.ids[name] == expected[: len(self.ids[name])]
        else:
            assert end.finish_reason == FinishReason.LENGTH
            assert self.ids[name] == expected

    @invariant()
    def books_agree(self):
        if not hasattr(self, "engine"):
            return
        self.engine.check_integrity()
        stats = self.engine.stats()
        assert stats.num_blocks_used + stats.num_blocks_cached + stats.num_blocks_free == stats.num_blocks
        assert stats.num_running + stats.num_waiting <= 3 * self.engine.config.max_running + MAX_WAITING
        assert stats.num_reused_ram + stats.num_reused_disk + stats.num_computed == stats.num_prompt_tokens
        counts = stats.cache.since_start
        assert counts.num_tokens_hit <= counts.num_tokens

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        num_steps = 0
        while self.engine.has_work:
            self.take(self.engine.step())
            num_steps += 1
            assert num_steps < 3000, "it never ends"
        self.engine.check_integrity()
        assert self.ends.keys() == self.requests.keys()
        assert self.engine.stats().num_blocks_used == 0
        self.engine.purge("x")
        self.engine.purge("y")
        rows = {int(row) for row in self.engine.cache._storage.rows.flat}
        tagged = [r for r in self.requests.values() if r.tags]
        others = [r for r in self.requests.values() if not r.tags]
        kept = set(markers_of(SYSTEM))
        for request in others:
            kept |= set(markers_of([*request.prompt_ids, *self.ids[request.request_id]]))
        for request in tagged:
            markers = set(markers_of([*request.prompt_ids, *self.ids[request.request_id]]))
            assert not rows & (markers - kept), "rows of a purged conversation are still in the pool"
        self.engine.clear_cache()
        assert not self.engine.cache._storage.rows.any()


EngineMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestEngine = EngineMachine.TestCase
