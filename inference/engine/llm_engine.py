"""LLMEngine: requests in, events out. Synchronous: step() schedules, runs one forward pass and postprocesses.

A step has two halves, so that what was decided can be told before the pass, which takes its time.

Knows no thread: one owner makes all calls (see worker.py), but for check_request(), stats() and the attributes, which
are safe from any thread. The clock comes in as an argument.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from inference.config import EngineConfig
from inference.engine.model_runner import ModelRunner
from inference.engine.new_cache import DiskOpener, new_cache
from inference.engine.opened_model import window_of
from inference.engine.pace import PrefillPace
from inference.engine.reply import Reply
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import Chunk, Sequence
from inference.engine.stats import StatsRecorder
from inference.errors import PromptTooLong, SamplingError
from inference.model.base import Model
from inference.sampler.sampler import Sampler
from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.tokenizer import Tokenizer
from inference.types import (
    F32,
    EngineStats,
    Event,
    FinishedEvent,
    FinishReason,
    ModelInfo,
    ProgressEvent,
    Rank,
    Request,
    Stage,
    TokenEvent,
)

logger = logging.getLogger(__name__)

Clock = Callable[[], float]  # seconds

# What NumPy, Numba and the system raise when a pass fails for reasons of its own. Anything else, an AssertionError
# above all, is our mistake and goes up to the worker's loop.
FORWARD_ERRORS = (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


class LLMEngine:
    """One model, one block pool, many requests.

    max_model_len is the window: prompt and reply together, in tokens. It is what the model was trained for, or less if
    the configuration says so or the pool holds no more.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        config: EngineConfig,
        *,
        name: str = "",
        path: str = "",
        clock: Clock = time.monotonic,
    ) -> None:
        kv = model.new_kv(config.num_blocks, config.block_size)
        self.model = model
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.config = config
        self.info = ModelInfo(
            name=name,
            path=path,
            architecture=model.config.model_type,
            num_parameters=model.num_parameters,
            num_layers=model.config.num_hidden_layers,
            vocab_size=model.config.vocab_size,
            max_position_embeddings=model.config.max_position_embeddings,
            kernel_tier=model.kernel_tier,
            fingerprint=model.fingerprint,
            tokenizer_fingerprint=chat_template.fingerprint,
            kv_bytes_per_token=kv.bytes_per_token,
            weight_bytes=model.weight_bytes,
            pool_bytes=kv.nbytes,
            load_id=secrets.token_hex(8),
        )
        self.max_model_len = window_of(model.config, config)
        fingerprint = chat_template.fingerprint
        self.cache = new_cache(model, kv, config, template_fingerprint=fingerprint, clock=clock)
        self._disk = DiskOpener(self.cache, model, kv, config, name=name, template_fingerprint=fingerprint, clock=clock)
        self.clock = clock
        self._pace = PrefillPace(config.max_batch_tokens)
        self._scheduler = Scheduler(config, self.cache, self._pace)
        self._runner = ModelRunner(model, kv)
        self._stats = StatsRecorder(
            self.cache, max_waiting=config.max_waiting, pool_bytes=kv.nbytes, started_at=clock()
        )
        self._sequences: dict[str, Sequence] = {}
        self._batch: list[Chunk] = []  # of the step that is under way
        self._has_company = False  # in that step
        self._events: list[Event] = []  # not yet returned
        self._num_arrivals = 0

    def check_request(self, request: Request) -> None:
        """Raise PromptTooLong or ValueError for a request that could never be run, however empty the engine."""
        prompt_ids = request.prompt_ids
        if prompt_ids.ndim != 1 or not len(prompt_ids):
            raise ValueError(f"prompt_ids has shape {prompt_ids.shape}, wanted is at least one id")
        low, high, vocab_size = int(prompt_ids.min()), int(prompt_ids.max()), self.model.config.vocab_size
        if low < 0 or high >= vocab_size:
            raise ValueError(f"prompt_ids go from {low} to {high}, the vocabulary holds 0 to {vocab_size - 1}")
        if request.sampling.seed is not None and request.sampling.seed < 0:
            raise ValueError(f"seed is {request.sampling.seed}, legal are 0 and above")
        if len(prompt_ids) + 1 > self.max_model_len:
            raise PromptTooLong(num_prompt_tokens=len(prompt_ids), num_reserved_tokens=1, max_tokens=self.max_model_len)

    def add_request(self, request: Request, *, submitted_at: float | None = None) -> None:
        """Queue a request. Raises what check_request() raises, QueueFull, and ValueError for an id that is in use.

        submitted_at: when it was asked for, if that was before this call.
        """
        self.check_request(request)
        if request.request_id in self._sequences:
            raise ValueError(f"request {request.request_id} is in the engine already")
        sequence = Sequence(
            request,
            arrival=self._num_arrivals,
            max_model_len=self.max_model_len,
            sampler=Sampler(request.sampling, request.prompt_ids, self.model.config.vocab_size),
            reply=Reply(self.tokenizer, request.sampling.stop, is_continuation=request.is_continuation),
            submitted_at=self.clock() if submitted_at is None else submitted_at,
        )
        self._scheduler.add(sequence)
        self._sequences[request.request_id] = sequence
        self._num_arrivals += 1
        self._refresh_stats()

    def cancel(self, request_id: str) -> None:
        """End a request; the next half of a step returns its FinishedEvent. An unknown or finished id is ignored."""
        if sequence := self._sequences.get(request_id):
            self._finish(sequence, FinishReason.CANCELLED)
            self._refresh_stats()

    def cancel_all(self) -> None:
        """End every request, as cancel() does."""
        for request_id in list(self._sequences):
            self.cancel(request_id)

    def cancel_side_work(self) -> None:
        """End every request that is no turn, as cancel() does."""
        for sequence in list(self._sequences.values()):
            if sequence.rank != Rank.TURN:
                self.cancel(sequence.request_id)

    def idle(self) -> float | None:
        """Do a little of what can wait, a few milliseconds; only when there is no work.

        Returns in how many seconds there is more of it; 0.0 is at once, None is when something has happened.
        """
        waits = (self._disk.retry(), self.cache.save_some())
        self._refresh_cache_stats()
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def close(self, timeout: float = 5.0, *, is_valid: bool = True) -> None:
        """Save what is cached, for at most timeout seconds, and give the folder of its files back. The last call.

        is_valid False: save nothing more, what is cached may be wrong.
        """
        self.cache.close(timeout if is_valid else 0.0)

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to compute or to report."""
        return bool(self._sequences or self._events)

    @property
    def has_urgent_work(self) -> bool:
        """Whether a turn is among it, or something to report."""
        return bool(self._events) or self.num_turns > 0

    @property
    def num_turns(self) -> int:
        """Turns that run or wait."""
        return sum(each.rank == Rank.TURN for each in self._sequences.values())

    def step(self) -> list[Event]:
        """Run one forward pass over what is due and return what has happened since the last call."""
        return [*self.schedule_step(), *self.run_step()]

    def schedule_step(self, *, has_company: bool = False) -> list[Event]:
        """The first half: choose the batch, a short one while others wait for its end (has_company).

        Returns what has happened so far: ends of cancelled requests, places in the queue, and who begins to be read.
        """
        self._batch = self._scheduler.schedule(self.clock(), has_company=has_company)
        self._has_company = has_company
        self._report_queue()
        for sequence in self._scheduler.given_up:
            self._finish(sequence, FinishReason.CANCELLED)
        for sequence in self._scheduler.admitted:
            self._report(sequence, num_done=sequence.num_computed, num_total=sequence.num_tokens)
            if sequence.kept_logits is not None:
                self._take_logits(sequence, sequence.kept_logits)
        return self._take_events()

    def run_step(self) -> list[Event]:
        """The second half: one forward pass over the batch, and what comes of it.

        A pass that fails ends the requests of its batch with ERROR; the others go on.
        """
        self._batch = [chunk for chunk in self._batch if not chunk.sequence.is_finished]  # cancelled in between
        if self._batch:
            started_at = self.clock()
            try:
                logits = self._runner.run(self._batch)
            except FORWARD_ERRORS as error:
                logger.exception("forward pass over %d sequences failed", len(self._batch))
                self._fail(f"the computation failed: {type(error).__name__}: {error}")
            else:
                self._record_pace(self.clock() - started_at)
                self._postprocess(logits)
        return self._take_events()

    def fail_step(self, problem: str) -> list[Event]:
        """End the requests of a step that has raised (all, if it had no batch yet) and return the events so far."""
        if not self._batch:
            self._batch = [Chunk(sequence, 0) for sequence in self._sequences.values()]
        self._fail(problem)
        return self._take_events()

    def stats(self) -> EngineStats:
        """The snapshot made after the last change."""
        return self._stats.latest(self.clock())

    def purge(self, tag: str) -> int:
        """Forget the cached KV that only requests with this tag have used; returns the number of blocks.

        Live requests with the tag go on, and leave nothing behind. Public blocks stay.
        """
        for sequence in self._sequences.values():
            self.cache.disown(sequence.table, tag)
        num_blocks = self.cache.purge(tag)
        self._refresh_cache_stats()
        return num_blocks

    def count_cached(self, request: Request) -> int:
        """How many leading tokens of its prompt would be reused if the request came now."""
        return self.cache.count_cached(
            request.prompt_ids, salt=request.salt, num_public_tokens=request.num_public_tokens
        )

    def protect(self, tag: str, seconds: float) -> None:
        """Evict what this tag owns after the other KV of its user, for so long: somebody looks at it. 0 ends that."""
        self.cache.protect(tag, seconds)

    def archive(self, tag: str) -> None:
        """Evict what only this tag owns before all others', until a request with the tag comes."""
        self.cache.archive(tag)

    def clear_cache(self) -> None:
        """Forget all cached KV, in memory and on disk."""
        self.cache.clear()
        self._refresh_cache_stats()

    def check_integrity(self) -> None:
        """Assert that blocks, references, keys and live requests agree. O(number of blocks)."""
        self.cache.check_integrity()
        running = self._scheduler.running
        references = Counter(block_id for sequence in running for block_id in sequence.table.block_ids)
        ref_count = self.cache.pool.ref_count
        assert references == Counter({int(i): int(ref_count[i]) for i in np.flatnonzero(ref_count)})
        live = running + self._scheduler.waiting
        assert {sequence.request_id for sequence in live} == set(self._sequences)
        assert not any(sequence.table.block_ids or sequence.num_computed for sequence in self._scheduler.waiting)

    def _postprocess(self, logits: F32) -> None:
        """Publish what has been computed, then take a token from each row of logits (R, V)."""
        rows = iter(logits)
        for chunk in self._batch:
            sequence, is_last = chunk.sequence, chunk.is_last  # before its tokens count as computed
            was_reading = sequence.stage == Stage.READING
            sequence.num_computed += chunk.num_tokens
            self.cache.publish(sequence.table, sequence.token_ids, sequence.num_computed)
            if was_reading:
                self._report(sequence, num_done=sequence.num_computed, num_total=sequence.num_tokens)
            if is_last:
                self._take_tokens(sequence, chunk.draft, [next(rows) for _ in range(1 + len(chunk.draft))])
        self._batch = []

    def _take_tokens(self, sequence: Sequence, draft: tuple[int, ...], rows: list[F32]) -> None:
        """Take a token from the first row, and from each further one as long as the guess before it was right.

        Each token is sampled as if it had been computed alone, so a guess saves time and changes nothing.
        """
        num_accepted = sequence.num_accepted
        sequence.num_drafted += len(draft)
        self._take_logits(sequence, rows[0])
        for guess, row in zip(draft, rows[1:], strict=True):
            if sequence.is_finished or sequence.token_ids[-1] != guess:
                break
            sequence.num_accepted += 1
            sequence.num_computed += 1
            self._take_token(sequence, row)
        if draft:
            sequence.lookup.record(len(draft), sequence.num_accepted - num_accepted)

    def _record_pace(self, seconds: float) -> None:
        num_read = sum(chunk.num_tokens for chunk in self._batch if chunk.sequence.stage == Stage.READING)
        if num_read:
            is_short = self._has_company or any(
                chunk.sequence.stage == Stage.WRITING or chunk.sequence.rank != Rank.TURN for chunk in self._batch
            )
            self._pace.record(num_read, seconds, is_beside=is_short)
            if num_read == sum(chunk.num_tokens for chunk in self._batch):
                self._stats.record_prefill(num_read, seconds)

    def _take_logits(self, sequence: Sequence, logits: F32) -> None:
        """Take what a prompt, or the last known token, was computed for: logits (V,)."""
        is_sound = sequence.num_tokens > sequence.num_prompt_tokens or bool(np.isfinite(logits.max()))
        if is_sound and sequence.num_tokens == sequence.num_prompt_tokens and sequence.kept_logits is None:
            self.cache.keep_logits(sequence.table, sequence.token_ids, logits)
        sequence.kept_logits = None
        if sequence.rank != Rank.PREFILL_ONLY:
            self._take_token(sequence, logits)
        elif is_sound:
            self._finish(sequence, FinishReason.PREFILLED)
        else:
            self._finish(sequence, FinishReason.ERROR, error="the model gave no usable logits", is_valid=False)

    def _take_token(self, sequence: Sequence, logits: F32) -> None:
        """Sample the next token from logits (V,), report it, and finish the sequence if it was the last."""
        try:
            token_id = sequence.sampler.sample(logits)
        except SamplingError as error:
            logger.warning("request %s: %s", sequence.request_id, error)
            self._finish(sequence, FinishReason.ERROR, error=str(error), is_valid=False)
            return
        sequence.last_token_at = self.clock()
        if sequence.num_generated == 0:
            sequence.first_token_at = sequence.last_token_at
        sequence.num_generated += 1
        if sequence.stage != Stage.WRITING:
            sequence.stage = Stage.WRITING
            self._report(sequence)
        if token_id in sequence.request.stop_token_ids:
            self._finish(sequence, FinishReason.STOP)
            return
        sequence.append(token_id)
        token_ids, text = sequence.reply.add(token_id)
        self._events.append(TokenEvent(sequence.request_id, token_ids, text))
        if sequence.reply.is_stopped:
            self._finish(sequence, FinishReason.STOP)
        elif sequence.is_full:
            self._finish(sequence, FinishReason.LENGTH)

    def _finish(self, sequence: Sequence, reason: FinishReason, *, error: str = "", is_valid: bool = True) -> None:
        """End a sequence and report it. A second call for the same one does nothing."""
        if not self._scheduler.finish(sequence, is_valid=is_valid):
            return
        del self._sequences[sequence.request_id]
        if sequence.reuse is None:
            sequence.last_token_at = self.clock()  # it has waited until now
        token_ids, text = sequence.reply.finish()
        stats = sequence.stats()
        self._stats.record(stats, sequence.rank)
        self._refresh_cache_stats()
        self._events.append(FinishedEvent(sequence.request_id, reason, stats, text, error, token_ids))

    def _fail(self, problem: str) -> None:
        for chunk in self._batch:
            self._finish(chunk.sequence, FinishReason.ERROR, error=problem)
        self._batch = []

    def _report_queue(self) -> None:
        """Tell those whose place in the queue has changed."""
        for position, sequence in enumerate(self._scheduler.waiting):
            if sequence.position != position:
                sequence.position = position
                self._report(sequence, position=position)

    def _report(self, sequence: Sequence, *, position: int = 0, num_done: int = 0, num_total: int = 0) -> None:
        self._events.append(ProgressEvent(sequence.request_id, sequence.stage, position, num_done, num_total))

    def _take_events(self) -> list[Event]:
        self._refresh_stats()
        events, self._events = self._events, []
        return events

    def _refresh_stats(self) -> None:
        scheduler = self._scheduler
        self._stats.refresh(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_preemptions=scheduler.num_preemptions,
            num_yields=scheduler.num_yields,
        )

    def _refresh_cache_stats(self) -> None:
        scheduler = self._scheduler
        self._stats.refresh_cache(
            num_relookups=scheduler.num_relookups,
            num_relookup_tokens=scheduler.num_relookup_tokens,
            num_relookup_tokens_hit=scheduler.num_relookup_tokens_hit,
        )
        self._refresh_stats()
