"""Vectors of messages: made from what a message says, so they can be lost and are made again."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from django.db import transaction

from chatapp import selectors
from chatapp.models import Message, MessageVector
from chatapp.storage import translated


@translated()
def vectors_store(*, encoder: str, vectors: Mapping[UUID, bytes]) -> None:
    """In place of those of the same encoder. Messages that have been deleted meanwhile get none."""
    with transaction.atomic():
        rows = dict(Message.objects.filter(id__in=vectors).order_by().values_list("id", "conversation_id"))
        there = selectors.conversations_lock(set(rows.values()))
        MessageVector.objects.bulk_create(
            [
                MessageVector(message_id=name, encoder=encoder, vector=vectors[name])
                for name, conversation_id in rows.items()
                if conversation_id in there
            ],
            update_conflicts=True,
            unique_fields=["message", "encoder"],
            update_fields=["vector"],
        )


@translated()
def vectors_prune(*, encoder: str, limit: int = 500) -> int:
    """Remove so many at most of other encoders, which nobody compares any more; returns how many."""
    old = MessageVector.objects.exclude(encoder=encoder).values_list("id", flat=True)[:limit]
    num, _ = MessageVector.objects.filter(id__in=list(old)).delete()
    return num
