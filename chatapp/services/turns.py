"""What a turn writes: question and open reply before anything is computed, text while it runs, one guarded close at its end.

Knows no engine: which tokens were generated, and at what cost, is told by whoever runs the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from chatapp.models import Conversation, Message, MessageStatus, User


@dataclass(frozen=True, slots=True)
class TurnRows:
    """The rows of a turn that is about to run, or that this client_id already began (is_duplicate).

    user_message is the question that assistant_message answers, whether this call made it or not.
    """

    conversation: Conversation
    user_message: Message
    assistant_message: Message
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class GenerationNumbers:
    """One attempt to answer, as it goes into Generation. num_prompt_tokens must be the sum of reused and computed."""

    model_name: str
    model_fingerprint: str = ""
    kernel_tier: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    finish_reason: str = ""
    num_prompt_tokens: int = 0
    num_reused_ram: int = 0
    num_reused_disk: int = 0
    num_computed: int = 0
    num_generated: int = 0
    queue_s: float = 0.0
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


def send_create(
    *,
    user: User,
    conversation_id: UUID,
    client_id: UUID,
    text: str,
    parent_id: UUID | None = None,
    is_new: bool = False,
    preset_id: UUID | None = None,
) -> TurnRows:
    """A user message under `parent_id` and the open reply to it. The same client_id again gives the same rows.

    Raises Invalid (empty, too long, not storable, a parent of the wrong kind), NotFound (conversation, parent or preset), Conflict (client_id
    used for another text, a reply is still being written).
    """
    raise NotImplementedError


def edit_create(*, user: User, conversation_id: UUID, message_id: UUID, client_id: UUID, text: str) -> TurnRows:
    """A sibling of user message `message_id` with another text, and the open reply to it. Raises as send_create."""
    raise NotImplementedError


def regenerate_create(*, user: User, conversation_id: UUID, message_id: UUID, client_id: UUID) -> TurnRows:
    """An open sibling of assistant message `message_id`. Raises NotFound, Invalid, Conflict."""
    raise NotImplementedError


def continue_open(*, user: User, conversation_id: UUID, message_id: UUID) -> TurnRows:
    """Open again a reply that was stopped, interrupted, failed or cut by length. Raises NotFound, Conflict."""
    raise NotImplementedError


def turn_progress(*, message_id: UUID, status: MessageStatus) -> bool:
    """The turn reached another stage. False: it had been closed (or deleted) before."""
    raise NotImplementedError


def turn_save(*, message_id: UUID, text: str, token_ids: Sequence[int], token_fingerprint: str) -> bool:
    """What has been written so far. False: the turn had been closed (or deleted) before, and nothing was saved."""
    raise NotImplementedError


def turn_close(
    *,
    message_id: UUID,
    status: MessageStatus,
    text: str,
    token_ids: Sequence[int],
    token_fingerprint: str,
    error: str = "",
    generation: GenerationNumbers | None = None,
) -> bool:
    """End a turn, with its numbers. Only the first close of a turn does anything; it returns True."""
    raise NotImplementedError


def recover_interrupted() -> int:
    """Mark every open turn as interrupted, text kept; how many there were. Only for a start: no turn may be running."""
    raise NotImplementedError
