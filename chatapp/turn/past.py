"""A path as a model is given it: which text or ids each message contributes, and the prompt from any of its turns on.

A reply contributes the ids that the model generated, as long as tokenizer and template are those that made them:
encoding its text again gives other ids often enough to lose the cached KV of everything behind it. Text of people is
encoded as plain text by the template's room; control tokens in it stay text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import date
from typing import NamedTuple, Protocol
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from chatapp import llm, selectors
from chatapp.errors import WindowFull
from chatapp.models import ContextPolicy, Conversation, Message, MessageStatus, Role, ThinkingInHistory
from chatapp.selectors import HistoryMessage, SummaryText
from chatapp.turn import context
from chatapp.turn.context import Fit, Rules
from chatapp.turn.summary_rules import system_part

logger = logging.getLogger(__name__)

_MAX_OPENED = 8  # renderings of one path: where its window may begin with this text and that
_MAX_SEAM_LOSS = 4  # tokens that a text has fewer when it stands between others
_READ_AT_ONCE = 128  # messages, when it is not known where the window begins
_MIN_MESSAGE_TOKENS = 3  # a header, a word, an end: few templates write less
_MAX_HELD_BACK = 64  # tokens whose text was not shown yet when a reply was cut off; more than any stop string has


@dataclass(frozen=True, slots=True)
class Window:
    """What of a path is in a prompt. start: the first message, None for the very first; num_outside: those before it.

    num_left: of them, those that have left with this very turn. limit: the Rules.limit for which that was decided; 0
    for turns of a time that knew no windows. summary: which one stands for what is before it, or for as much of that as
    there was a summary of; num_unsummarised: for so many none does, though the policy wants one.
    """

    start: UUID | None = None
    num_outside: int = 0
    limit: int = 0
    summary: UUID | None = None
    num_left: int = 0
    num_unsummarised: int = 0


class Before(Protocol):
    """The generation that a turn goes on from: where its window began. As in Generation."""

    @property
    def window_start(self) -> UUID | None: ...
    @property
    def num_outside(self) -> int: ...
    @property
    def window_limit(self) -> int: ...


class Read(NamedTuple):
    """What has been read of a path: its last messages, and the summaries of its stretches, the shortest first."""

    messages: Sequence[HistoryMessage]
    summaries: Sequence[SummaryText] = ()


def past_of(conversation: Conversation, leaf: Message, before: Before | None) -> Read:
    """As much of the path to `leaf` as its prompt can need: from where the window of the turn before began.

    With more room than that turn had, what has left the window may come back; then, and where nothing is known, as many
    messages are read as could have room. A query or a few, for summaries three more. Raises EngineUnavailable, Invalid.
    """
    rules = rules_of(conversation)
    if not rules.is_cut:
        return Read(selectors.history(conversation, leaf))
    if before is not None and before.window_limit >= rules.limit:
        messages = selectors.history(conversation, leaf, since=before.window_start)
    else:
        messages = _newest(conversation, leaf, rules.room)
    if conversation.context_policy != ContextPolicy.SUMMARISE:
        return Read(messages)
    return Read(messages, selectors.summaries(leaf, messages[0].position))


def _newest(conversation: Conversation, leaf: Message, room: int) -> list[HistoryMessage]:
    """The path to `leaf`, or as much of it as has just no room: what lies above cannot be in the prompt."""
    model = model_of(conversation)
    fingerprint, most = llm.token_fingerprint(model), room // _MIN_MESSAGE_TOKENS + 2
    num = _READ_AT_ONCE
    while True:
        messages = selectors.history(conversation, leaf, limit=min(num, most))
        total = 0
        for index in range(len(messages) - 1, -1, -1):
            total += _least_tokens(messages[index], model, fingerprint)
            if total > room:
                return messages[max(0, index - 1) :]  # a reply with its question
        if len(messages) < min(num, most) or num >= most:
            return messages
        num *= 4


def _least_tokens(message: HistoryMessage, model: str, fingerprint: str) -> int:
    """So many tokens a message has in a prompt, or more."""
    if message.token_ids is not None and message.token_fingerprint == fingerprint:
        num = len(message.token_ids) // 4 - message.thinking_tokens
    else:
        num = len(llm.encode(message.text[message.thinking_chars :].strip(), model=model)) - _MAX_SEAM_LOSS
    return max(num, _MIN_MESSAGE_TOKENS)


class Past:
    """A path as turns, which can be rendered from any of them on. asked: what follows it and is no row.

    summary: what stands for all that lies before. num_reencoded: replies whose ids are missing or another tokenizer's.
    What is rendered is kept, but for the last message: asking() shares it. Blocking. Raises EngineUnavailable.
    """

    def __init__(self, conversation: Conversation, read: Read, asked: Sequence[llm.ChatMessage] = ()) -> None:
        rows = read.messages
        if rows and rows[0].role != Role.USER:  # its question has not been read
            rows = rows[1:]
        self._conversation = conversation
        self._summaries = read.summaries
        self._rows = rows
        self._asked = asked
        self._wants_summary = conversation.context_policy == ContextPolicy.SUMMARISE
        earlier = [summary for summary in read.summaries if rows and summary.position < rows[0].position]
        self.summary = earlier[-1] if earlier else None
        replayed = replay(conversation, rows)
        self.num_reencoded = replayed.num_reencoded
        self._head = replayed.messages[: len(replayed.messages) - len(rows)]
        self._messages = [*replayed.messages[len(self._head) :], *asked]
        self._questions = [index for index, message in enumerate(self._messages) if message.role == Role.USER]
        # A template may write a system prompt of its own where there is none: that one stays.
        self._is_summary_in_head = bool(self._head) and llm.takes_system_prompt(model_of(conversation))
        if self.summary is not None and self._is_summary_in_head:
            content = system_part(self._head[0].content, self.summary.text)
            self._head = [llm.ChatMessage("system", content, is_private=True)]
        self._opened: dict[int, Callable[[str], llm.Prompt]] = {}  # by turn: prompts that lack their last text
        self._shorter: list[Past | None] = []  # behind_summary, once that has been asked; more where threads have

    @property
    def conversation(self) -> Conversation:
        return self._conversation

    @property
    def summaries(self) -> Sequence[SummaryText]:
        return self._summaries

    @property
    def question(self) -> HistoryMessage:
        """The last row, which is to be answered."""
        return self._rows[-1]

    def messages_from(self, turn: int) -> list[llm.ChatMessage]:
        """What always stays, and everything from this turn on."""
        question, *others = self._messages[self._questions[turn] :]
        if self.summary is not None and not self._is_summary_in_head:
            question = replace(question, content=f"{system_part('', self.summary.text)}\n\n{question.content}")
        return [*self._head, question, *others]

    def rows_from(self, turn: int) -> Sequence[HistoryMessage]:
        """The rows of this turn and all behind it."""
        return self._rows[self._questions[turn] :]

    def fit(self, rules: Rules, begun: Sequence[int] = (), *, first: int = 0) -> Fit:
        """The prompt of as many turns from `first` on as the rules allow, `begun` of the reply behind it.

        Raises WindowFull, Invalid.
        """

        def build(turn: int) -> tuple[llm.Prompt, list[int]]:
            prompt = self.prompt_from(turn)
            offset = len(self._head) - self._questions[turn]
            starts = [prompt.spans[offset + index][0] for index in self._questions[turn:]]
            return (llm.extended(prompt, begun) if begun else prompt), starts

        return context.fit(len(self._questions), build, rules, first, is_continued=bool(begun))

    def prompt_from(self, turn: int) -> llm.Prompt:
        """The prompt of this turn and all behind it, whether it fits or not. Raises Invalid."""
        turn %= len(self._questions)
        messages = self.messages_from(turn)
        opened = self._opened.get(turn)
        if opened is None:
            opened = llm.open_prompt(
                messages,
                model=model_of(self._conversation),
                today=first_day(self._conversation),
                is_thinking_off=self._conversation.is_thinking_off,
            )
            if len(self._opened) >= _MAX_OPENED:
                self._opened.clear()
            self._opened[turn] = opened
        return opened(messages[-1].content)

    def asking(self, question: HistoryMessage) -> Past:
        """The same with another last message, which is a question as well."""
        assert not self._asked, "something else comes last"
        asking = copy(self)
        asking._rows = [*self._rows[:-1], question]
        asking._messages = [*self._messages[:-1], _question(question)]
        return asking

    def with_context(self, text: str) -> Past:
        """The same with this in front of the last message."""
        return self.asking(self.question._replace(context=text))

    def behind_summary(self) -> Past | None:
        """What is left when the longest summary takes the place of the turns it stands for; None without one."""
        if not self._shorter:
            self._shorter.append(self._behind_summary())
        shorter = self._shorter[0]
        return shorter if shorter is None or self._asked else shorter.asking(self.question)

    def _behind_summary(self) -> Past | None:
        inside = [summary for summary in self._summaries if self._rows and summary.position >= self._rows[0].position]
        num_leaving = inside[-1].position + 1 - self._rows[0].position if inside else 0
        if not inside or num_leaving > self._questions[-1]:
            return None
        return Past(self._conversation, Read(self._rows[num_leaving:], self._summaries), self._asked)

    def num_outside(self, turn: int) -> int:
        """How many messages of the path are not in a prompt from this turn on."""
        index = self._questions[turn]
        return self._rows[0].position + index

    def window_from(self, turn: int, rules: Rules, before: Before | None = None) -> Window:
        """What of the path a prompt from this turn on holds. before: what the turn goes on from."""
        first, summary, num_outside = self._rows[self._questions[turn]], self.summary, self.num_outside(turn)
        num_unsummarised = num_outside - (summary.num_told if summary else 0)
        return Window(
            start=first.id if first.position else None,
            num_outside=num_outside,
            limit=rules.limit,
            summary=summary.id if summary else None,
            num_left=max(0, num_outside - (before.num_outside if before else 0)),
            num_unsummarised=num_unsummarised if self._wants_summary else 0,
        )


def fitted(past: Past, rules: Rules, begun: Sequence[int] = ()) -> tuple[Past, Fit]:
    """The prompt of a path: when turns have to leave and there is a summary of some, it takes their place.

    Raises WindowFull, Invalid.
    """
    fit = past.fit(rules, begun)
    shorter = past.behind_summary() if fit.first else None
    if shorter is None:
        return past, fit
    try:
        return shorter, shorter.fit(rules, begun)
    except WindowFull:  # the summary is what is too much
        return past, fit


def strips_thinking(conversation: Conversation) -> bool:
    """Whether the prompts of a conversation hold earlier replies without their thinking. Blocking."""
    policy = conversation.thinking_in_history
    if policy == ThinkingInHistory.TEMPLATE:
        return llm.strips_thinking(model_of(conversation))
    return policy == ThinkingInHistory.STRIP


def model_of(conversation: Conversation) -> str:
    """The name of the model that answers."""
    return conversation.model_name or llm.default_model()


def first_day(conversation: Conversation) -> date:
    """For templates that write the date in front of the history: another day there, and none of it could be reused."""
    return timezone.localdate(conversation.created_at, timezone.get_default_timezone())


def rules_of(conversation: Conversation) -> Rules:
    """How large the prompts of a conversation may be. Blocking. Raises EngineUnavailable, Invalid."""
    policy = conversation.context_policy
    recent = conversation.recent_tokens or settings.RECOLLECT_RECENT_TOKENS
    return Rules(
        window=llm.window(model_of(conversation)),
        max_tokens=llm.sampling_params(conversation.sampling).max_tokens,
        is_cut=policy != ContextPolicy.FULL,
        trigger=settings.RECOLLECT_WINDOW_TRIGGER,
        target=settings.RECOLLECT_WINDOW_TARGET,
        recent_tokens=recent if policy == ContextPolicy.RECENT else 0,
    )


def summary_tokens(rules: Rules, *, num_head: int, num_asked: int) -> int:
    """How long a summary may get: what its model may write, and what is kept free for it when turns leave.

    num_head: tokens that always stay; num_asked: of the prompt that asks for it.
    """
    _, target = rules.marks(num_head)
    return min(settings.RECOLLECT_SUMMARY_TOKENS, target // 4, rules.window - num_asked)


@dataclass(frozen=True, slots=True)
class Replay:
    """The history as a model is given it. num_reencoded: replies whose ids are missing or another tokenizer's."""

    messages: list[llm.ChatMessage]
    num_reencoded: int


