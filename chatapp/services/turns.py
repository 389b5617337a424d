"""What a turn writes: question and open reply before anything is computed, text as it grows, one guarded close.

Knows no engine: which tokens were generated, and at what cost, is told by whoever runs the turn. Whoever begins a turn
locks the conversation, so two sends there wait for one another; the schema's constraints stand behind that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp import llm, model_catalogue, search, selectors
from chatapp.errors import Conflict, Invalid
from chatapp.models import (
    OPEN_STATUSES,
    ContextPolicy,
    Conversation,
    Generation,
    Message,
    MessageStatus,
    MessageVector,
    Role,
    ThinkingInHistory,
    TitleSource,
    TurnContext,
    User,
    pack_ids,
)
from chatapp.storage import translated
from chatapp.text import first_words, storable
from chatapp.wire_parsing import checked_text

_CONTINUABLE = (MessageStatus.STOPPED, MessageStatus.INTERRUPTED, MessageStatus.FAILED)


@dataclass(frozen=True, slots=True)
class TurnRows:
    """The rows of a turn that is about to run, or that this client_id already began (is_duplicate).

    user_message is the question that assistant_message answers, whether this call made it or not. thinking_s: how long
    a reply that is continued has been thought about.
    """

    conversation: Conversation
    user_message: Message
    assistant_message: Message
    is_duplicate: bool = False
    thinking_s: float = 0.0


# Called with new rows before they are committed; what it raises leaves nothing stored. Not called for a duplicate.
Check = Callable[[TurnRows], None]


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
    num_reencoded: int = 0
    queue_s: float = 0.0
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    thinking_s: float = 0.0
    num_known: int = 0
    prefix_break: str = ""
    window_start: UUID | None = None
    num_outside: int = 0
    num_left: int = 0
    num_unsummarised: int = 0
    summary_id: UUID | None = None
    window_limit: int = 0
    is_cut_by_window: bool = False
    break_message_id: UUID | None = None
    break_position: int | None = None
    sent: bytes | None = None


@translated()
def send_create(
    *,
    user: User,
    conversation_id: UUID,
    client_id: UUID,
    text: str,
    parent_id: UUID | None = None,
    is_new: bool = False,
    preset_id: UUID | None = None,
    model: str = "",
    check: Check | None = None,
) -> TurnRows:
    """A user message under `parent_id` and the open reply to it. The same client_id again gives the same rows.

    preset_id, model: of a new conversation; without a model it is the default one.
    Raises Invalid (empty, too long, not storable, a parent of the wrong kind), NotFound (conversation, parent, preset,
    model), Conflict (client_id used for another text, a reply is still being written).
    """
    checked_text(text)
    with transaction.atomic(durable=True):
        if is_new:
            _conversation_begin(user, conversation_id, text, preset_id, model)
        conversation = selectors.conversation_get(user, conversation_id, is_locked=True)
        if known := _known_question(conversation, client_id, text):
            return known
        parent = selectors.message_get(user, conversation_id, parent_id) if parent_id else None
        if parent and parent.role != Role.ASSISTANT:
            raise Invalid(_("A message can only follow a reply."))
        return _checked(_ask(conversation, parent, client_id, text), check)


@translated()
def conversation_new(*, user: User, conversation_id: UUID, preset_id: UUID | None, model: str) -> Conversation:
    """A conversation as it would begin now, not stored. Raises NotFound (preset, model)."""
    preset = selectors.preset_get(user, preset_id)
    now = timezone.now()
    return Conversation(
        id=conversation_id,
        owner=user,
        title_source=TitleSource.FIRST_WORDS,
        preset=preset,
        system_prompt=preset.system_prompt if preset else "",
        system_prompt_is_public=preset is not None and preset.owner_id is None,
        model_name=model_catalogue.get(model).name if model else llm.default_model(),
        sampling=preset.sampling if preset else {},
        context_policy=preset.context_policy if preset else ContextPolicy.TRUNCATE,
        recent_tokens=preset.recent_tokens if preset else 0,
        has_recall=preset.has_recall if preset else True,
        thinking_in_history=preset.thinking_in_history if preset else ThinkingInHistory.TEMPLATE,
        is_thinking_off=preset is not None and preset.is_thinking_off,
        created_at=now,
        updated_at=now,
    )


@translated()
def edit_create(
    *,
    user: User,
    conversation_id: UUID,
    message_id: UUID,
    client_id: UUID,
    text: str,
    check: Check | None = None,
) -> TurnRows:
    """A sibling of user message `message_id` with another text, and the open reply to it. Raises as send_create."""
    checked_text(text)
    with transaction.atomic(durable=True):
        conversation = selectors.conversation_get(user, conversation_id, is_locked=True)
        if known := _known_question(conversation, client_id, text):
            return known
        original = selectors.message_get(user, conversation_id, message_id)
        if original.role != Role.USER:
            raise Invalid(_("Only a message of a person can be edited."))
        return _checked(_ask(conversation, original.parent, client_id, text), check)


@translated()
def regenerate_create(
    *, user: User, conversation_id: UUID, message_id: UUID, client_id: UUID, check: Check | None = None
) -> TurnRows:
    """An open sibling of assistant message `message_id`. The same client_id again gives the same rows.

    Raises NotFound, Invalid (not a reply), Conflict (client_id used for something else, a reply is being written).
    """
    with transaction.atomic(durable=True):
        conversation = selectors.conversation_get(user, conversation_id, is_locked=True)
        original = selectors.message_get(user, conversation_id, message_id)
        question = original.parent
        if original.role != Role.ASSISTANT or question is None:
            raise Invalid(_("Only a reply can be made again."))
        if known := conversation.messages.filter(client_id=client_id).first():
            if known.role != Role.ASSISTANT or known.parent_id != question.id:
                raise _client_id_reused()
            return TurnRows(conversation, question, known, is_duplicate=True)
        return _checked(_open_reply(conversation, question, client_id), check)


@translated()
def continue_open(*, user: User, conversation_id: UUID, message_id: UUID, check: Check | None = None) -> TurnRows:
    """Open again a reply that was stopped, interrupted, failed or cut by length; its text stays and will grow.

    Raises NotFound, Invalid (not a reply), Conflict (it is complete, something follows it, a reply is being written).
    """
    with transaction.atomic(durable=True):
        conversation = selectors.conversation_get(user, conversation_id, is_locked=True)
        reply = selectors.message_get(user, conversation_id, message_id)
        if reply.role != Role.ASSISTANT or reply.parent is None:
            raise Invalid(_("Only a reply can be continued."))
        _refuse_while_open(conversation)
        newest = selectors.generations_of([reply.id]).get(reply.id)
        was_cut = newest is not None and newest.finish_reason == llm.FinishReason.LENGTH
        if reply.status not in _CONTINUABLE and not was_cut:
            raise Conflict(_("This reply is complete."))
        if reply.children.exists():  # what follows was an answer to the text as it stands
            raise Conflict(_("The conversation has gone on below this reply: it can be made again, not continued."))
        reply.status = MessageStatus.QUEUED
        reply.error = ""
        reply.finished_at = None
        reply.save(update_fields=["status", "error", "finished_at"])
        _show(conversation, reply)
        thinking_s = newest.thinking_s if newest is not None else 0.0
        return _checked(TurnRows(conversation, reply.parent, reply, thinking_s=thinking_s), check)


def context_add(question: Message, *, text: str, sources: Sequence[UUID]) -> None:
    """What is put in front of a question from now on. Inside the transaction that stores the question."""
    TurnContext.objects.create(message=question, text=text, sources=[str(source) for source in sources])


@translated()
def turn_progress(*, message_id: UUID, status: MessageStatus) -> bool:
    """The turn reached another stage. False: it had been closed (or deleted) before."""
    assert status in OPEN_STATUSES
    return _update_open(message_id, status=status)


@translated()
def turn_is_open(*, message_id: UUID) -> bool:
    """Whether the turn may still write. False: it has been closed (or deleted)."""
    return Message.objects.filter(id=message_id, status__in=OPEN_STATUSES).exists()


@translated()
def turn_save(
    *,
    message_id: UUID,
    text: str,
    token_ids: Sequence[int],
    token_fingerprint: str,
    thinking: tuple[int, int] = (0, 0),
) -> bool:
    """What has been written so far. False: the turn had been closed (or deleted) before, and nothing was saved.

    thinking: how many characters and tokens at its head.
    """
    return _update_open(message_id, **_written(text, token_ids, token_fingerprint, thinking))


@translated()
def turn_close(
    *,
    message_id: UUID,
    status: MessageStatus,
    text: str,
    token_ids: Sequence[int],
    token_fingerprint: str,
    thinking: tuple[int, int] = (0, 0),
    error: str = "",
    generation: GenerationNumbers | None = None,
) -> bool:
    """End a turn, with its numbers. Only the first close of a turn does anything; it returns True."""
    assert status not in OPEN_STATUSES
    with transaction.atomic(durable=True):
        is_first = _update_open(
            message_id,
            status=status,
            error=storable(error),
            finished_at=timezone.now(),
            **_written(text, token_ids, token_fingerprint, thinking),
        )
        if is_first:
            reply = Message.objects.select_related("conversation").get(id=message_id)
            search.index(reply, owner_id=reply.conversation.owner_id)
        if is_first and generation is not None:
            Generation.objects.create(message_id=message_id, **asdict(generation))
        return is_first


@translated()
def recover_interrupted(*, message_id: UUID | None = None) -> int:
    """Mark every open turn, or this one, as interrupted, text kept and found; returns how many. Only when nobody writes
    them."""
    left_open = Message.objects.filter(status__in=OPEN_STATUSES)
    if message_id is not None:
        left_open = left_open.filter(id=message_id)
    with transaction.atomic():
        for reply in left_open.select_related("conversation"):
            search.index(reply, owner_id=reply.conversation.owner_id)
        MessageVector.objects.filter(message__in=left_open).delete()  # of what a reply said before it was continued
        return left_open.update(status=MessageStatus.INTERRUPTED, finished_at=timezone.now())


def _checked(rows: TurnRows, check: Check | None) -> TurnRows:
    if check is not None:
        check(rows)
    return rows


def _conversation_begin(user: User, conversation_id: UUID, text: str, preset_id: UUID | None, model: str) -> None:
    """The conversation with its preset's values, unless the id is taken: whose it then is, the next read finds out."""
    if Conversation.objects.filter(id=conversation_id).exists():
        return  # sent again, perhaps after its preset was deleted
    conversation = conversation_new(user=user, conversation_id=conversation_id, preset_id=preset_id, model=model)
    conversation.title = first_words(text)
    # Of two that come at once the second waits for the first here, then sees its rows.
    Conversation.objects.bulk_create([conversation], ignore_conflicts=True)


