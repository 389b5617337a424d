"""What a person does with a conversation besides talking: name, pin, archive, go to another branch, delete."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp import llm, model_catalogue, selectors
from chatapp.errors import Invalid
from chatapp.models import OPEN_STATUSES, ContextPolicy, Conversation, MessageStatus, TitleSource, User
from chatapp.storage import translated
from chatapp.text import is_blank, one_line

_MAX_TITLE_CHARS = 200  # of the column


def _change(user: User, conversation_id: UUID, **columns: object) -> Conversation:
    """Sets columns of a conversation, which nobody deletes meanwhile. Raises NotFound."""
    with transaction.atomic():
        conversation = selectors.conversation_get(user, conversation_id, is_locked=True)
        for name, value in columns.items():
            setattr(conversation, name, value)
        conversation.save(update_fields=columns.keys())
    return conversation


@translated()
def conversation_rename(*, user: User, conversation_id: UUID, title: str) -> Conversation:
    """A title by a person, which nothing replaces. Raises NotFound, Invalid (empty, too long)."""
    title = one_line(title)
    if is_blank(title):
        raise Invalid(_("The title is empty."))
    if len(title) > _MAX_TITLE_CHARS:
        raise Invalid(
            _("The title has %(num)s characters, at most %(max)s are allowed.")
            % {"num": len(title), "max": _MAX_TITLE_CHARS},
            num_chars=len(title),
            max_chars=_MAX_TITLE_CHARS,
        )
    return _change(user, conversation_id, title=title, title_source=TitleSource.PERSON)


@translated()
def conversation_name(*, conversation_id: UUID, title: str) -> bool:
    """A title by the model, in place of the first words and of nothing else. False: it has another, or is gone."""
    unnamed = Conversation.objects.filter(id=conversation_id, title_source=TitleSource.FIRST_WORDS)
    return unnamed.update(title=title, title_source=TitleSource.MODEL) == 1


@translated()
def conversation_pin(*, user: User, conversation_id: UUID, is_pinned: bool) -> Conversation:
    """Keep it at the top of the list, or not. Raises NotFound."""
    return _change(user, conversation_id, is_pinned=is_pinned)


@translated()
def conversation_archive(*, user: User, conversation_id: UUID, is_archived: bool) -> Conversation:
    """Put it away, or take it back out; its cached KV is the first to give way while it is away. Raises NotFound."""
    with transaction.atomic():
        conversation = _change(user, conversation_id, is_archived=is_archived)
        hint = partial(llm.archive, conversation_id) if is_archived else partial(llm.protect, conversation_id, 0)
        transaction.on_commit(hint)
    return conversation


@translated()
def conversation_set_model(*, user: User, conversation_id: UUID, model: str) -> Conversation:
    """Whoever answers from the next turn on; a reply that is being written goes on. Raises NotFound."""
    return _change(user, conversation_id, model_name=model_catalogue.get(model).name)


@translated()
def conversation_set_window(
    *, user: User, conversation_id: UUID, policy: ContextPolicy, recent_tokens: int, has_recall: bool
) -> Conversation:
    """What becomes of what no longer fits the window, from the next turn on. Raises NotFound."""
    return _change(user, conversation_id, context_policy=policy, recent_tokens=recent_tokens, has_recall=has_recall)


@translated()
def branch_select(*, user: User, conversation_id: UUID, message_id: UUID) -> Conversation:
    """Show the branch through this message, down to what was made last below it. Raises NotFound."""
    message = selectors.message_get(user, conversation_id, message_id)
    return _change(user, conversation_id, active_leaf_id=selectors.newest_leaf_id(message))


@translated()
def conversation_delete(*, user: User, conversation_id: UUID) -> None:
    """The conversation, its messages and their numbers; after the commit also its cached KV. Raises NotFound.

    A turn that still runs there finds nothing to save into and ends; stop it first to save the work.
    """
    with transaction.atomic():
        conversation = selectors.conversation_get(user, conversation_id, is_locked=True)
        # A close that is under way commits before this, and none comes after: no Generation appears while we delete.
        conversation.messages.filter(status__in=OPEN_STATUSES).update(
            status=MessageStatus.INTERRUPTED, finished_at=timezone.now()
        )
        conversation.delete()
        transaction.on_commit(partial(llm.purge, conversation_id))
