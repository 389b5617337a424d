"""A worker with more models than memory, under requests, cancellations, unloadings and failed loads in any order.

Driven by hand, without its thread: every order can be played again. Whoever asks is answered as by the model alone, is
told of a failure of his model, or has taken his request back; and when nobody is left, nothing is.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference.engine.llm_engine import LLMEngine
from inference.engine.model_hub import Slot
from inference.engine.worker import Worker
from inference.errors import EngineStopped, ModelBusy, ModelTooLarge, QueueFull
from inference.types import Event, FinishedEvent, FinishReason, Rank, Request, TokenEvent
from tests.examples import examples
from tests.inference.fake_models import make_worker
from tests.inference.fakes import expected_ids, make_engine, make_request

NAMES = "abc"
TOO_LARGE = "d"
MAX_RUNNING, MAX_WAITING = 2, 3
MAX_TOKENS = 9
PROBLEM = "the file is damaged"


@pytest.fixture(autouse=True, scope="module")
def _small_collections() -> Iterator[None]:
    """A worker collects garbage whenever a model leaves, some thousand times here: of what the tests before have made
    each time, unless that is put aside."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class HeldLoader:
    """In place of the thread that reads a model: it is there when the test says so."""

    def __init__(self, load: Any) -> None:
        self._load_engine = load
        self.job: tuple[Any, dict[str, Any]] | None = None

    def begin(self, opened: Any, **calls: Any) -> None:
        assert self.job is None, "one at a time"
        self.job = opened, calls

    def progress(self, fraction: float) -> None:
        assert self.job is not None
        self.job[1]["on_progress"](fraction)

    def end(self, problem: str = "") -> None:
        assert self.job is not None
        (opened, calls), self.job = self.job, None
        if problem:
            calls["on_failed"](problem)
        else:
            calls["on_loaded"](self._load_engine(opened, on_progress=None, run_kernels=None))


