"""Hints between sockets and pages, also of other processes, through the channel layer: "read it again", never content.

The layer drops messages when it is full, so nothing may depend on a hint alone: a tab that missed one is healed by its
next read. One group per person; only that person's sockets are in it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer


def group_of(user_id: int) -> str:
    """The group that a person's sockets join."""
    return f"user.{user_id}"


async def aconversation_changed(
    user_id: int, conversation_id: UUID, *, title: str = "", is_deleted: bool = False
) -> None:
    """A conversation got another turn, title or branch, or has been deleted."""
    await _send(
        user_id,
        {
            "type": "conversation.changed",
            "conversation": str(conversation_id),
            "title": title,
            "is_deleted": is_deleted,
        },
    )


def conversation_changed(user_id: int, conversation_id: UUID, *, title: str = "", is_deleted: bool = False) -> None:
    """The same for a view."""
    async_to_sync(aconversation_changed)(user_id, conversation_id, title=title, is_deleted=is_deleted)


def account_changed(user_id: int) -> None:
    """Password, activity or existence of an account changed: its sockets check whether they may stay."""
    async_to_sync(_send)(user_id, {"type": "account.changed"})


def session_ended(user_id: int, session_key: str) -> None:
    """One session of a person has been logged out: its sockets close."""
    async_to_sync(_send)(user_id, {"type": "session.ended", "session_key": session_key})


async def _send(user_id: int, message: dict[str, Any]) -> None:
    layer = get_channel_layer()
    assert layer is not None, "settings.CHANNEL_LAYERS has a default layer"
    await layer.group_send(group_of(user_id), message)
