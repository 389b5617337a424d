"""Scheduler: who computes how many tokens in the next step, who is admitted and who has to give way.

Knows sequences and blocks. Knows no model and no text. One owner calls it.

Blocks are not reserved for the whole of a reply: replies are mostly shorter than their max_tokens, and a reservation
would let half of a small pool lie idle. A sequence is admitted when its known tokens fit and every running one can
still take a block; when the pool runs dry nevertheless, the newest is preempted. What it has computed stays cached as
long as nobody needs the blocks, so it mostly resumes with a hit. This cannot come to a stop: any request fits the pool
alone (LLMEngine.check_request), and the first in order is never the one to give way.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import replace

from inference.config import EngineConfig
from inference.engine.pace import PrefillPace, even_part
from inference.engine.sequence import Chunk, Sequence
from inference.errors import QueueFull
from inference.kvcache.prefix_cache import PrefixCache
from inference.types import Rank, Stage


class Scheduler:
    """Waiting and running sequences, both in order: priority, then arrival.

    A preempted sequence keeps its place in that order, so it is admitted before all that came after it. One that would
    compute what a running one is about to publish waits for it; when that ends early, it computes the rest itself.
    Side requests wait while a turn waits or reads, run one at a time, beside turns that write, and are given up when
    there is no room for them. Those that only prefill run alone. Both give way at once, and resume with a hit.
    """

    def __init__(self, config: EngineConfig, cache: PrefixCache, pace: PrefillPace) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.admitted: list[Sequence] = []  # by the last schedule()
        self.given_up: list[Sequence] = []  # by the last schedule(): to be finished
        self.num_preemptions = 0
        self.num_yields = 0  # of sequences that are no turns
        self.num_relookups = 0  # second look-ups, of those that were preempted or have yielded
        self.num_relookup_tokens = 0
        self.num_relookup_tokens_hit = 0
        self._config = config
        self._cache = cache
        self._pace = pace

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises QueueFull when max_waiting would wait even with every running place taken.

        Each rank is counted apart. Those that are no turns take nobody's place: as many may wait as turns may run.
        """
        num_equal = sum(each.rank == sequence.rank for each in self.waiting + self.running)
        max_running, max_waiting = self._config.max_running, self._config.max_waiting
        if num_equal >= max_running + (max_waiting if sequence.rank == Rank.TURN else 0):
            raise QueueFull(num_waiting=len(self.waiting), max_waiting=max_waiting)
        insort(self.waiting, sequence, key=_order)

    def schedule(self, now: float, *, has_company: bool = False) -> list[Chunk]:
        """The chunks of the next step: decoding first, then prefill, newcomers included; last come guesses.

        All within max_batch_tokens, prefill within the pace. Empty only when nothing is alive, or all that is has been
        given up. Admits and preempts; the chunks count as computed when the caller says so.
        """
        self.admitted, self.given_up = [], []
        self._yield()
        has_turns = self._has_turns
        budget = self._config.max_batch_tokens
        chunks: list[Chunk] = []
        decoding = [sequence for sequence in self.running if sequence.num_pending == 1]
        for sequence in decoding[:budget]:
            if sequence.stage != Stage.QUEUED and self._can_grow(sequence):  # queued: preempted a moment ago
                chunks.append(Chunk(sequence, 1))
        num_decoding, budget = len(chunks), budget - len(chunks)
        is_beside = has_company or not has_turns or any(chunk.sequence.stage == Stage.WRITING for chunk in chunks)
        budget = min(budget, self._pace.num_tokens(is_beside=is_beside))
        if budget > 0:
            self._admit_all(now)
            served = {chunk.sequence.request_id for chunk in chunks}
            reading = [each for each in self.running if each.num_pending and each.request_id not in served]
            chunks += _shared_chunks(reading, budget)
        num_left = self._config.max_batch_tokens - sum(chunk.num_tokens for chunk in chunks)
        return self._with_drafts(chunks[:num_decoding], num_left) + chunks[num_decoding:]

    def finish(self, sequence: Sequence, *, is_valid: bool = True) -> bool:
        """Take a sequence out and its blocks back: the one place where that happens. False if it was out already."""
        if sequence.is_finished:
            return False
        sequence.is_finished = True
        if sequence in self.running:
            self.running.remove(sequence)
            sequence.num_kept = self._cache.release(
                sequence.table, sequence.token_ids, sequence.num_computed, is_valid=is_valid
            )
        else:
            self.waiting.remove(sequence)
        return True

    @property
    def _has_turns(self) -> bool:
        return any(each.rank == Rank.TURN for each in self.waiting + self.running)

    @property
    def _is_urgent(self) -> bool:
        """Whether a turn waits or reads."""
        return any(each.rank == Rank.TURN and each.stage != Stage.WRITING for each in self.waiting + self.running)

    def _admit_all(self, now: float) -> None:
        """Start whoever has a place and need not wait for what another is computing, in order, as far as there is room.

        A side request without room is given up: waiting for it would be for what it must not take.
        """
        for sequence in self.waiting.copy():
            if self._has_place(sequence) and not self._has_leader(sequence) and not self._admit(sequence, now):
                if sequence.rank != Rank.SIDE:
                    return
                self.given_up.append(sequence)

    def _has_place(self, sequence: Sequence) -> bool:
        match sequence.rank:
            case Rank.TURN:
                return len(self.running) < self._config.max_running
            case Rank.SIDE:
                are_turns = all(each.rank == Rank.TURN for each in self.running)
                return are_turns and len(self.running) < self._config.max_running and not self._is_urgent
            case Rank.PREFILL_ONLY:
                return not self.running and not self._has_turns

    def _has_leader(self, sequence: Sequence) -> bool:
        """Whether a running sequence is about to publish the next block that this one wants."""
        return any(
            leader.stage == Stage.READING
            and self._cache.is_coming(sequence.table, sequence.token_ids, leader.table, leader.token_ids)
            for leader in self.running
        )

    def _admit(self, sequence: Sequence, now: float) -> bool:
        """Start a waiting sequence, if there is room for it."""
        reuse = self._cache.allocate(sequence.table, sequence.token_ids, num_spare=len(self.running))
        if reuse is None:
            return False
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_order)
        sequence.num_computed = reuse.num_tokens
        sequence.kept_logits = reuse.logits
        sequence.stage = Stage.READING
        if sequence.reuse is None:
            sequence.reuse = replace(reuse, logits=None)
            sequence.admitted_at = now
        else:
            self.num_relookups += 1
            self.num_relookup_tokens += sequence.num_tokens
            self.num_relookup_tokens_hit += reuse.num_tokens
        sequence.num_recomputed += max(0, sequence.num_lost - reuse.num_tokens)
        self.admitted.append(sequence)
        return True

    def _can_grow(self, sequence: Sequence) -> bool:
        """Make room for the sequence's known tokens. The last in order give way; False if that is the sequence."""
        while not self._cache.grow(sequence.table, sequence.num_tokens):
            last = self.running[-1]
            self.num_preemptions += 1
            self._put_back(last)
            if last is sequence:
                return False
        return True

    def _with_drafts(self, chunks: list[Chunk], budget: int) -> list[Chunk]:
        """Decoding chunks with guesses, in equal shares, where blocks are free: nobody gives way for a guess.

        Beside turns, a side request gets none: it has time.
        """
        num_turns = sum(chunk.sequence.rank == Rank.TURN for chunk in chunks) or len(chunks)  # they come first
        share = min(budget, self._config.max_draft_tokens) // max(num_turns, 1)
        if share == 0:
            return chunks
        return [self._with_draft(chunk, share) for chunk in chunks[:num_turns]] + chunks[num_turns:]

    def _with_draft(self, chunk: Chunk, share: int) -> Chunk:
        sequence = chunk.sequence
        # The pass gives one token more than there are right guesses.
        draft = sequence.lookup.draft(sequence.token_ids, min(share, sequence.num_free - 1))
        if not draft or not self._cache.grow(sequence.table, sequence.num_tokens + len(draft)):
            return chunk
        return Chunk(sequence, 1, draft)

    def _yield(self) -> None:
        """Whoever is no turn gives its place and its blocks back when a turn is due; what it has computed is cached."""
        is_due = {Rank.SIDE: self._is_urgent, Rank.PREFILL_ONLY: self._has_turns}
        for sequence in [each for each in self.running if is_due.get(each.rank)]:
            self.num_yields += 1
            self._put_back(sequence)

    def _put_back(self, sequence: Sequence) -> None:
        """From running to waiting."""
        self.running.remove(sequence)
        sequence.num_kept = self._cache.release(sequence.table, sequence.token_ids, sequence.num_computed)
        sequence.num_lost = sequence.num_computed
        sequence.num_computed = 0
        sequence.stage = Stage.QUEUED
        sequence.position = -1
        insort(self.waiting, sequence, key=_order)


def _shared_chunks(reading: list[Sequence], budget: int) -> list[Chunk]:
    """Half of the budget for the first in order, the rest for the shortest prompts of its priority.

    So nobody waits for a long prompt who has a short one, and no long one is starved. What one half leaves over goes to
    the other, and what all leave over to those of lower priority.
    """
    if not reading:
        return []
    first, *others = reading
    num_equal = sum(each.num_pending for each in others if each.request.priority == first.request.priority)
    chunks = [Chunk(first, even_part(first.num_pending, max(budget - num_equal, -(-budget // 2))))]
    budget -= chunks[0].num_tokens
    for sequence in sorted(others, key=lambda each: (each.request.priority, each.num_pending, each.order)):
        if budget > 0:
            chunks.append(Chunk(sequence, even_part(sequence.num_pending, budget)))
            budget -= chunks[-1].num_tokens
    return chunks


def _order(sequence: Sequence) -> tuple[Rank, int, int]:
    return sequence.order
