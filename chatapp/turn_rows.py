"""Reads around a turn, a few small rows each: what its branch ends with, and what was sent near it before."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import QuerySet

from chatapp.models import Conversation, Generation, Message, Summary
from chatapp.storage import key_of, translated, uuid_of

_MAX_SENT = 1000  # of 100 bytes each


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
    """What a generation has sent (turn.sent), for which message, and where its window began.

    question_id: of its parent; before_id: of the parent's, the reply before. num_prompt: 0 when the engine never took
    the request.
    """

    message_id: UUID
    question_id: UUID
    before_id: UUID | None
    position: int  # of the message
    model_name: str
    window_start: UUID | None
    num_outside: int
    window_limit: int
    summary_id: UUID | None
    sent: bytes
    num_prompt: int
    created_at: datetime


@translated()
def newest(conversation: Conversation) -> Newest | None:
    """What its branch on screen ends with; None before it has begun.

    One small query, asked at every keystroke: put together by the ORM it takes twenty times the time of the processor.
    """
    leaf_id = conversation.active_leaf_id
    if leaf_id is None:
        return None
    generations, summaries = Generation._meta.db_table, Summary._meta.db_table
    query = f"""
        SELECT m.id, m.position, m.status, length(m.text),
            (SELECT g.id FROM {generations} g WHERE g.message_id = m.id ORDER BY g.created_at DESC LIMIT 1),
            (SELECT s.id FROM {summaries} s WHERE s.conversation_id = %s ORDER BY s.created_at DESC LIMIT 1)
        FROM {Message._meta.db_table} m WHERE m.id = %s
    """  # noqa: S608 -- no part of it comes from outside
    with connection.cursor() as cursor:
        cursor.execute(query, [key_of(conversation.id), key_of(leaf_id)])
        row = cursor.fetchone()
    if row is None:  # deleted since the conversation was read
        return None
    key, position, status, num_chars, *keys = row
    generation, summary = (None if each is None else uuid_of(each) for each in keys)
    return Newest(uuid_of(key), position, status, num_chars, generation, summary)


@translated()
def sent_near(question: Message) -> list[SentBefore]:
    """What was sent for the reply before a question, and for all replies to it and to its other versions. One query."""
    before, own = question.position - 1, question.position + 1
    # By depth, and no OR of parents: PostgreSQL reads the whole table for that.
    rows = _sent(_beside(question).filter(message__position__in=(before, own) if question.parent_id else (own,)))
    return [row for row in rows if row.before_id == question.parent_id or row.message_id == question.parent_id]


def newest_of(rows: Iterable[SentBefore], question: Message, reply: Message) -> SentBefore | None:
    """What a turn goes on from: the newest generation of the reply so far, or of the one before the question. rows:
    sent_near()."""
    earlier = reply.id if reply.text else question.parent_id
    return max((row for row in rows if row.message_id == earlier), key=lambda row: row.created_at, default=None)


@translated()
def sent_above(question: Message) -> list[SentBefore]:
    """What was sent in the whole conversation as deep as a question, the deepest first. One query."""
    rows = _beside(question).filter(num_prompt_tokens__gt=0, message__position__lte=question.position + 1)
    return _sent(rows.order_by("-message__position")[:_MAX_SENT])


def _beside(question: Message) -> QuerySet[Generation]:
    return Generation.objects.filter(message__conversation_id=question.conversation_id).order_by()


def _sent(rows: QuerySet[Generation]) -> list[SentBefore]:
    columns = (
        *("message_id", "message__parent_id", "message__parent__parent_id", "message__position", "model_name"),
        *("window_start", "num_outside", "window_limit", "summary_id", "sent", "num_prompt_tokens", "created_at"),
    )
    found = (SentBefore(*row) for row in rows.values_list(*columns))
    return [row._replace(sent=bytes(row.sent or b"")) for row in found]  # NULL, or a memoryview
