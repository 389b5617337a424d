"""How full the window would be if this were sent now: the prompt of the send itself, made and counted, not sent.

Counted by plan_turn(), so a person sees the number that the engine will get. Between two keystrokes nothing but the
draft changes: what was read and rendered for the first is kept for the next, for a few conversations, in memory only.
So a keystroke costs the encoding of the draft, what is looked up to recall something, and a few small queries.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any
from uuid import UUID

from chatapp import llm, search, selectors, turn_rows, vectors
from chatapp.errors import WindowFull
from chatapp.models import Conversation, Message, MessageStatus, Role
from chatapp.search import Hit
from chatapp.selectors import HistoryMessage
from chatapp.storage import translated
from chatapp.turn.parts import parts_of
from chatapp.turn.past import Past, Read, Window, first_day, model_of, past_of, rules_of
from chatapp.turn.prompt import Plan, plan_turn
from chatapp.turn_rows import Newest

MAX_KEPT = 32  # conversations that are being written in; more of them are read again
_DRAFT = UUID(int=0)  # its id as a row, which it is not yet
_PLACEHOLDER = "?"  # some templates render nothing that does not end with a question


@dataclass(frozen=True, slots=True)
class Count:
    """Tokens of the next prompt by what they are of; total is their sum, and that of the prompt.

    start: the first message that is sent, None for the very first, or for the draft itself; num_outside: those before
    it, as long as the draft is short; num_unsummarised: those of them for which a summary is missing. next_summary_id:
    the one that waits for the window to move. num_leaving: how many more leave with this draft. problem: why it cannot
    be sent, "" if it can.
    """

    window: int
    reserve: int
    total: int
    system: int = 0
    summary: int = 0
    history: int = 0
    recalled: int = 0
    draft: int = 0
    start: UUID | None = None
    num_outside: int = 0
    num_leaving: int = 0
    num_recalled: int = 0
    summary_id: UUID | None = None
    next_summary_id: UUID | None = None
    num_unsummarised: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Known:
    """What a count needs and no keystroke changes. base: the plan for hardly a question; None when that is too much.

    past: rendered but for its last message, the question.
    """

    key: tuple[Any, ...]
    past: Past
    base: Plan | None


class Gauge:
    """count() for the conversations of this process. Any thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, UUID], _Known] = OrderedDict()  # of a person and a conversation
        self._lock = Lock()

    @translated()
    def count(self, conversation: Conversation, text: str) -> Count:
        """The next prompt of the branch on screen with this draft, which may be empty.

        Blocking; one query when nothing but the draft has changed, and those of recall. Raises EngineUnavailable,
        Invalid, StorageUnavailable.
        """
        newest = turn_rows.newest(conversation)
        known = self._read(conversation, newest)
        try:
            plan = _plan(newest, known.past, text) if text else known.base
        except WindowFull as error:
            return _refused(known, _question(newest, text), error)
        if plan is None:
            return _refused(known, _question(newest, text), None)
        return _counted(plan, known, has_draft=bool(text))

    def _read(self, conversation: Conversation, newest: Newest | None) -> _Known:
        key, place = _key(conversation, newest), (conversation.owner_id, conversation.id)
        with self._lock:
            known = self._known.get(place)
        if known is None or known.key != key:
            known = _known(key, conversation, newest)
        with self._lock:
            self._known[place] = known
            self._known.move_to_end(place)
            while len(self._known) > MAX_KEPT:
                self._known.popitem(last=False)
        return known


def _known(key: tuple[Any, ...], conversation: Conversation, newest: Newest | None) -> _Known:
    """Read and rendered. A few queries. Raises EngineUnavailable, Invalid."""
    leaf = conversation.active_leaf
    before = selectors.generations_of([leaf.id]).get(leaf.id) if leaf is not None else None
    read = past_of(conversation, leaf, before) if leaf is not None else Read(())
    past = Past(conversation, read._replace(messages=[*read.messages, _question(newest, "")]))
    base: Plan | None = None
    with suppress(WindowFull):
        base = _plan(newest, past, "")
    return _Known(key, past, base)


