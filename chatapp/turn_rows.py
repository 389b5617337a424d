"""Reads around a turn, a few small rows each: what its branch ends with, and what was sent near it before."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Length

from chatapp.models import Conversation, Generation, Message, Summary
from chatapp.storage import translated

_MAX_SENT = 1000  # of 100 bytes each
_ADMITTED = Generation.objects.filter(num_prompt_tokens__gt=0).order_by()  # the engine took the request


class Newest(NamedTuple):
    """What a branch ends with now: when any of it changes, its next prompt may begin otherwise.

    id, position, status, num_chars: of its last message; generation: of that, and summary: of the conversation, newest.
    """

    id: UUID
    position: int
    status: str
    num_chars: int
    generation: UUID | None
    summary: UUID | None


class SentBefore(NamedTuple):
    """What a generation that was admitted has sent (turn.sent), and for which message.

    question_id: of its parent; before_id: of the parent's, the reply before.
    """

    message_id: UUID
    question_id: UUID
    before_id: UUID | None
    position: int  # of the message
    model_name: str
    window_start: UUID | None
    summary_id: UUID | None
    sent: bytes
    created_at: datetime


@translated()
def newest(conversation: Conversation) -> Newest | None:
    """What its branch on screen ends with; None before it has begun. One small query: asked at every keystroke."""
    if conversation.active_leaf_id is None:
        return None
    generations = Generation.objects.filter(message=OuterRef("pk")).order_by("-created_at").values("id")
    summaries = Summary.objects.filter(conversation=conversation).order_by("-created_at").values("id")
    rows = Message.objects.filter(id=conversation.active_leaf_id)
    columns = ("id", "position", "status", Length("text"), Subquery(generations[:1]), Subquery(summaries[:1]))
    return Newest(*rows.values_list(*columns).get())


@translated()
def sent_near(question: Message) -> list[SentBefore]:
    """What was sent for the reply before a question, and for all replies to it and to its other versions. One query."""
    if question.parent_id is None:
        return _sent(_ADMITTED.filter(message__conversation_id=question.conversation_id, message__position=1))
    # Not one filter with OR: PostgreSQL reads the whole table for that.
    replies, before = _ADMITTED.filter(message__parent__parent_id=question.parent_id), Q(message_id=question.parent_id)
    return _sent(replies, _ADMITTED.filter(before))


@translated()
def sent_above(question: Message) -> list[SentBefore]:
    """What was sent in the whole conversation as deep as a question, the deepest first. One query."""
    rows = _ADMITTED.filter(
        message__conversation_id=question.conversation_id, message__position__lte=question.position + 1
    )
    return _sent(rows.order_by("-message__position")[:_MAX_SENT])


def _sent(*parts: QuerySet[Generation]) -> list[SentBefore]:
    columns = (
        *("message_id", "message__parent_id", "message__parent__parent_id", "message__position"),
        *("model_name", "window_start", "summary_id", "sent", "created_at"),
    )
    first, *others = (part.values_list(*columns) for part in parts)
    found = (SentBefore(*row) for row in (first.union(*others, all=True) if others else first))
    return [row._replace(sent=bytes(row.sent or b"")) for row in found]  # NULL, or a memoryview