class HubMachine(RuleBasedStateMachine):
    @initialize(
        sizes=st.tuples(*[st.integers(1, 4)] * len(NAMES)),
        has_one_size=st.booleans(),
        more=st.integers(0, 8),
    )
    def build(self, sizes: tuple[int, ...], has_one_size: bool, more: int) -> None:
        sizes = (3,) * len(NAMES) if has_one_size else sizes
        max_bytes = min(max(sizes) + more, sum(sizes))
        models = dict.fromkeys((*NAMES, TOO_LARGE), self.engine)
        known = {**dict(zip(NAMES, sizes, strict=True)), TOO_LARGE: max_bytes + 1}
        config = self.engine(None, None).config
        self.worker: Worker = make_worker(models, max_bytes=max_bytes, sizes=known, config=config)
        self.hub = self.worker._hub
        self.loader = self.worker._loader = HeldLoader(self.worker._loader._load_engine)  # type: ignore[assignment]
        self.worker._clock = partial(next, map(float, count()))
        self.hub._end, self.end_work = self.leave, self.hub._end
        self.asked: dict[str, tuple[str, Request]] = {}
        self.ids: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason] = {}
        self.taken_back: set[str] = set()
        self.may_fail: set[str] = set()
        self.head = ""  # who waits for room, and the turns that ran when that began
        self.running_then: set[str] = set()

    def engine(self, on_progress: Any, run_kernels: Any) -> LLMEngine:
        return make_engine(max_running=MAX_RUNNING, max_waiting=MAX_WAITING)

    def leave(self, slot: Slot) -> None:
        """A model is about to leave, by itself or because it is told to."""
        assert slot.engine is not None
        assert slot.engine.num_turns == 0, "nobody who answers is sent away"
        if not self.is_told:
            others = [
                other for other in self.hub._turns if other is not slot and not other.is_urgent and not other.held
            ]
            stay = [other.name for other in others if other.memory_bytes >= slot.memory_bytes]
            older = [name for name in stay if self.hub.slots[name].used_at < slot.used_at or slot.held]
            assert not older, f"{slot.name} leaves, {older} were used longer ago"
        self.end_work(slot)

    is_told = False

    @rule(
        name=st.sampled_from(NAMES),
        prompt=st.text(alphabet="ab", min_size=1, max_size=20),
        max_tokens=st.integers(1, MAX_TOKENS),
        fields=st.sampled_from([{}, {}, {}, {"priority": 1}, {"is_prefill_only": True}]),
    )
    def ask(self, name: str, prompt: str, max_tokens: int, fields: dict[str, Any]) -> None:
        request = make_request(f"r{len(self.asked)}", prompt, max_tokens=max_tokens, **fields)
        num_live = sum(self.asked[live][1].rank == request.rank for live in self.live())
        num_places = MAX_RUNNING + (MAX_WAITING if request.rank == Rank.TURN else 0)
        self.ids[request.request_id] = []
        try:
            self.worker.submit(name, request, self.take)
        except QueueFull:
            assert num_live >= num_places
        except EngineStopped:
            assert request.rank != Rank.TURN
            assert self.worker.model(name).state not in ("ready", "loading")
        else:
            assert num_live < num_places
            self.asked[request.request_id] = (name, request)
        self.pump()

    @rule()
    def ask_for_what_never_fits(self) -> None:
        before = self.worker._accepted.copy()
        for refused in (self.worker.open, lambda name: self.worker.submit(name, make_request("x", "a"), self.take)):
            with pytest.raises(ModelTooLarge) as caught:
                refused(TOO_LARGE)
            assert (caught.value.num_bytes, caught.value.max_bytes) == (self.hub.max_bytes + 1, self.hub.max_bytes)
        assert self.worker._accepted == before
        assert TOO_LARGE not in self.hub.slots

    @rule(num=st.integers(1, 6))
    def step(self, num: int) -> None:
        for _ in range(num):
            self.worker._step()
            self.pump()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.asked)))
        self.taken_back.add(request_id)
        self.worker.cancel(request_id)
        self.pump()

    @precondition(lambda self: self.loader.job)
    @rule(fraction=st.floats(0, 1))
    def read_further(self, fraction: float) -> None:
        self.loader.progress(fraction)
        self.pump()

    @precondition(lambda self: self.loader.job)
    @rule()
    def read_whole(self) -> None:
        self.loader.end()
        self.pump()

    @precondition(lambda self: self.loader.job)
    @rule()
    def read_in_vain(self) -> None:
        assert self.loader.job is not None
        name = self.loader.job[0].name
        self.may_fail |= {live for live in self.live() if self.asked[live][0] == name}
        self.loader.end(PROBLEM)
        self.pump()
        assert self.worker.model(name).num_requests == 0

    @rule(name=st.sampled_from(NAMES))
    def load(self, name: str) -> None:
        self.worker._want(self.worker.open(name), name)

    @rule(name=st.sampled_from(NAMES))
    def load_if_free(self, name: str) -> None:
        before = self.states()
        is_free = self.worker._want_if_free(self.worker.open(name), name)
        assert is_free or self.states() == before
        assert all(self.states()[other] == state for other, state in before.items() if other != name)

    @rule(name=st.sampled_from(NAMES))
    def unload(self, name: str) -> None:
        slot = self.hub.slot(name)
        num_needed = sum(
            self.asked[live][0] == name and (self.asked[live][1].rank == Rank.TURN or live in slot.held)
            for live in self.live() - self.taken_back
        )
        self.is_told = True
        if num_needed:
            with pytest.raises(ModelBusy) as caught:
                self.worker._unload(name)
            assert caught.value.num_requests == num_needed
        else:
            self.worker._unload(name)
            assert slot.engine is None
        self.is_told = False

    def pump(self) -> None:
        """What the thread does between two steps."""
        self.worker._run_commands(wait_s=0.0)

    def take(self, event: Event) -> None:
        request_id = event.request_id
        assert request_id not in self.ends, "an event after the end"
        if isinstance(event, TokenEvent):
            self.ids[request_id] += event.token_ids
        elif isinstance(event, FinishedEvent):
            self.ends[request_id] = event.finish_reason
            if event.token_ids is not None:
                self.ids[request_id] = list(event.token_ids)
            self.check_end(event)

    def check_end(self, event: FinishedEvent) -> None:
        request = self.asked[event.request_id][1]
        ids, expected = self.ids[event.request_id], expected_ids(request)
        if event.finish_reason == FinishReason.CANCELLED:
            assert event.request_id in self.taken_back or request.rank != Rank.TURN
            assert ids == expected[: len(ids)]
        elif event.finish_reason == FinishReason.ERROR:
            assert event.request_id in self.may_fail
            assert event.error == PROBLEM
        elif request.is_prefill_only:
            assert event.finish_reason == FinishReason.PREFILLED
        else:
            assert (event.finish_reason, ids) == (FinishReason.LENGTH, expected)

    def states(self) -> dict[str, str]:
        return {name: self.worker.model(name).state for name in NAMES}

    def live(self) -> set[str]:
        return self.asked.keys() - self.ends.keys()

    def turns_in_engines(self) -> set[str]:
        return {
            live
            for live in self.live()
            if self.asked[live][1].rank == Rank.TURN and live not in self.hub.slot(self.asked[live][0]).held
        }

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "worker"):
            return
        slots = self.hub.slots
        assert self.worker._accepted.keys() == self.live()
        assert self.hub.used_bytes <= self.hub.max_bytes
        assert self.worker.loaded == sorted(slot.name for slot in self.hub._turns)
        loading = [slot.name for slot in slots.values() if slot.state == "loading"]
        assert loading == ([self.loader.job[0].name] if self.loader.job else [])
        for slot in slots.values():
            assert (slot.engine is not None) == (slot.state == "ready")
            assert (slot.memory_bytes > 0) == (slot.state in ("loading", "ready"))
            assert (slot.opened is not None) == (slot.state in ("waiting", "loading", "ready"))
            turns = [live for live in slot.held if self.asked[live][1].rank == Rank.TURN]
            assert not turns or slot.name in self.hub.wanted or slot.state == "loading", "held for ever"
            assert slot.held.keys() <= self.live()

    @invariant()
    def who_waits_for_room_waits_for_what_ran_then(self) -> None:
        if not hasattr(self, "worker"):
            return
        head = self.hub.wanted[0] if self.hub.wanted and not self.loader.job else ""
        if head != self.head:
            self.head, self.running_then = head, self.turns_in_engines()
        leaving = [slot for slot in self.hub._turns if slot.name in self.hub._leaving]
        is_reporting = any(slot.is_urgent and slot.engine and not slot.engine.num_turns for slot in leaving)
        is_answering = bool(self.running_then & self.turns_in_engines())
        assert not head or is_answering or is_reporting, f"{head} waits for nobody who ran then"

    def teardown(self) -> None:
        if not hasattr(self, "worker"):
            return
        for _ in range(1000):
            if not self.live() and not self.hub.wanted and not self.loader.job:
                break
            self.step(1)
            self.who_waits_for_room_waits_for_what_ran_then()
            if self.loader.job:
                self.read_whole()
        assert not self.live()
        self.books_agree()
        for name in NAMES:
            self.unload(name)
        assert self.hub.used_bytes == 0
        assert not self.hub.engines
        assert not self.worker._accepted


