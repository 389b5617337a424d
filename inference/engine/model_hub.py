"""ModelHub: which models are loaded, which are wanted, and which leave to make room for them.

Decides and keeps the books; reads no file and starts no thread: `begin` is called for a model that is to be loaded, and
whoever loads it answers with loaded() or failed(). One owner makes all calls, but for reading slots.

All loaded models together take at most max_bytes. What is wanted is loaded one after the other, in the order of asking.
To make room the models leave that were used longest ago, idle ones before others, and none with running or waiting
requests: such a one takes nothing new, answers what it has, and then goes. So whoever waits for room waits for the
replies that run now, and not for those that others ask for meanwhile. What is no turn keeps no model: it is ended
(`end`) when that leaves.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from inference.engine.llm_engine import LLMEngine
from inference.engine.opened_model import OpenedModel
from inference.errors import ModelBusy, ModelTooLarge
from inference.types import EngineStats, ModelInfo, Request

UNLOAD_S = 1.0  # for writing cached KV to disk when a model leaves: mostly all of it is there already

ModelState = Literal["unloaded", "waiting", "loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What a person is told about a model. info is that of the last time it was loaded, None before the first."""

    name: str
    state: ModelState = "unloaded"
    progress: float = 0.0  # of loading, 0 to 1
    error: str = ""  # why it failed, a sentence
    memory_bytes: int = 0  # that it takes
    info: ModelInfo | None = None
    num_requests: int = 0  # running, or waiting for it


@dataclass(slots=True, eq=False)
class Slot:
    """A model, loaded or not. The owner writes; others may read single attributes."""

    name: str
    state: ModelState = "unloaded"
    progress: float = 0.0  # of loading, 0 to 1
    error: str = ""  # why it failed
    opened: OpenedModel | None = None  # while it is wanted, loading or ready
    engine: LLMEngine | None = None  # while it is ready
    info: ModelInfo | None = None  # of the engine, or of the last one
    memory_bytes: int = 0  # that it takes while it is loading or ready
    used_at: float = 0.0
    held: dict[str, tuple[Request, float]] = field(default_factory=dict)  # id -> request that waits for it, since when
    missed: list[Callable[[LLMEngine], object]] = field(default_factory=list)  # said to all while it was loading

    @property
    def is_busy(self) -> bool:
        return self.engine is not None and self.engine.has_work

    @property
    def is_urgent(self) -> bool:
        """Busy with a turn, or with something to report."""
        return self.engine is not None and self.engine.has_urgent_work

    @property
    def num_requests(self) -> int:
        engine = self.engine
        stats = engine.stats() if engine is not None else EngineStats()
        return len(self.held) + stats.num_running + stats.num_waiting

    @property
    def status(self) -> ModelStatus:
        return ModelStatus(
            self.name, self.state, self.progress, self.error, self.memory_bytes, self.info, self.num_requests
        )