def replay(conversation: Conversation, history: Sequence[HistoryMessage]) -> Replay:
    """What the conversation's model is given of it. Blocking. Raises EngineUnavailable."""
    model = model_of(conversation)
    fingerprint = llm.token_fingerprint(model)
    messages = [llm.ChatMessage("system", conversation.system_prompt)] if conversation.system_prompt else []
    is_stripping = strips_thinking(conversation)
    num_reencoded = 0
    for message in history:
        if message.role != Role.ASSISTANT:
            messages.append(_question(message))
            continue
        ids = stored_ids(message, model, fingerprint)
        num_reencoded += ids is None and bool(message.text)
        if is_stripping or ids is None:  # thinking is markup: as plain text it would be something else
            messages.append(answer_of(message.text, ids, message.thinking_chars, message.thinking_tokens))
        else:
            messages.append(llm.ChatMessage(message.role, message.text, ids))
    if num_reencoded:
        logger.info(
            "conversation %s: %d of %d messages encoded again, their token ids are missing or another tokenizer's",
            conversation.id,
            num_reencoded,
            len(history),
        )
    return Replay(messages, num_reencoded)


def _question(message: HistoryMessage) -> llm.ChatMessage:
    """What a person has said, behind what was put in front of it."""
    return llm.ChatMessage(message.role, (message.context or "") + message.text)