TestHubMachine = HubMachine.TestCase
TestHubMachine.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)


def test_two_busy_models_do_not_take_turns_in_staying() -> None:
    """Which of two that answer was used longest ago changes with every step. It must not change who makes room: each
    would be fed while it is the other's turn to leave."""
    machine = HubMachine()
    machine.build(sizes=(3, 3, 3), has_one_size=True, more=3)
    for name in "ab":
        machine.load(name)
        machine.read_whole()
        machine.ask(name, "a", MAX_TOKENS, {})
    machine.step(2)
    machine.ask("c", "a", 1, {})
    for _ in range(4 * MAX_TOKENS):
        leaving = "".join(machine.hub._leaving)
        if not leaving:
            break
        if machine.hub._turns[-1].name == leaving and machine.worker.model(leaving).num_requests == 1:
            machine.ask(leaving, "b", MAX_TOKENS, {})
        machine.step(1)
        machine.who_waits_for_room_waits_for_what_ran_then()
    assert machine.worker.model("c").state == "loading"
    machine.teardown()


def test_what_waits_for_a_model_that_may_stay_is_handed_to_it() -> None:
    """It was to leave, for somebody who has given up; the next one wants its place at once."""
    machine = HubMachine()
    machine.build(sizes=(1, 1, 1), has_one_size=True, more=0)
    machine.ask("c", "a", 1, {})
    machine.read_whole()
    machine.ask("b", "a", 1, {})  # c is to leave
    machine.ask("c", "a", 1, {})
    machine.ask("a", "a", 1, {})
    machine.taken_back.add("r1")
    machine.worker.cancel("r1")
    machine.pump()
    machine.books_agree()
    machine.teardown()
    assert machine.ends["r2"] == machine.ends["r3"] == FinishReason.LENGTH


def test_a_place_that_is_given_back_goes_to_who_waits_for_it() -> None:
    """The model that was to leave has not told yet that its last request was taken back, and never will."""
    state = HubMachine()
    try:
        state.build(sizes=(1, 1, 1), has_one_size=False, more=0)
        state.ask(fields={}, max_tokens=1, name="a", prompt="a")
        state.read_whole()
        state.load(name="b")
        (request_id,) = state.asked
        state.taken_back.add(request_id)
        state.worker.cancel(request_id)
        state.pump()
        assert not state.loader.job
        state.unload(name="a")
        assert state.loader.job
        assert state.loader.job[0].name == "b"
    finally:
        state.teardown()
