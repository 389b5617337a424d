"""The values that every room of the engine speaks: what is asked, what comes back, what one step computes.

Frozen dataclasses and plain arrays; no behaviour beyond validation.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from enum import IntEnum, StrEnum
from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class FinishReason(StrEnum):
    """Why a reply ended."""

    STOP = "stop"  # an end-of-turn token or a stop string
    LENGTH = "length"  # max_tokens, or the end of the window
    CANCELLED = "cancelled"
    ERROR = "error"
    PREFILLED = "prefilled"  # nothing more was asked for


class MissCause(StrEnum):
    """Why a prompt reused no more than it did, as far as the engine knows. Never guessed, never about other salts."""

    NONE = ""  # all that can be reused was
    NEW = "new"  # nothing of what follows is known to have been here: a first use, or a process that has forgotten
    EVICTED = "evicted"  # it was here, and gave way to others
    PURGED = "purged"  # it was here, and was purged, or could not be trusted
    RESTORE_FAILED = "restore_failed"  # its file could not be used
    DISABLED = "disabled"  # the cache is switched off


class Rank(IntEnum):
    """Who gives way to whom: lower runs first. Each rank is counted apart, so that none takes another's place."""

    TURN = 0
    SIDE = 1
    PREFILL_ONLY = 2


class Stage(StrEnum):
    """Where a request is. The order is the order in which a request passes through them."""

    LOADING = "loading"  # its model is not there yet
    QUEUED = "queued"
    READING = "reading"  # prefill
    WRITING = "writing"  # decode


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch their filter off.

    Raises ValueError with the name and the legal range of a value that is out of it.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output; 1 is off (Keskar et al., arXiv:1909.05858)
    presence_penalty: float = 0.0  # over output only
    frequency_penalty: float = 0.0  # over output only
    seed: int | None = None  # None: drawn by whoever makes the request, and recorded
    stop: tuple[str, ...] = ()
    max_tokens: int = 512

    def __post_init__(self) -> None:
        ranges = (
            ("temperature", self.temperature, 0.0, 5.0),
            ("top_k", self.top_k, 0, 1_000_000),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 10.0),
            ("presence_penalty", self.presence_penalty, -10.0, 10.0),
            ("frequency_penalty", self.frequency_penalty, -10.0, 10.0),
            ("max_tokens", self.max_tokens, 1, 10_000_000),
        )
        for name, value, low, high in ranges:
            kind = Integral if isinstance(low, int) else Real
            if not _is_number(value, kind) or not low <= value <= high:  # also refuses NaN
                what = "whole numbers from " if kind is Integral else ""
                raise ValueError(f"{name} is {value!r}, legal are {what}{low} to {high}")
        if self.seed is not None and not _is_number(self.seed, Integral):
            raise ValueError(f"seed is {self.seed!r}, legal are whole numbers")
        stop: object = self.stop
        if not isinstance(stop, tuple) or not all(isinstance(text, str) for text in stop):
            raise ValueError(f"stop is {self.stop!r}, legal is a list of texts")
        if any(not text for text in self.stop):
            raise ValueError("stop holds an empty string")


