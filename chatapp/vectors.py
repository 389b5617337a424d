"""Reading vectors of messages: which are missing, and which messages mean what is asked."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet

from chatapp import llm
from chatapp.models import OPEN_STATUSES, Message, MessageVector
from chatapp.storage import translated
from chatapp.words import telling_words

MAX_VECTORS = 1000  # that a question is compared with; of a longer conversation the newest ones. 10 to 15 ms
# Of cosines. With MiniLM two sentences about one thing have 0.3 to 0.8 ("What is my profession?" and "I work as a
# dentist" 0.31), two about different things seldom more than 0.2.
MIN_LIKENESS = 0.3
MAX_NEAREST = 32

Place = tuple[int, UUID]  # position and id of a message


def meaning_of(text: str) -> llm.Meaning | None:
    """What is compared with earlier messages when this is asked. A model computes: never while rows are locked.

    None without an encoder, and for a text without a telling word: "Thanks, that is all" means the same as half of what
    was ever answered.
    """
    return llm.meaning_of(text) if llm.has_encoder() and telling_words(text) else None


@translated()
def nearest(message: Message, meaning: llm.Meaning | None, before: int) -> list[Place]:
    """Messages of its conversation, at positions below `before`, that mean something like it; the nearest ones first.

    meaning: of its text. Empty without, or before the encoder has got to any of them. One query and at most MAX_VECTORS
    rows, however long the conversation is; nothing is encoded.
    """
    if meaning is None or before <= 0:
        return []
    rows = MessageVector.objects.filter(
        encoder=meaning.encoder,
        message__conversation_id=message.conversation_id,
        message__position__lt=before,
    )
    newest = rows.order_by("-message__position").values_list("message__position", "message_id", "vector")
    found = list(newest[:MAX_VECTORS])
    likeness = llm.likeness(meaning, [bytes(vector) for _, _, vector in found])
    alike = [
        (value, (position, message_id))
        for value, (position, message_id, _) in zip(likeness, found, strict=False)  # none where they cannot be compared
        if value >= MIN_LIKENESS
    ]
    return [place for _, place in sorted(alike, key=lambda each: (-each[0], -each[1][0]))[:MAX_NEAREST]]


@translated()
def without_vector(encoder: str, *, since: datetime | None, until: datetime, limit: int) -> list[Message]:
    """Finished messages, made in this time, that have no vector of this encoder; the newest ones first."""
    rows = Message.objects.filter(created_at__lte=until).exclude(status__in=OPEN_STATUSES)
    if since is not None:
        rows = rows.filter(created_at__gte=since)
    known = MessageVector.objects.filter(message=OuterRef("pk"), encoder=encoder)
    return list(_texts(rows.filter(~Exists(known)).order_by("-created_at", "-id"))[:limit])


@translated()
def finished(message_ids: Collection[UUID]) -> list[Message]:
    """Which of these messages are there and are not being written."""
    return list(_texts(Message.objects.filter(id__in=message_ids).exclude(status__in=OPEN_STATUSES).order_by()))


def _texts(rows: QuerySet[Message]) -> QuerySet[Message]:
    return rows.only("text", "thinking_chars", "created_at")
