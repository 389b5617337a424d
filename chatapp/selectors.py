"""Reads. They take the person first and answer NotFound for what belongs to somebody else: ownership is decided here only.

Each names the columns that it needs; the number of queries does not depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from chatapp.models import Conversation, Generation, Message, Preset, User


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """Part of the list: pinned ones first, then by last turn. next_cursor goes into the next call; "" at the end."""

    conversations: list[Conversation]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """A message on the active path. sibling_ids holds the versions in the order they were made, this one included."""

    message: Message
    sibling_ids: tuple[UUID, ...]
    generation: Generation | None  # the newest; None for user messages and unfinished replies

    @property
    def version(self) -> int:
        """1-based place among the siblings: the 2 in "2 of 3"."""
        return self.sibling_ids.index(self.message.id) + 1

    @property
    def previous_id(self) -> UUID | None:
        """The version before this one."""
        return self.sibling_ids[self.version - 2] if self.version > 1 else None

    @property
    def next_id(self) -> UUID | None:
        """The version after this one."""
        return self.sibling_ids[self.version] if self.version < len(self.sibling_ids) else None


@dataclass(frozen=True, slots=True)
class Transcript:
    """A window of the active path, top to bottom. older_cursor goes in as `before` for what lies above; None at the top."""

    messages: list[TranscriptMessage]
    older_cursor: UUID | None


def is_set_up() -> bool:
    """Whether the installation has an account; until then the first visitor makes the owner's."""
    raise NotImplementedError


def conversation_get(user: User, conversation_id: UUID) -> Conversation:
    """One conversation of this person. Raises NotFound."""
    raise NotImplementedError


def message_get(user: User, conversation_id: UUID, message_id: UUID) -> Message:
    """One message of this person, with `conversation` loaded. Raises NotFound."""
    raise NotImplementedError


def conversation_list(
    user: User, *, cursor: str = "", query: str = "", limit: int = 50, is_archived: bool = False
) -> ConversationPage:
    """A page of this person's conversations, only those with `query` in the title if given. Raises Invalid for a bad cursor."""
    raise NotImplementedError


def preset_list(user: User) -> list[Preset]:
    """What this person may start a conversation with: public presets, then own ones; the default one first."""
    raise NotImplementedError


def preset_get(user: User, preset_id: UUID) -> Preset:
    """A public preset or one of this person. Raises NotFound."""
    raise NotImplementedError


def transcript(user: User, conversation_id: UUID, *, before: UUID | None = None, limit: int = 50) -> Transcript:
    """The last `limit` messages of the active path, or those above message `before`. Raises NotFound."""
    raise NotImplementedError


def history(conversation: Conversation, leaf: Message) -> list[Message]:
    """The path from the first message to `leaf`, both included, with the columns a prompt needs. One query."""
    raise NotImplementedError


def open_message(user: User, conversation_id: UUID) -> Message | None:
    """The reply that is being written there, if one is. Raises NotFound."""
    raise NotImplementedError


def generations_of(message_ids: Sequence[UUID]) -> dict[UUID, Generation]:
    """The newest generation of each of these messages."""
    raise NotImplementedError