class ModelHub:
    """The books. A slot stays for good once its model has been asked for."""

    def __init__(self, max_bytes: int, *, begin: Callable[[Slot], None], end: Callable[[Slot], None]) -> None:
        self.max_bytes = max_bytes
        self.slots: dict[str, Slot] = {}  # replaced, never changed: any thread may look
        self.wanted: list[str] = []  # not loaded yet, the next one first
        self._lock = threading.Lock()
        self._begin = begin
        self._end = end  # what a model that is about to leave still computes, for nobody who waits
        self._loading: Slot | None = None
        self._leaving: frozenset[str] = frozenset()
        self._leaving_for = ""  # the model that they make room for
        self._turns: deque[Slot] = deque()  # the ready ones, the one that was run last at the end

    def slot(self, name: str) -> Slot:
        """The one of this name. Safe from any thread."""
        with self._lock:
            if name not in self.slots:
                self.slots = {**self.slots, name: Slot(name)}
            return self.slots[name]

    @property
    def engines(self) -> list[LLMEngine]:
        """Those of the ready models."""
        return [slot.engine for slot in self.slots.values() if slot.engine is not None]

    @property
    def used_bytes(self) -> int:
        """Memory of the models that are loaded or being loaded."""
        return sum(slot.memory_bytes for slot in self.slots.values() if slot.state in ("loading", "ready"))

    def takes_requests(self, slot: Slot) -> bool:
        """Whether a request can go into the engine now; else it is to be held."""
        return slot.engine is not None and slot.name not in self._leaving

    def want(self, opened: OpenedModel, name: str) -> None:
        """Have a model loaded when there is room. Raises ModelTooLarge when there can never be."""
        check_fits(name, opened.memory_bytes, self.max_bytes)
        slot = self.slot(name)
        if slot.name in self.wanted or slot.state == "loading" or self.takes_requests(slot):
            return
        self.wanted.append(name)
        slot.opened = opened
        if slot.engine is None:
            slot.state, slot.progress, slot.error = "waiting", 0.0, ""

    def is_free_for(self, opened: OpenedModel, name: str) -> bool:
        """Whether it is there, or coming, or could come without another one leaving or waiting for it."""
        slot = self.slot(name)
        if slot.state in ("loading", "waiting") or slot.engine is not None:
            return name not in self._leaving
        wanted = [self.slots[other].opened for other in self.wanted]
        promised = sum(each.memory_bytes for each in wanted if each is not None)
        return self.used_bytes + promised + opened.memory_bytes <= self.max_bytes

    def forget(self, slot: Slot) -> None:
        """Nobody waits for the model any more; one that is being loaded already is loaded all the same."""
        if slot.name in self.wanted and not slot.held:
            self.wanted.remove(slot.name)
            if slot.state == "waiting":
                slot.state, slot.opened = "unloaded", None

    def arrange(self) -> list[Slot]:
        """Begin to load what is wanted next, as far as there is room.

        Returns the ready models with held requests, which are to be handed to them; then there may be more to arrange.
        """
        leaving_before = self._leaving if self.wanted[:1] == [self._leaving_for] else frozenset()
        self._leaving = frozenset()
        while self.wanted and self.slots[self.wanted[0]].engine is not None:  # it was to leave, and may stay
            slot = self.slots[self.wanted.pop(0)]
            if slot.held:  # they come before whoever wants its place next
                return [slot]
        if self.wanted and self._loading is None:
            slot = self.slots[self.wanted[0]]
            assert slot.opened is not None, "what is wanted has been opened"
            need = slot.opened.memory_bytes
            leavers = self._choose_leavers(need, leaving_before)
            if any(leaver.is_urgent for leaver in leavers):
                self._leaving, self._leaving_for = frozenset(leaver.name for leaver in leavers), slot.name
                for leaver in leavers:
                    if leaver.engine is not None:  # nobody waits for a place until a title is written
                        leaver.engine.cancel_side_work()
            else:
                for leaver in leavers:
                    self._end(leaver)
                    self._remove(leaver)
                del self.wanted[0]
                self._loading, slot.state, slot.memory_bytes = slot, "loading", need
                self._begin(slot)
        return [slot for slot in self._turns if slot.held and self.takes_requests(slot)]

    def _choose_leavers(self, need: int, leaving_before: frozenset[str]) -> list[Slot]:
        """Who makes room for so many bytes: those who were to do so before, unless others can at once.

        Of several that answer, each step makes another one that was used longest ago. Chosen anew each time, all would
        be given new requests while another one is to leave, and none might ever be done.
        """
        missing = self.used_bytes + need - self.max_bytes
        leavers = choose_leavers(self._turns, missing)
        before = [slot for slot in self._turns if slot.name in leaving_before]
        is_enough = sum(slot.memory_bytes for slot in before) >= missing
        return before if is_enough and any(leaver.is_urgent for leaver in leavers) else leavers

    def loaded(self, slot: Slot, engine: LLMEngine, now: float) -> None:
        """The model is there; it has the size that it states."""
        self._loading = None
        missed, slot.missed = slot.missed, []
        for tell in missed:
            tell(engine)
        slot.engine, slot.info = engine, engine.info
        slot.memory_bytes = engine.info.memory_bytes
        slot.state, slot.progress, slot.used_at = "ready", 1.0, now
        self._turns.append(slot)

    def failed(self, slot: Slot, problem: str) -> None:
        """The model could not be loaded, or its engine can no longer be trusted."""
        if self._loading is slot:
            self._loading = None
        if slot.name in self.wanted:
            self.wanted.remove(slot.name)
        self._remove(slot, is_valid=False)
        slot.missed.clear()
        slot.state, slot.error = "failed", problem

    def unload(self, slot: Slot) -> None:
        """Let a loaded model go, with its pool. Raises ModelBusy while requests run with it or wait for it."""
        num_turns = len(slot.held) + (0 if slot.engine is None else slot.engine.num_turns)
        if num_turns:  # an end that was not reported yet is no reason to stay
            raise ModelBusy(name=slot.name, num_requests=num_turns)
        if slot.engine is not None:
            self._end(slot)
            self._remove(slot)

    def next_busy(self) -> Slot | None:
        """Whose turn it is to compute a step: of those that work, the model that has waited longest."""
        slot = next(iter(self.working), None)
        if slot is not None:
            self._turns.remove(slot)
            self._turns.append(slot)
        return slot

    @property
    def working(self) -> list[Slot]:
        """The models that compute by turns. What can wait, waits until no other model has anything else to do."""
        busy = [slot for slot in self._turns if slot.is_busy]
        return [slot for slot in busy if slot.is_urgent] or busy

    def idle(self) -> float | None:
        """Let the ready models do a little of what can wait. In how many seconds there is more; None: none for now."""
        waits = [slot.engine.idle() for slot in self._turns if slot.engine is not None]
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def tell_all(self, tell: Callable[[LLMEngine], object]) -> None:
        """Say something to every engine; to one that is being loaded as soon as it is there: it may have read from disk
        what this is about."""
        for slot in self.slots.values():
            if slot.engine is not None:
                tell(slot.engine)
            elif slot.state == "loading":
                slot.missed.append(tell)

    def close(self, timeout: float) -> None:
        """Let the ready models save what they keep on disk, for so many seconds in all."""
        deadline = time.monotonic() + timeout
        for slot in list(self._turns):
            self._remove(slot, max(0.0, deadline - time.monotonic()) / len(self._turns))

    def _remove(self, slot: Slot, timeout: float = UNLOAD_S, *, is_valid: bool = True) -> None:
        """Drop the engine; the model may be wanted again already."""
        if slot.engine is not None:
            slot.engine.close(timeout, is_valid=is_valid)
        is_wanted = slot.name in self.wanted
        slot.engine, slot.memory_bytes, slot.progress = None, 0, 0.0
        slot.state, slot.opened = ("waiting", slot.opened) if is_wanted else ("unloaded", None)
        if slot in self._turns:
            self._turns.remove(slot)


def choose_leavers(loaded: Iterable[Slot], missing_bytes: int) -> list[Slot]:
    """The models that leave so that missing_bytes more are free: idle ones first, then by last use, and none in vain.

    All of them when even that is not enough: whoever asks has seen to it that the wanted one fits alone.
    """
    leavers: list[Slot] = []
    for slot in sorted(loaded, key=lambda slot: (slot.is_urgent or bool(slot.held), slot.used_at)):
        if missing_bytes <= 0:
            break
        leavers.append(slot)
        missing_bytes -= slot.memory_bytes
    for slot in reversed(leavers.copy()):  # a large one that came late may have made a small one's leave needless
        if missing_bytes + slot.memory_bytes <= 0:
            leavers.remove(slot)
            missing_bytes += slot.memory_bytes
    return leavers


def check_fits(name: str, num_bytes: int, max_bytes: int) -> None:
    """Raise ModelTooLarge for a model that does not fit even alone."""
    if num_bytes > max_bytes:
        raise ModelTooLarge(name=name, num_bytes=num_bytes, max_bytes=max_bytes)
