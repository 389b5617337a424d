"""What a person does with a conversation besides talking: name it, pin it, go to another branch, delete it."""

from __future__ import annotations

from uuid import UUID

from chatapp.models import Conversation, User


def conversation_rename(*, user: User, conversation_id: UUID, title: str) -> Conversation:
    """A title by a person, which nothing replaces. Raises NotFound, Invalid (empty, longer than 200)."""
    raise NotImplementedError


def conversation_pin(*, user: User, conversation_id: UUID, is_pinned: bool) -> Conversation:
    """Raises NotFound."""
    raise NotImplementedError


def conversation_delete(*, user: User, conversation_id: UUID) -> None:
    """The conversation, its messages and their numbers; after the commit also its cached KV. Raises NotFound."""
    raise NotImplementedError


def branch_select(*, user: User, conversation_id: UUID, message_id: UUID) -> Conversation:
    """Show the branch through this message: its newest leaf becomes the active one. Raises NotFound, Conflict."""
    raise NotImplementedError
