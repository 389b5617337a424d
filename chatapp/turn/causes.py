"""Why no more of a prompt was reused: found by comparing what is sent with what earlier generations have sent.

Two things can stand between a prompt and the KV of the turns before it: it begins with other tokens than they did, or
the engine no longer has what they left. Only generations are compared. What else was computed (a prompt prepared ahead,
a title, another conversation) can only make the engine reuse more than is expected here, and then there is nothing to
explain. Pure; what cannot be told is UNKNOWN, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from uuid import UUID

from chatapp import llm
from chatapp.models import PrefixBreak
from chatapp.turn.sent import NOWHERE, Outline, Sent

_SEEN_BY_THE_ENGINE = {
    llm.MissCause.EVICTED: PrefixBreak.EVICTED,
    llm.MissCause.PURGED: PrefixBreak.PURGED,
    llm.MissCause.RESTORE_FAILED: PrefixBreak.RESTORE_FAILED,
}


class Relation(IntEnum):
    """Where an earlier generation stands, the most telling first."""

    OWN = 0  # another attempt to answer the same question
    BEFORE = 1  # the reply before the question
    PATH = 2  # further up the branch
    VERSION = 3  # a reply to another version of the question
    ELSEWHERE = 4


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier generation of the conversation beside the prompt: their first num_common tokens are equal, at least.

    sent None: from before such things were kept.
    """

    relation: Relation
    position: int
    created_at: datetime
    sent: Sent | None
    num_common: int
    window_start: UUID | None = None
    summary: UUID | None = None

    @property
    def num_read(self) -> int:
        """Tokens of the prompt whose KV it has left behind."""
        return min(self.num_common, self.sent.num_kept) if self.sent else 0

    @property
    def has_read_all(self) -> bool:
        """Whether it has left all of its prompt behind: it was not stopped before, and the cache was on."""
        return self.sent is not None and self.sent.num_kept >= self.sent.prompt.position


@dataclass(frozen=True, slots=True)
class Explanation:
    """What ended the reuse, and in which message; "" when everything was reused that could be expected.

    num_known: tokens of the prompt that earlier turns of the conversation had read. message None: the head.
    """

    cause: str = ""
    message: UUID | None = None
    position: int | None = None
    num_known: int = 0


def explain(
    outline: Outline,
    earlier: Sequence[Earlier],
    identity: llm.KvIdentity,
    *,
    num_prompt: int,
    num_reused: int,
    miss: llm.MissCause,
) -> Explanation:
    """Compare. When tokens were lost by the engine and the prompt differs as well, what costs more is shown."""
    usable = num_prompt - 1  # the last token is mostly computed, for its logits
    mine = [each for each in earlier if each.sent and each.sent.identity.model == identity.model]
    num_known = min(usable, max((each.num_read for each in mine), default=0))
    if num_reused >= usable:
        return Explanation(num_known=num_known)
    if not earlier:
        return Explanation(PrefixBreak.FIRST_USE, num_known=num_known)
    if miss == llm.MissCause.DISABLED:
        return _explanation(outline, PrefixBreak.DISABLED, num_reused, num_known)
    start = max(num_known, num_reused)
    cause, place, end = _difference(outline, earlier, mine, start)
    num_lost = num_known - num_reused
    if num_lost > 0 and num_lost >= (end - start if cause else 0):
        cause, place = _loss(mine, identity, num_reused, miss), num_reused
    return _explanation(outline, cause, place, num_known)


def _explanation(outline: Outline, cause: str, place: int, num_known: int) -> Explanation:
    if not cause:
        return Explanation(num_known=num_known)
    part = outline.part_at(place)
    return Explanation(cause, part.message, part.position, num_known)


# --- the engine no longer has it --------------------------------------------------------------------------------------