def answer_of(text: str, ids: tuple[int, ...] | None, thinking_chars: int, thinking_tokens: int) -> llm.ChatMessage:
    """A reply without its thinking: the ids of its answer, if that begins with a token of its own.

    A reply that is nothing but thinking, because it was cut, stays as it is: there is nothing else to go on from.
    """
    role, answer = Role.ASSISTANT.value, text[thinking_chars:]
    if not thinking_chars or not answer.strip():
        return llm.ChatMessage(role, text, ids)
    return llm.ChatMessage(role, answer, ids[thinking_tokens:] if ids and thinking_tokens else None, is_stripped=True)


def stored_ids(message: HistoryMessage | Message, model: str, fingerprint: str) -> tuple[int, ...] | None:
    """The ids that the model generated for this text; None when they are missing or stand for something else."""
    ids = message.ids if message.token_fingerprint == fingerprint else None
    if ids is None:
        return None
    if message.status in (MessageStatus.DONE, MessageStatus.STOPPED):
        return ids  # the engine vouched for them
    # Saved in mid-reply: ids run ahead of the text by what was held back (half a character, half a stop string).
    for num_dropped in range(min(_MAX_HELD_BACK, len(ids))):
        kept = ids[: len(ids) - num_dropped]
        if llm.decode(kept, model=model) == message.text:
            return kept
    return None
