"""Worker: the one thread that owns the engines. Requests go in from any thread, events come out on the worker's.

Engines with work compute by turns, a step each. A request for a model that is not loaded is accepted and waits for it;
models are read on a thread of their own, so that replies of others go on meanwhile (see model_hub for who has to make
room). Whatever ends the thread, every request that was accepted gets its FinishedEvent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeVar

from inference.engine.llm_engine import Clock, LLMEngine
from inference.engine.model_hub import ModelHub, ModelStatus, Slot, check_fits
from inference.engine.model_loader import LoadFn, ModelLoader, load_opened
from inference.engine.opened_model import ModelShelf, OpenedModel
from inference.engine.system_memory import give_back
from inference.errors import EngineStopped, InferenceError, QueueFull
from inference.kvcache.hints import RetentionHints
from inference.types import (
    EngineStats,
    Event,
    FinishedEvent,
    FinishReason,
    ProgressEvent,
    Rank,
    Request,
    RequestStats,
    Stage,
)

logger = logging.getLogger(__name__)

CLOSE_S = 0.3  # of the time for the end: the file that is being written then

State = Literal["running", "failed", "stopped"]
EventFn = Callable[[Event], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Accepted:
    slot: Slot
    on_event: EventFn
    rank: Rank


class Worker:
    """Runs until shutdown. state is "running", and ends in "stopped" (by shutdown) or "failed" (error says why).

    open_model: name -> the model without its weights; it may raise. max_bytes: what all loaded models may take, weights
    and pools.
    """

    def __init__(
        self,
        open_model: Callable[[str], OpenedModel],
        *,
        max_bytes: int,
        load: LoadFn = load_opened,
        clock: Clock = time.monotonic,
    ) -> None:
        self.state: State = "running"
        self.error = ""  # a sentence, "" while all is well
        self.max_bytes = max_bytes
        self._shelf = ModelShelf(open_model)
        self._loader = ModelLoader(load, run_kernels=self._call)
        self._clock = clock
        self._is_stopping = False
        self._stop_by = 0.0  # by time.monotonic()
        self._hub = ModelHub(max_bytes, begin=self._begin_load, end=self._end_work)
        self._hints = RetentionHints(clock)  # for models that are loaded later
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()  # run on the thread, between two steps
        self._accepted: dict[str, _Accepted] = {}  # requests that have not finished
        self._calls: set[Future[Any]] = set()
        self._lock = threading.Lock()  # over state, _accepted and _calls: nothing is accepted after the end
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    # --- models, from any thread --------------------------------------------------------------------------------------

    def open(self, name: str) -> OpenedModel:
        """The model without its weights. Blocking unless it is open. Raises what opening it does, and ModelTooLarge."""
        slot = self._hub.slots.get(name)
        opened = (slot.opened if slot is not None else None) or self._shelf.get(name)
        check_fits(name, opened.memory_bytes, self.max_bytes)
        return opened

    def load(self, name: str) -> None:
        """Have a model loaded when there is room. Blocking as open(). Raises what that raises, and EngineStopped."""
        opened = self.open(name)
        self._call(partial(self._want, opened, name))

    def load_if_free(self, name: str) -> bool:
        """As load(), if no other model has to leave for it. False, and nothing is done, if one would have to."""
        opened = self.open(name)
        return self._call(partial(self._want_if_free, opened, name))

    def load_soon(self, name: str) -> None:
        """As load(), without waiting for anything: what load() would raise becomes the model's error."""
        slot = self._hub.slot(name)
        slot.state = "waiting"

        def load() -> None:
            try:
                self.load(name)
            except EngineStopped:
                return
            except Exception as error:  # noqa: BLE001 -- whatever opening it has raised is why there is no model
                self._commands.put(partial(self._give_up, slot, str(error)))

        threading.Thread(target=load, name="model opener", daemon=True).start()

    def unload(self, name: str) -> None:
        """Give the memory of a model back; it has left when this returns. Raises ModelBusy, EngineStopped."""
        self._call(partial(self._unload, name))

    @property
    def used_bytes(self) -> int:
        """Memory of the models that are loaded or being loaded."""
        return self._hub.used_bytes

    @property
    def loaded(self) -> list[str]:
        """The models that have an engine now, by name."""
        return sorted(name for name, slot in self._hub.slots.items() if slot.engine is not None)

    def model(self, name: str) -> ModelStatus:
        slot = self._hub.slots.get(name)
        return ModelStatus(name) if slot is None else slot.status

    def stats(self, name: str) -> EngineStats:
        """The latest snapshot of a model's engine; zeros while there is none."""
        slot = self._hub.slots.get(name)
        engine = slot.engine if slot is not None else None
        return EngineStats() if engine is None else engine.stats()

    def count_cached(self, name: str, request: Request) -> int:
        """How many leading tokens of a prompt have their KV in memory now. Raises EngineStopped."""
        return self._call(partial(self._count_cached, name, request))

    # --- requests, from any thread ------------------------------------------------------------------------------------

    def submit(self, name: str, request: Request, on_event: EventFn) -> None:
        """Hand a request for a model over. Raises EngineStopped, QueueFull, what open() raises, and, when the model is
        loaded, PromptTooLong and ValueError; later these end the request.

        A request that is no turn is refused with EngineStopped unless the model is loaded or being loaded, and takes
        nobody's place.
        on_event is called on the worker thread, in order, FinishedEvent exactly once and last. It must not block. If it
        raises, the request is cancelled.
        """
        opened = self.open(name)
        with self._lock:
            self._refuse_when_over()
            slot = self._hub.slot(name)
            if slot.engine is not None:
                slot.engine.check_request(request)
            if request.request_id in self._accepted:
                raise ValueError(f"request {request.request_id} is in the engine already")
            is_turn = request.rank == Rank.TURN
            if not is_turn and slot.engine is None and slot.state != "loading":
                raise EngineStopped(f"{name} is not loaded")
            num_live = sum(each.rank == request.rank for each in self._accepted.values())
            max_running, max_waiting = opened.config.max_running, opened.config.max_waiting if is_turn else 0
            if num_live >= max_running + max_waiting:
                raise QueueFull(num_waiting=max(0, num_live - max_running), max_waiting=max_waiting)
            self._accepted[request.request_id] = _Accepted(slot, on_event, request.rank)
            submitted_at = self._clock() if slot.engine is None else slot.engine.clock()
            self._commands.put(partial(self._take, opened, slot, request, submitted_at))

    def cancel(self, request_id: str) -> None:
        """Ask for the end of a request: its FinishedEvent follows within one step. Unknown ids are ignored."""
        self._commands.put(partial(self._cancel, request_id))

    def purge(self, tag: str) -> None:
        """Forget the cached KV of a tag, in all loaded models and their files, before the next step."""
        self._commands.put(partial(self._purge, tag))

    def clear_cache(self) -> None:
        """Forget all cached KV, in all loaded models and their files, before the next step."""
        self._commands.put(partial(self._hub.tell_all, lambda engine: engine.clear_cache()))

    def protect(self, tag: str, seconds: float) -> None:
        """Evict the cached KV of a tag late, for so long from now on: somebody looks at it. 0 ends that.

        Models that are loaded later are told as well, here and in archive().
        """
        self._commands.put(partial(self._protect, tag, seconds))

    def archive(self, tag: str) -> None:
        """Evict the cached KV of a tag first, until a request with it comes."""
        self._commands.put(partial(self._archive, tag))

    def settle(self, timeout: float) -> bool:
        """Wait until what was asked for before has been done, or the worker has ended; False when that takes longer."""
        try:
            self._call(lambda: None, timeout)
        except TimeoutError:
            return False
        except EngineStopped:
            if self._thread.ident is not None:
                self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def shutdown(self, timeout: float = 10.0) -> bool:
        """End every request with CANCELLED and stop; True when all threads have ended within timeout seconds.

        Until then cached KV is written to disk. A model that is being loaded stops at its next report of progress.
        """
        deadline = self._stop_by = time.monotonic() + timeout
        self._is_stopping = True
        self._commands.put(lambda: None)  # wakes it
        if self._thread.ident is None:  # never started
            self._end("stopped", "")
            return True
        self._thread.join(timeout)
        return self._loader.join(max(0.0, deadline - time.monotonic())) and not self._thread.is_alive()

    def _refuse_when_over(self) -> None:
        if self.state != "running" or self._is_stopping:
            raise EngineStopped(self.error or "the engine is stopped")

    def _call(self, work: Callable[[], T], timeout: float | None = None) -> T:
        """Run it on the worker thread between two steps and return its result. Raises EngineStopped when that ends,
        TimeoutError."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 -- for whoever asked
                future.set_exception(error)

        with self._lock:
            self._refuse_when_over()
            self._calls.add(future)
            self._commands.put(run)
        try:
            return future.result(timeout)
        finally:
            with self._lock:
                self._calls.discard(future)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """The life of the thread. However it ends, _end() has the last word."""
        problem = "the engine thread has ended unexpectedly"
        try:
            while not self._is_stopping:
                self._run_commands(wait_s=0.0 if self._hub.working else self._hub.idle())
                self._step()
            self._run_commands(wait_s=0.0)
            self._cancel_all()
            self._hub.close(max(0.0, self._stop_by - CLOSE_S - time.monotonic()))
            problem = ""
        except Exception as error:
            logger.exception("the engine has ended")
            problem = str(error) or type(error).__name__
        finally:
            self._end("failed" if problem else "stopped", problem)

    def _run_commands(self, *, wait_s: float | None) -> None:
        """Run what has been asked for; wait so long for the first command, None is until it comes."""
        try:
            self._commands.get(block=wait_s != 0.0, timeout=wait_s)()
            while True:
                self._commands.get_nowait()()
        except Empty:
            return

    def _step(self) -> None:
        """One step of the model whose turn it is."""
        slot = self._hub.next_busy()
        if slot is None or slot.engine is None:
            return
        engine = slot.engine
        slot.used_at = self._clock()
        try:
            self._deliver(engine.schedule_step(has_company=len(self._hub.working) > 1))
            events = engine.run_step()
        except Exception as error:
            logger.exception("a step of %s has failed", slot.name)
            events = self._fail_step(slot, engine, f"internal error: {type(error).__name__}")
        self._deliver(events)
        if self._hub.wanted and not engine.has_urgent_work:  # perhaps it was waited for
            self._arrange()

    def _fail_step(self, slot: Slot, engine: LLMEngine, problem: str) -> list[Event]:
        """End the requests of the step. An engine whose books are wrong goes: it would mix blocks up."""
        try:
            events = engine.fail_step(problem)
            engine.check_integrity()
        except Exception as error:
            logger.exception("the engine of %s is given up", slot.name)
            self._give_up(slot, str(error) or type(error).__name__)
            return []
        return events

    def _cancel_all(self) -> None:
        for slot in self._hub.slots.values():
            self._end_work(slot)

    def _end_work(self, slot: Slot) -> None:
        if slot.engine is not None and slot.engine.has_work:
            slot.engine.cancel_all()
            self._deliver(slot.engine.step())

    def _end(self, state: State, problem: str) -> None:
        """Accept nothing any more, and tell those who still wait."""
        with self._lock:
            self.state, self.error = state, problem
            accepted, self._accepted = self._accepted, {}
            calls = self._calls.copy()
        for request_id, request in accepted.items():
            self._tell(request.on_event, _end_of(request_id, problem))
        for call in calls:
            if not call.done():
                call.set_exception(EngineStopped(problem or "the engine is stopped"))

    # --- requests, on the thread --------------------------------------------------------------------------------------

    def _take(self, opened: OpenedModel, slot: Slot, request: Request, submitted_at: float) -> None:
        self._hints.take_out(request.tags)
        if request.rank == Rank.TURN:
            slot.used_at = self._clock()
        if self._hub.takes_requests(slot):
            self._add(slot, request, submitted_at)
            return
        if request.rank != Rank.TURN and slot.state != "loading":  # the model has left, or is about to
            self._deliver([_end_of(request.request_id, "")])
            return
        slot.held[request.request_id] = (request, submitted_at)
        if request.rank == Rank.TURN:  # the others wait for what is loaded anyway, and want nothing
            self._want(opened, slot.name)
        self._report_loading(slot, [request.request_id])

    def _add(self, slot: Slot, request: Request, submitted_at: float) -> None:
        assert slot.engine is not None, "a model that takes requests has an engine"
        try:
            slot.engine.add_request(request, submitted_at=submitted_at)
        except InferenceError as error:  # it came while the model was not there to be asked
            self._deliver([_end_of(request.request_id, str(error))])
        except Exception as error:  # a request that check_request() has let through must not take the others with it
            logger.exception("request %s could not be added", request.request_id)
            self._deliver([_end_of(request.request_id, f"the request makes no sense: {error}")])

    def _cancel(self, request_id: str) -> None:
        with self._lock:
            accepted = self._accepted.get(request_id)
        if accepted is None:
            return
        slot = accepted.slot
        if slot.held.pop(request_id, None) is not None:
            self._deliver([_end_of(request_id, "")])
            self._hub.forget(slot)
            self._arrange()
        elif slot.engine is not None:
            slot.engine.cancel(request_id)

    def _purge(self, tag: str) -> None:
        self._hints.forget(tag)
        self._hub.tell_all(lambda engine: engine.purge(tag))

    def _protect(self, tag: str, seconds: float) -> None:
        self._hints.expire()
        self._hints.protect(tag, seconds)
        for engine in self._hub.engines:
            engine.protect(tag, seconds)

    def _archive(self, tag: str) -> None:
        self._hints.archive(tag)
        for engine in self._hub.engines:
            engine.archive(tag)

    def _count_cached(self, name: str, request: Request) -> int:
        engine = self._hub.slot(name).engine
        return 0 if engine is None else engine.count_cached(request)

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            with self._lock:
                if isinstance(event, FinishedEvent):
                    accepted = self._accepted.pop(event.request_id)
                else:
                    accepted = self._accepted[event.request_id]
            if not self._tell(accepted.on_event, event):
                self._cancel(event.request_id)

    def _tell(self, on_event: EventFn, event: Event) -> bool:
        try:
            on_event(event)
        except Exception:
            logger.exception("the receiver of request %s has failed", event.request_id)
            return False
        return True

    # --- models, on the thread ----------------------------------------------------------------------------------------

    def _want(self, opened: OpenedModel, name: str) -> None:
        self._hub.want(opened, name)
        self._arrange()

    def _want_if_free(self, opened: OpenedModel, name: str) -> bool:
        if not self._hub.is_free_for(opened, name):
            return False
        self._want(opened, name)
        return True

    def _unload(self, name: str) -> None:
        self._hub.unload(self._hub.slot(name))
        self._shelf.drop(name)  # whoever comes back finds the file as it is then
        self._arrange()  # another one may have waited for its place, and from this one nothing more will be heard
        give_back()
        logger.info("unloaded %s: %d of %d bytes are used", name, self._hub.used_bytes, self.max_bytes)

    def _arrange(self) -> None:
        while slots := self._hub.arrange():
            for slot in slots:
                self._hand_over(slot)

    def _hand_over(self, slot: Slot) -> None:
        held, slot.held = slot.held, {}
        for request, submitted_at in held.values():
            self._add(slot, request, submitted_at)

    def _begin_load(self, slot: Slot) -> None:
        self._report_loading(slot, list(slot.held))
        assert slot.opened is not None, "what is wanted has been opened"
        self._loader.begin(
            slot.opened,
            on_progress=partial(self._report_progress, slot),
            on_loaded=lambda engine: self._commands.put(partial(self._loaded, slot, engine)),
            on_failed=lambda problem: self._commands.put(partial(self._give_up, slot, problem)),
        )

    def _loaded(self, slot: Slot, engine: LLMEngine) -> None:
        self._hub.loaded(slot, engine, self._clock())
        self._hints.repeat(engine.protect, engine.archive)
        self._hand_over(slot)  # first: it came for these, whoever else wants its place
        logger.info("loaded %s: %d of %d bytes are used", slot.name, self._hub.used_bytes, self.max_bytes)
        self._arrange()

    def _give_up(self, slot: Slot, problem: str) -> None:
        """The model could not be loaded, or its engine has broken: those who wait for it are told, the others go on."""
        self._hub.failed(slot, problem)
        self._shelf.drop(slot.name)
        slot.held.clear()
        with self._lock:
            lost = [request_id for request_id, accepted in self._accepted.items() if accepted.slot is slot]
        self._deliver([_end_of(request_id, problem) for request_id in lost])
        self._arrange()

    def _report_progress(self, slot: Slot, progress: float) -> None:
        """On the loader's thread."""
        if self._is_stopping or self.state != "running":
            raise EngineStopped
        is_news = int(100 * progress) > int(100 * slot.progress)
        slot.progress = progress
        if is_news:
            self._commands.put(lambda: self._report_loading(slot, list(slot.held)))

    def _report_loading(self, slot: Slot, request_ids: list[str]) -> None:
        if slot.state not in ("loading", "waiting") and slot.engine is None:
            return
        is_loading = slot.state == "loading"
        num_done, num_total = (int(1000 * slot.progress), 1000) if is_loading else (0, 0)
        self._deliver([ProgressEvent(name, Stage.LOADING, 0, num_done, num_total) for name in request_ids])


def _end_of(request_id: str, problem: str) -> FinishedEvent:
    """The end of a request that the engine does not know (any more): an error if there is a problem."""
    if not problem:
        return FinishedEvent(request_id, FinishReason.CANCELLED, RequestStats())
    return FinishedEvent(request_id, FinishReason.ERROR, RequestStats(), error=problem, token_ids=None)
