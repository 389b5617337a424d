"""What was sent, in a form that can be kept with every generation and compared with the next prompt.

A generation keeps the places where five parts of its prompt end, each with a digest of all tokens up to there. A place
that a later prompt reaches with the same digest was reached through the same tokens. More is not needed: the replies of
a branch hang one below the other, so the generations of a conversation are the marks of its whole history, and where
reuse ended the engine counts exactly. So the cost is the same at the first turn and at the thousandth.

Knows no database and no engine: tokens, digests and places only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from chatapp import llm
from chatapp.models import Role
from chatapp.selectors import HistoryMessage

U64 = NDArray[np.uint64]

NOWHERE = bytes(8)  # KvIdentity.load of what was read with the cache off: it was left in no memory

_VERSION = 2
_LAYOUT = struct.Struct("<B8s8s8s8s5I5QI")
_RECORD = np.dtype(  # the same
    [("version", "u1"), ("identity", "V32"), ("positions", "<u4", 5), ("digests", "<u8", 5), ("num_kept", "<u4")]
)


class Mark(NamedTuple):
    """So many tokens, and the digest of all of them."""

    position: int
    digest: int


@dataclass(frozen=True, slots=True)
class Sent:
    """What one generation sent, and left behind.

    head        ends where the first message begins; a leading system prompt is part of it
    history     ends with the last message before the question, or with the head
    question    ends with the message that was to be answered
    prompt      ends where the reply begins, whether it was begun here or is continued
    reply       ends with the reply as it is stored and will be sent again; equals prompt when no ids are stored
    num_kept    so many leading tokens of prompt and reply had their KV in the cache when it ended
    """

    identity: llm.KvIdentity
    head: Mark
    history: Mark
    question: Mark
    prompt: Mark
    reply: Mark
    num_kept: int

    @property
    def marks(self) -> tuple[Mark, ...]:
        """From the beginning to the end."""
        return self.head, self.history, self.question, self.prompt, self.reply

    def pack(self) -> bytes:
        """As Generation.sent stores it: little-endian, 97 bytes."""
        identity, marks = self.identity, self.marks
        return _LAYOUT.pack(
            _VERSION,
            *(identity.model, identity.salt, identity.run, identity.load),
            *(mark.position for mark in marks),
            *(mark.digest for mark in marks),
            self.num_kept,
        )

    @classmethod
    def unpack(cls, raw: bytes | None) -> Sent | None:
        """What pack() packed; None for nothing, and for what another version of this room wrote."""
        if not is_readable(raw):
            return None
        assert raw is not None
        _, model, salt, run, load, *numbers, num_kept = _LAYOUT.unpack(raw)
        head, history, question, prompt, reply = map(Mark, numbers[:5], numbers[5:])
        return cls(llm.KvIdentity(model, salt, run, load), head, history, question, prompt, reply, num_kept)


def is_readable(raw: bytes | None) -> bool:
    """Whether there is something, and this version of this room wrote it."""
    return bool(raw) and len(raw) == _LAYOUT.size and raw[0] == _VERSION  # type: ignore[arg-type, index]


class Part(NamedTuple):
    """A stretch of a prompt that is one message, with what the template writes in front of it. message None: the head.

    position: depth of the message in its branch. is_stripped: its thinking was left out. is_encoded: a reply whose text
    was encoded, for want of the ids that the model had written.
    """

    message: UUID | None = None
    position: int | None = None
    is_stripped: bool = False
    is_encoded: bool = False


@dataclass(frozen=True, slots=True)
class Outline:
    """A prompt about to be sent: the head, a part for each message, and the reply that is continued, if one is.

    ends[i] is where part i ends, (N,) ascending. rows and messages are those behind the head, in order.
    history_end: where the last message before the question ends; the end of the head when there is none.
    prompt_end: where the reply begins. begun: the part of it that is sent; it is the last one, and ends where all does.
    window_start: the first message that is sent, if that is not the first one of the conversation; summary: what stands
    for those before it.
    """

    digests: U64  # (T + 1,) at least: of every length
    ends: NDArray[np.int64]  # (N,)
    rows: Sequence[HistoryMessage]
    messages: Sequence[llm.ChatMessage]
    head_end: int
    history_end: int
    question_end: int
    prompt_end: int
    begun: Part | None = None
    window_start: UUID | None = None
    summary: UUID | None = None

    def mark(self, position: int) -> Mark:
        return Mark(position, int(self.digests[position]))

    def reaches(self, mark: Mark) -> bool:
        """Whether the first tokens up to this mark are those of the prompt."""
        return mark.position < len(self.digests) and int(self.digests[mark.position]) == mark.digest

    def part_at(self, position: int) -> Part:
        """The part that token `position` belongs to; what follows the last one counts as that."""
        index = int(np.searchsorted(self.ends, position, side="right"))
        if self.begun is not None and index > len(self.rows):
            return self.begun
        if index == 0:
            return Part()
        index = min(index, len(self.rows)) - 1
        row, message = self.rows[index], self.messages[index]
        is_encoded = row.role == Role.ASSISTANT and message.token_ids is None
        return Part(row.id, row.position, message.is_stripped, is_encoded)

    def sent(self, identity: llm.KvIdentity, reply_ids: Sequence[int], num_kept: int) -> Sent:
        """What is kept of it. reply_ids: all that is stored of the reply, its continued beginning included."""
        prompt = self.mark(self.prompt_end)
        return Sent(
            identity,
            self.mark(self.head_end),
            self.mark(self.history_end),
            self.mark(self.question_end),
            prompt,
            extended(prompt, reply_ids),
            num_kept,
        )


def outline_of(
    prompt: llm.Prompt,
    messages: Sequence[llm.ChatMessage],
    rows: Sequence[HistoryMessage],
    *,
    begun: Part | None = None,
    num_begun: int = 0,
    dropped: Sequence[int] = (),
    window_start: UUID | None = None,
    summary: UUID | None = None,
) -> Outline:
    """Where the parts of a prompt lie. The last of its messages are those of the rows; what comes before has no row.

    What stands between the system prompt and the first row counts as part of that. begun: what the last num_begun
    tokens are; dropped: tokens that the model wrote behind them, and will write again.
    """
    num_leading = len(messages) - len(rows)
    ends = [stop for _, stop in prompt.spans]
    head_end = ends[0] if num_leading else prompt.spans[0][0]
    all_ends = [head_end, *ends[num_leading:], *([len(prompt.ids)] if begun else [])]
    return Outline(
        digests=prefix_digests(np.concatenate([prompt.ids, np.asarray(dropped, np.int32)])),
        ends=np.maximum.accumulate(np.array(all_ends, np.int64)),
        rows=rows,
        messages=messages[num_leading:],
        head_end=head_end,
        history_end=ends[-2] if len(rows) > 1 else head_end,
        question_end=ends[-1],
        prompt_end=len(prompt.ids) - num_begun,
        begun=begun,
        window_start=window_start,
        summary=summary,
    )


def identities_of(packed: Sequence[bytes]) -> list[bytes]:
    """Of each, what tells one KvIdentity from another."""
    return [raw[1:33] for raw in packed]


def common_lengths(outline: Outline, packed: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each of so many packed ones, (N,): leading tokens that the prompt certainly shares with it, and how many of
    these it has left behind. 0.05 ms for a thousand.
    """
    records = np.frombuffer(b"".join(packed), _RECORD)
    positions = records["positions"].astype(np.int64)  # (N, 5)
    is_inside = positions < len(outline.digests)
    is_equal = is_inside & (outline.digests[np.where(is_inside, positions, 0)] == records["digests"])
    num_common = np.where(is_equal, positions, 0).max(axis=1, initial=0)
    return num_common, np.minimum(num_common, records["num_kept"])


def prefix_digests(ids: NDArray[np.int32]) -> U64:
    """(T + 1,): digests of the first 0 to T of ids (T,). 0.1 ms per ten thousand tokens.

    Sums of mixed (position, token) pairs: no cryptography, since nothing but the wording of an explanation hangs on it.
    """
    digests = np.zeros(len(ids) + 1, np.uint64)
    np.cumsum(_mixed(ids, 0), out=digests[1:])
    return digests


def extended(mark: Mark, ids: Sequence[int]) -> Mark:
    """The mark so many tokens further on."""
    total = int(_mixed(np.asarray(ids, np.int32), mark.position).sum(dtype=np.uint64))
    return Mark(mark.position + len(ids), (mark.digest + total) % (1 << 64))


def _mixed(ids: NDArray[np.int32], start: int) -> U64:
    """A number for each token at its position, (T,). Source: the finaliser of SplitMix64 (Steele et al., 2014)."""
    mixed = (np.arange(start + 1, start + 1 + len(ids), dtype=np.uint64) << np.uint64(32)) + ids.astype(np.uint64)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