def _known_question(conversation: Conversation, client_id: UUID, text: str) -> TurnRows | None:
    """The rows that this client_id made before. Raises Conflict when it was for another text."""
    question = conversation.messages.filter(client_id=client_id).first()
    if question is None:
        return None
    if question.role != Role.USER or question.text != text:
        raise _client_id_reused()
    # The reply that came with the question has no client id of its own, those made again have.
    reply = question.children.get(client_id__isnull=True)
    return TurnRows(conversation, question, reply, is_duplicate=True)


def _client_id_reused() -> Conflict:
    return Conflict(_("This client id was used before, for something else."))


def _ask(conversation: Conversation, parent: Message | None, client_id: UUID, text: str) -> TurnRows:
    question = Message(
        conversation=conversation,
        parent=parent,
        role=Role.USER,
        text=text,
        client_id=client_id,
        position=parent.position + 1 if parent else 0,
        finished_at=timezone.now(),
    )
    return _open_reply(conversation, question, None)


def _open_reply(conversation: Conversation, question: Message, client_id: UUID | None) -> TurnRows:
    """An open reply to `question`, which is stored first if it is new. Raises Conflict while another one is open."""
    _refuse_while_open(conversation)
    if question._state.adding:
        question.save(force_insert=True)
        search.index(question, owner_id=conversation.owner_id)
    reply = Message(
        conversation=conversation,
        parent=question,
        role=Role.ASSISTANT,
        status=MessageStatus.QUEUED,
        client_id=client_id,
        position=question.position + 1,
    )
    reply.save(force_insert=True)
    _show(conversation, reply)
    return TurnRows(conversation, question, reply)


def _refuse_while_open(conversation: Conversation) -> None:
    if conversation.messages.filter(status__in=OPEN_STATUSES).exists():
        raise Conflict(_("A reply is still being written in this conversation."))


def _show(conversation: Conversation, leaf: Message) -> None:
    """The conversation has gone on: what was put away is taken out of the archive."""
    conversation.active_leaf = leaf
    conversation.updated_at = timezone.now()
    conversation.is_archived = False
    conversation.save(update_fields=["active_leaf", "updated_at", "is_archived"])


def _update_open(message_id: UUID, **values: Any) -> bool:
    return Message.objects.filter(id=message_id, status__in=OPEN_STATUSES).update(**values) == 1


def _written(text: str, token_ids: Sequence[int], token_fingerprint: str, thinking: tuple[int, int]) -> dict[str, Any]:
    """What a model wrote, as columns. It may write NUL: the text then shows a replacement, the ids stay exact."""
    thinking_chars, thinking_tokens = thinking
    return {
        "text": storable(text),
        "token_ids": pack_ids(token_ids) if token_ids else None,
        "token_fingerprint": token_fingerprint if token_ids else "",
        "thinking_chars": thinking_chars,
        "thinking_tokens": thinking_tokens if token_ids else 0,
    }