def _is_number(value: object, kind: type[Integral | Real]) -> bool:
    """True and False are none here, whatever Python says."""
    return isinstance(value, kind) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be answered. Token ids only: templates and text are the tokenizer's business.

    salt                  separates the cached KV of those who must not share it (opaque bytes, made on the server)
    num_public_tokens     so many tokens at the head hold public text only; full blocks inside are shared across salts
    tags                  opaque names (a conversation id) under which cached blocks can be purged
    is_low_retention      what it alone computed is the first to be evicted, and never written to disk
    num_lasting_tokens    but so many tokens at the head are kept like anybody's: the conversation that it extends
    is_side               not a turn, a title for instance: it waits while a turn waits or reads, and gives way to it
                          within a step; it takes nobody's place in the queue, and no block whose contents somebody
                          may soon want: without room it ends as cancelled
    priority              lower runs first among the waiting
    is_prefill_only       compute and cache the prompt's KV and end, without a token; runs only while nobody else does
    """

    request_id: str
    prompt_ids: I32  # (T,)
    sampling: SamplingParams
    salt: bytes = b""
    num_public_tokens: int = 0
    tags: tuple[str, ...] = ()
    is_low_retention: bool = False
    num_lasting_tokens: int = 0
    is_side: bool = False
    is_prefill_only: bool = False
    priority: int = 0
    is_continuation: bool = False  # the prompt ends inside the reply: a leading space of the output belongs to it
    stop_token_ids: tuple[int, ...] = ()  # end-of-turn ids; generated and counted, part of neither the ids nor the text

    @property
    def rank(self) -> Rank:
        return Rank.PREFILL_ONLY if self.is_prefill_only else Rank.SIDE if self.is_side else Rank.TURN


@dataclass(frozen=True, slots=True)
class RequestStats:
    """The numbers of one request, fixed at admission and at the end.

    num_reused_ram + num_reused_disk + num_computed == num_prompt_tokens, always. What a preempted request had to
    compute again is counted in num_recomputed and nowhere else. All counts are 0 for a request that was never admitted.
    Reuse is always of the beginning: it ends at token num_reused_ram + num_reused_disk, and miss_cause says why there.
    num_kept: so many leading tokens, of prompt and then reply, have left their KV in the cache.
    num_generated counts the stop token; of num_drafted guesses num_accepted were right, each of which saved a step.
    Times in seconds; ttft_s from submission to the first token.
    """

    num_prompt_tokens: int = 0
    num_reused_ram: int = 0
    num_reused_disk: int = 0
    num_computed: int = 0
    miss_cause: MissCause = MissCause.NONE
    num_recomputed: int = 0
    num_kept: int = 0
    num_generated: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    queue_s: float = 0.0
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def decode_tok_s(self) -> float:
        """Tokens per second after the first one; 0 when there was only one."""
        return (self.num_generated - 1) / self.decode_s if self.decode_s > 0 and self.num_generated > 1 else 0.0


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """A request reached a stage, or went on inside it.

    loading: num_done of num_total thousandths of the model have been read; num_total 0 while it waits for room, or for
    another model.
    queued: position (0 is next). reading: num_done of num_total prompt tokens have KV (reused ones count as done).
    A preempted request passes through the stages again; num_total then counts what it has written, too.
    """

    request_id: str
    stage: Stage
    position: int = 0
    num_done: int = 0
    num_total: int = 0


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token has been generated.

    Both fields are empty while half a character, or what may begin a stop string, is held back; then they hold all that
    has gathered since. After each event the ids so far decode to exactly the text so far, and nothing of it is taken
    back any more: both can be stored at any time. The stop token is never among them.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """The last event of a request, sent exactly once, whatever happened.

    text is what had been held back and now belongs to the reply; error is a sentence for a person, "" unless ERROR.
    token_ids are the ids of the whole reply, those of all TokenEvents included: they decode to exactly its text, so
    they can be stored and replayed. None when no ids do (the stop string began inside a token) or nobody knows them any
    more (the engine broke): the text has to be encoded again.
    """

    request_id: str
    finish_reason: FinishReason
    stats: RequestStats
    text: str = ""
    error: str = ""
    token_ids: tuple[int, ...] | None = ()


Event = ProgressEvent | TokenEvent | FinishedEvent


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message on its way into a prompt.

    With token_ids (what the model itself once generated, without the end-of-turn token) those ids are used as they are;
    otherwise content is encoded as plain text, control tokens impossible.
    is_stripped: the ids are the answer alone, the thinking in front of it has been taken away. Then there stands before
    them what the template writes before earlier replies, not what stood there when the reply was generated.
    is_private: a system prompt that is not the same for everybody: the head that holds it is no public one.
    """

    role: str
    content: str
    token_ids: tuple[int, ...] | None = None
    is_stripped: bool = False
    is_private: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation: ids, and where each message lies in them.

    spans[i] is the half-open token range that message i's content occupies. A system prompt that the template adds by
    itself has no span. num_public_tokens is the length of the head that holds no message but a leading system one.
    """

    ids: I32  # (T,)
    spans: tuple[tuple[int, int], ...]
    num_public_tokens: int


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """What one step computes: T tokens of B sequences, laid end to end.

    Token t of sequence b lies at rows query_start[b] .. query_start[b + 1] - 1. Its K and V are written to
    slot_mapping[t] (block_id * P + offset) before attention reads them. Sequence b attends to its first context_lens[b]
    positions (the tokens of this step included), found through block_tables[b]; position p sees positions <= p.
    """

    token_ids: I32  # (T,)
    positions: I32  # (T,)
    slot_mapping: I64  # (T,)
    query_start: I32  # (B + 1,)
    block_tables: tuple[I32, ...]  # B arrays of block ids
    context_lens: I32  # (B,)
    logits_rows: I32  # (R,) rows of T whose logits are wanted


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a person is told about a loaded model."""

    name: str
    path: str
    architecture: str
    num_parameters: int
    num_layers: int
    vocab_size: int
    max_position_embeddings: int
    kernel_tier: str
    fingerprint: str  # hex; weights, config and KV format: what cached KV depends on
    tokenizer_fingerprint: (
        str  # hex; vocabulary, merges, special tokens and chat template: what stored token ids depend on
    )
    kv_bytes_per_token: int
    weight_bytes: int = 0  # in memory
    pool_bytes: int = 0
    load_id: str = ""  # hex; of this one loading: what is cached in memory goes with it

    @property
    def memory_bytes(self) -> int:
        return self.weight_bytes + self.pool_bytes


