"""Worker: the one thread that owns the engine. Requests go in from any thread, events come out on the worker's.

While the model is loading nothing is accepted: whoever wants to wait for it can see `state`, and an answer of "loading"
is better than a queue in front of the queue. Whatever ends the thread, every request that was accepted gets its
FinishedEvent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Literal

from inference.engine.llm_engine import LLMEngine, ProgressFn
from inference.errors import EngineStopped, InferenceError, QueueFull
from inference.types import EngineStats, Event, FinishedEvent, FinishReason, Request, RequestStats

logger = logging.getLogger(__name__)

State = Literal["loading", "ready", "failed", "stopped"]
EventFn = Callable[[Event], None]
Command = Callable[[LLMEngine], None]  # run on the worker thread, between two steps


class Worker:
    """Loads an engine in the background and runs it until shutdown.

    state goes from "loading" to "ready", and ends in "stopped" (by shutdown) or "failed" (error says why).
    engine is None until ready; other threads may use what LLMEngine calls safe from any thread.
    """

    def __init__(self, load: Callable[[ProgressFn], LLMEngine]) -> None:
        self.state: State = "loading"
        self.progress = 0.0  # of loading, 0 to 1
        self.error = ""  # a sentence, "" while all is well
        self.engine: LLMEngine | None = None
        self._load = load
        self._is_stopping = False
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._callbacks: dict[str, EventFn] = {}  # of the requests that have been accepted and not finished
        self._lock = threading.Lock()  # over state and _callbacks: nothing is accepted after the end
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once, in state "loading"."""
        self._thread.start()

    def submit(self, request: Request, on_event: EventFn) -> None:
        """Hand a request over. Raises EngineStopped (loading, failed, stopped), PromptTooLong, QueueFull, ValueError.

        on_event is called on the worker thread, in order, FinishedEvent exactly once and last. It must not block. If it
        raises, the request is cancelled.
        """
        with self._lock:
            engine = self._ready_engine()
            engine.check_request(request)
            if request.request_id in self._callbacks:
                raise ValueError(f"request {request.request_id} is in the engine already")
            num_live, config = len(self._callbacks), engine.config
            if num_live >= config.max_running + config.max_waiting:
                raise QueueFull(num_waiting=num_live - config.max_running, max_waiting=config.max_waiting)
            self._callbacks[request.request_id] = on_event
            self._commands.put(partial(self._add, request, engine.clock()))

    def cancel(self, request_id: str) -> None:
        """Ask for the end of a request: its FinishedEvent follows within one step. Unknown ids are ignored."""
        self._commands.put(lambda engine: engine.cancel(request_id))

    def purge(self, tag: str) -> None:
        """Forget the cached KV of a tag before the next step. Without an engine there is none."""
        self._commands.put(partial(self._purge, tag))

    def stats(self) -> EngineStats:
        """The engine's latest snapshot; zeros before it is ready."""
        stats = EngineStats() if self.engine is None else self.engine.stats()
        return replace(stats, error=self.error)

    def shutdown(self, timeout: float = 10.0) -> bool:
        """End every request with CANCELLED and stop the thread; True when it has ended within timeout seconds.

        A model that is still loading stops at its next report of progress.
        """
        self._is_stopping = True
        self._commands.put(lambda engine: None)  # wakes it
        if self._thread.ident is None:  # never started
            self._end("stopped", "")
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _ready_engine(self) -> LLMEngine:
        if self.state == "loading":
            raise EngineStopped(f"the model is still loading ({self.progress:.0%})")
        if self.state != "ready" or self.engine is None or self._is_stopping:
            raise EngineStopped(self.error or "the engine is stopped")
        return self.engine

    def _run(self) -> None:
        """The life of the thread. However it ends, _end() has the last word."""
        problem = "the engine thread has ended unexpectedly"
        try:
            engine = self._load(self._report_progress)
            with self._lock:
                self.engine, self.progress, self.state = engine, 1.0, "ready"
            self._loop(engine)
            problem = ""
        except EngineStopped:  # asked to stop while loading
            problem = ""
        except InferenceError as error:  # says all there is to say: a missing file, a model of another kind
            logger.error("the engine has ended: %s", error)
            problem = str(error)
        except Exception as error:
            logger.exception("the engine has ended")
            problem = str(error) or type(error).__name__
        finally:
            self._end("failed" if problem else "stopped", problem)

    def _loop(self, engine: LLMEngine) -> None:
        while not self._is_stopping:
            self._run_commands(engine, is_waiting=not engine.has_work)
            try:
                self._deliver(engine, engine.schedule_step())
                events = engine.run_step()
            except Exception as error:
                logger.exception("a step has failed")
                events = engine.fail_step(f"internal error: {type(error).__name__}")
                engine.check_integrity()  # rather no engine than one that gives out wrong blocks
            self._deliver(engine, events)
        self._run_commands(engine, is_waiting=False)
        engine.cancel_all()
        self._deliver(engine, engine.step())

    def _run_commands(self, engine: LLMEngine, *, is_waiting: bool) -> None:
        """Run what has been asked for; wait for the first command when there is nothing else to do."""
        try:
            self._commands.get(block=is_waiting)(engine)
            while True:
                self._commands.get_nowait()(engine)
        except Empty:
            return

    def _add(self, request: Request, submitted_at: float, engine: LLMEngine) -> None:
        try:
            engine.add_request(request, submitted_at=submitted_at)
        except Exception as error:  # a request that check_request() has let through must not take the others with it
            logger.exception("request %s could not be added", request.request_id)
            self._deliver(engine, [_end_of(request.request_id, f"the request makes no sense: {error}")])

    def _purge(self, tag: str, engine: LLMEngine) -> None:
        logger.info("purged %d blocks of %s", engine.purge(tag), tag)

    def _deliver(self, engine: LLMEngine, events: list[Event]) -> None:
        for event in events:
            with self._lock:
                if isinstance(event, FinishedEvent):
                    on_event = self._callbacks.pop(event.request_id)
                else:
                    on_event = self._callbacks[event.request_id]
            try:
                on_event(event)
            except Exception:
                logger.exception("the receiver of request %s has failed", event.request_id)
                engine.cancel(event.request_id)

    def _report_progress(self, progress: float) -> None:
        if self._is_stopping:
            raise EngineStopped
        self.progress = progress

    def _end(self, state: State, problem: str) -> None:
        """Accept nothing any more, and tell those who still wait."""
        with self._lock:
            self.state, self.error = state, problem
            callbacks, self._callbacks = self._callbacks, {}
        for request_id, on_event in callbacks.items():
            try:
                on_event(_end_of(request_id, problem))
            except Exception:
                logger.exception("the receiver of request %s has failed", request_id)


def _end_of(request_id: str, problem: str) -> FinishedEvent:
    """The end of a request that the engine does not know (any more): an error if there is a problem."""
    if not problem:
        return FinishedEvent(request_id, FinishReason.CANCELLED, RequestStats())
    return FinishedEvent(request_id, FinishReason.ERROR, RequestStats(), error=problem, token_ids=None)