def _loss(mine: Iterable[Earlier], identity: llm.KvIdentity, num_reused: int, miss: llm.MissCause) -> PrefixBreak:
    """Why less is left than generations of this model had read.

    What the engine knows of the first missing block counts first. Otherwise it was left in memory that is gone, or that
    others' requests have used since: nothing else ends what a loaded model keeps, and purges it remembers.
    """
    if miss in _SEEN_BY_THE_ENGINE:
        return _SEEN_BY_THE_ENGINE[miss]
    had = [each.sent.identity for each in mine if each.sent and each.num_read > num_reused]
    own = [each for each in had if each.salt == identity.salt]
    if not own:
        return PrefixBreak.OTHER_SALT
    if any(each.load == identity.load for each in own):
        return PrefixBreak.EVICTED
    return PrefixBreak.UNLOADED if any(each.run == identity.run for each in own) else PrefixBreak.RESTARTED


# --- the prompt is another --------------------------------------------------------------------------------------------


def _difference(
    outline: Outline, earlier: Sequence[Earlier], mine: Sequence[Earlier], start: int
) -> tuple[str, int, int]:
    """(cause, where it begins, up to where it costs) of what generations have not read as it stands; "" for nothing.

    start: so many leading tokens are accounted for.
    """
    if start < outline.history_end:
        return _in_history(outline, earlier, mine, start)
    if not mine and any(each.sent for each in earlier):
        return PrefixBreak.MODEL_CHANGED, start, outline.prompt_end
    relations = {each.relation for each in earlier}
    versions = [each for each in earlier if each.relation == Relation.VERSION]
    is_another = bool(versions) and all(each.num_common < outline.question_end for each in versions)
    if start < outline.question_end and is_another and Relation.OWN not in relations:
        return PrefixBreak.EDITED, start, outline.question_end
    if outline.begun is not None and outline.begun.is_encoded and Relation.OWN in relations:
        return PrefixBreak.REPLY_ENCODED, start, int(outline.ends[-1])
    return "", start, start


def _in_history(
    outline: Outline, earlier: Sequence[Earlier], mine: Sequence[Earlier], start: int
) -> tuple[str, int, int]:
    """As _difference, for what lies before the question."""
    end = outline.history_end
    whole = [each for each in mine if each.num_common >= end]
    if whole:  # sent before as it stands, but not read to its end
        has_ended = any(each.has_read_all for each in whole)
        was_off = any(each.sent and each.sent.identity.load == NOWHERE for each in whole)
        cause = PrefixBreak.DISABLED if was_off else PrefixBreak.FIRST_USE
        return ("", start, start) if has_ended else (cause, start, end)
    nearest = min(earlier, key=lambda each: (each.relation, -each.position, -each.created_at.timestamp()))
    differs_at = max([start, *(each.num_common for each in mine)])
    return _break_after(outline, nearest, nearest in mine, differs_at), differs_at, end


def _break_after(outline: Outline, nearest: Earlier, is_mine: bool, differs_at: int) -> PrefixBreak:
    """What has happened since the generation that should have read this history."""
    sent = nearest.sent
    if sent is None:
        return PrefixBreak.UNKNOWN
    if not is_mine:
        return PrefixBreak.MODEL_CHANGED
    if nearest.summary != outline.summary:
        return PrefixBreak.SUMMARY_REPLACED
    if nearest.window_start != outline.window_start:
        return PrefixBreak.WINDOW_MOVED
    if sent.head != outline.mark(outline.head_end):
        return PrefixBreak.PRESET_CHANGED
    if nearest.relation == Relation.ELSEWHERE:
        return PrefixBreak.UNKNOWN
    part = outline.part_at(differs_at)
    if part.position is not None and part.position > nearest.position:
        return PrefixBreak.FIRST_USE  # no generation is known to have sent it: its process was killed
    if part.is_stripped:
        return PrefixBreak.THINKING_STRIPPED
    return PrefixBreak.REPLY_ENCODED if part.is_encoded else PrefixBreak.TEMPLATE_REWROTE