def _key(conversation: Conversation, newest: Newest | None) -> tuple[Any, ...]:
    """Changes with all that decides what a prompt begins with."""
    settings = [field.attname for field in Conversation._meta.concrete_fields if field.attname not in _UNIMPORTANT]
    return (
        *(repr(getattr(conversation, name)) for name in settings),
        first_day(conversation),
        newest,
        rules_of(conversation),
        llm.token_fingerprint(model_of(conversation)),
    )


# Of a conversation that does not exist yet the times are those of the question; a template is told the day alone.
_UNIMPORTANT = ("title", "title_source", "is_pinned", "is_archived", "created_at", "updated_at")


def _plan(newest: Newest | None, past: Past, text: str) -> Plan:
    """As planning.planned() makes it when this is sent. Raises WindowFull, EngineUnavailable, Invalid."""
    conversation = past.conversation
    find: Callable[[int], Sequence[Hit]] | None = None
    if text and newest is not None and conversation.has_recall:
        # The question is no row yet: its path is that of the message it will follow.
        asked = Message(id=newest.id, conversation_id=conversation.id, text=text, position=newest.position)
        find = partial(_related, conversation, asked)
    reply = Message(conversation=conversation, role=Role.ASSISTANT)
    return plan_turn(past.asking(_question(newest, text)), reply, find=find)


def _related(conversation: Conversation, asked: Message, num_outside: int) -> list[Hit]:
    """No rows are locked here: the meaning is found out when there is something to compare it with."""
    meaning = vectors.meaning_of(asked.text) if num_outside else None
    return search.related(conversation, asked, num_outside, meaning=meaning)


def _question(newest: Newest | None, text: str) -> HistoryMessage:
    """The draft as a row at the end of the branch."""
    position = newest.position + 1 if newest is not None else 0
    values = (position, Role.USER.value, text or _PLACEHOLDER, MessageStatus.DONE.value, None, "", 0, 0, None)
    return HistoryMessage(_DRAFT, *values)


def _counted(plan: Plan, known: _Known, *, has_draft: bool) -> Count:
    parts = parts_of(plan, None if has_draft else plan.prompt.spans[-1][0])
    base = known.base or plan
    rules = rules_of(plan.conversation)
    count = Count(
        window=rules.window,
        reserve=rules.reserve,
        total=parts.total,
        system=parts.system,
        summary=parts.summary,
        history=parts.history,
        recalled=parts.recalled,
        draft=parts.new,
        num_leaving=plan.window.num_outside - base.window.num_outside,
        num_recalled=len(plan.recalled.sources) if plan.recalled is not None else 0,
    )
    return _with_window(count, known.past, base.window)


def _with_window(count: Count, past: Past, window: Window) -> Count:
    """With where the window begins as long as the draft is short, and what stands there."""
    waiting = [each.id for each in past.summaries if each.position >= window.num_outside]
    return replace(
        count,
        start=None if window.start == _DRAFT else window.start,
        num_outside=window.num_outside,
        summary_id=window.summary,
        next_summary_id=waiting[-1] if waiting else None,
        num_unsummarised=window.num_unsummarised,
    )


def _refused(known: _Known, question: HistoryMessage, error: WindowFull | None) -> Count:
    """The parts of a prompt that is too long, as long as it would be. error: why it is; None without a draft."""
    past = known.past.asking(question)
    rules = rules_of(past.conversation)
    prompt = past.prompt_from(-1 if rules.is_cut else 0)
    start = prompt.spans[-1][0]
    system = prompt.spans[1 if past.conversation.system_prompt else 0][0]
    end = len(prompt.ids) if error is not None else start
    if error is None:  # not even a word more
        try:
            past.fit(rules)
        except WindowFull as refusal:
            error = refusal
    count = Count(
        window=rules.window,
        reserve=rules.reserve,
        total=end,
        system=system,
        history=start - system,
        draft=end - start,
        problem=error.message if error is not None else "",
    )
    return count if known.base is None else _with_window(count, known.past, known.base.window)


gauge = Gauge()  # of this process
