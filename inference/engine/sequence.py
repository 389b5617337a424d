"""Sequence: one request inside the engine, its tokens, blocks and times. What happens to it is decided elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inference.engine.prompt_lookup import PromptLookup
from inference.engine.reply import Reply
from inference.kvcache.block_table import UNTAGGED, BlockTable, Reuse
from inference.sampler.sampler import Sampler
from inference.types import F32, I32, Rank, Request, RequestStats, Stage


class Sequence:
    """A request with everything that it has collected on its way.

    Of num_tokens known tokens (prompt and output), the first num_computed have their KV in the table's blocks. The last
    known token never has while the sequence is alive: computing it gives the next one.
    """

    def __init__(
        self, request: Request, *, arrival: int, max_model_len: int, sampler: Sampler, reply: Reply, submitted_at: float
    ) -> None:
        self.request = request
        self.sampler = sampler
        self.reply = reply
        self.lookup = PromptLookup()
        # Lower runs first; the last of the running is preempted first.
        self.rank = request.rank
        self.order = (self.rank, request.priority, arrival)
        self.num_prompt_tokens = len(request.prompt_ids)
        self.num_tokens = self.num_prompt_tokens
        self.num_computed = 0
        self.num_generated = 0  # the stop token included
        self.num_drafted = 0
        self.num_accepted = 0  # of the drafted
        self.table = BlockTable(
            salt=request.salt,
            num_public_tokens=min(request.num_public_tokens, self.num_prompt_tokens),
            tags=set(request.tags) or {UNTAGGED},
            is_low_retention=request.is_low_retention,
            num_lasting_tokens=request.num_lasting_tokens,
            is_gentle=self.rank == Rank.SIDE,
        )
        self.stage = Stage.QUEUED
        self.position = -1  # in the queue, as last reported
        self.is_finished = False
        self.reuse: Reuse | None = None  # None until the first admission, which fixes it
        self.kept_logits: F32 | None = None  # of the last token, when all of them were reused: nothing to compute
        self.num_recomputed = 0
        self.num_kept = 0  # leading tokens whose KV stayed cached when the blocks were last given back
        self.num_lost = 0  # of the tokens computed before the last preemption: to be computed again
        self.submitted_at = submitted_at
        self.admitted_at = self.first_token_at = self.last_token_at = submitted_at
        # The reply ends when this buffer is full: max_tokens, or the end of the window.
        self._token_ids = np.empty(min(self.num_tokens + request.sampling.max_tokens, max_model_len), np.int32)
        self._token_ids[: self.num_tokens] = request.prompt_ids

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def token_ids(self) -> I32:
        """The known tokens (T,)."""
        return self._token_ids[: self.num_tokens]

    @property
    def num_pending(self) -> int:
        """Known tokens without KV: 1 while decoding."""
        return self.num_tokens - self.num_computed

    @property
    def is_full(self) -> bool:
        return self.num_tokens == len(self._token_ids)

    @property
    def num_free(self) -> int:
        """Tokens that may still be appended."""
        return len(self._token_ids) - self.num_tokens

    def append(self, token_id: int) -> None:
        self._token_ids[self.num_tokens] = token_id
        self.num_tokens += 1

    def stats(self) -> RequestStats:
        """The numbers of this request so far."""
        if self.reuse is None:
            return RequestStats(queue_s=self.last_token_at - self.submitted_at)
        has_output = self.num_generated > 0
        return RequestStats(
            num_prompt_tokens=self.num_prompt_tokens,
            num_reused_ram=self.reuse.num_ram,
            num_reused_disk=self.reuse.num_disk,
            num_computed=self.num_prompt_tokens - self.reuse.num_tokens,
            miss_cause=self.reuse.cause,
            num_recomputed=self.num_recomputed,
            num_kept=self.num_kept,
            num_generated=self.num_generated,
            num_drafted=self.num_drafted,
            num_accepted=self.num_accepted,
            queue_s=self.admitted_at - self.submitted_at,
            ttft_s=self.first_token_at - self.submitted_at if has_output else 0.0,
            prefill_s=self.first_token_at - self.admitted_at if has_output else 0.0,
            decode_s=self.last_token_at - self.first_token_at if has_output else 0.0,
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step computes of a sequence: its next num_tokens known tokens, and guesses behind the last."""

    sequence: Sequence
    num_tokens: int
    draft: tuple[int, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether it reaches the last known token, so that its logits give a new one."""
        return self.num_tokens == self.sequence.num_pending