@dataclass(frozen=True, slots=True)
class HitCounts:
    """What requests have looked up and found. Each counts once, at its first look-up; only turns do.

    A block counts if it is full, and as found only if all of it was. The ratios are 0 without anything looked up.
    """

    num_requests: int = 0
    num_requests_hit: int = 0  # with at least one reused token
    num_tokens: int = 0  # of prompts
    num_tokens_hit: int = 0  # reused, from memory or disk
    num_blocks: int = 0
    num_blocks_hit: int = 0

    def __sub__(self, earlier: HitCounts) -> HitCounts:
        """What has come since then."""
        return HitCounts(*(a - b for a, b in zip(astuple(self), astuple(earlier), strict=True)))

    @property
    def request_ratio(self) -> float:
        return self.num_requests_hit / self.num_requests if self.num_requests else 0.0

    @property
    def token_ratio(self) -> float:
        return self.num_tokens_hit / self.num_tokens if self.num_tokens else 0.0

    @property
    def block_ratio(self) -> float:
        return self.num_blocks_hit / self.num_blocks if self.num_blocks else 0.0


EVICTED_AGE_LIMITS_S = (60.0, 600.0, 3600.0, 86_400.0)  # that tell apart how long evicted blocks had been cached


@dataclass(frozen=True, slots=True)
class DiskStats:
    """The files of cached KV. Counts by cause since the start."""

    num_files: int = 0
    num_bytes: int = 0
    max_bytes: int = 0  # for the files of all models together
    num_evicted_files: int = 0
    num_restored_blocks: int = 0
    restore_s: float = 0.0  # spent reading them
    failed_restores: dict[str, int] = field(default_factory=dict)  # files that were no good: a miss each
    failed_writes: dict[str, int] = field(default_factory=dict)
    num_unsaved_blocks: int = 0  # cached and not on disk, nor on the way
    num_lost_blocks: int = 0  # evicted before they could be saved
    pending_bytes: int = 0  # copied and not yet written


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The prefix cache, as of the last request that ended or the last idle moment."""

    is_enabled: bool = True
    since_start: HitCounts = field(default_factory=HitCounts)
    recent: HitCounts = field(default_factory=HitCounts)  # of the last 1000 requests
    num_exact_repeats: int = 0  # requests that computed nothing
    num_side: int = 0  # side requests
    num_side_tokens: int = 0  # computed or generated by them
    num_prefill_only: int = 0
    num_prefill_only_tokens: int = 0  # computed by them
    num_relookups: int = 0  # second ones, of requests that were preempted or gave way, and came back
    num_relookup_tokens: int = 0
    num_relookup_tokens_hit: int = 0
    num_evicted_blocks: int = 0
    evicted_age_s: float = 0.0  # from release to eviction, the sum over the evicted blocks
    num_evicted_by_age: tuple[int, ...] = (0,) * (len(EVICTED_AGE_LIMITS_S) + 1)  # at most each limit, then all older
    oldest_idle_s: float = 0.0  # since the release of the cached block released first; up to date at any time
    prefill_saved_s: float = 0.0  # reused tokens at the measured speed of prefill
    disk: DiskStats | None = None  # None: nothing is kept on disk
    disk_problem: str = ""  # why, if it should be

    @property
    def mean_evicted_age_s(self) -> float:
        return self.evicted_age_s / self.num_evicted_blocks if self.num_evicted_blocks else 0.0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine, cheap enough to take on every page view."""

    num_running: int = 0
    num_waiting: int = 0
    max_waiting: int = 0
    num_blocks: int = 0
    num_blocks_used: int = 0  # referenced by a running request
    num_blocks_cached: int = 0  # unreferenced, kept for reuse
    num_blocks_free: int = 0  # unreferenced, empty
    block_size: int = 0
    pool_bytes: int = 0
    num_requests: int = 0  # finished since start
    num_prompt_tokens: int = 0
    num_reused_ram: int = 0
    num_reused_disk: int = 0
    num_computed: int = 0
    num_recomputed: int = 0  # once more, by preempted requests; part of no other count
    num_generated: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_preemptions: int = 0
    num_collisions: int = 0  # a key matched and the tokens did not: refused, counted
    num_yields: int = 0  # of side requests and those that only prefill, to turns
    cache: CacheStats = field(default_factory=CacheStats)
    uptime_s: float = 0.0
    error: str = field(default="")  # why the engine no longer answers, "" while it does
