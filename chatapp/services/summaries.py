"""Summaries: written by a model for turns that leave the window, changed by a person. None is ever overwritten."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.utils.translation import gettext as _

from chatapp import selectors
from chatapp.errors import Conflict, Invalid, NotFound
from chatapp.models import Message, Summary, User
from chatapp.storage import translated
from chatapp.text import is_blank, is_storable

MAX_CHARS = 20_000


@translated()
def summary_create(
    *, until_id: UUID, text: str, model_name: str, earlier_id: UUID | None = None, num_missing: int = 0
) -> Summary | None:
    """What a model has written for all messages up to `until_id`. None: the conversation is gone.

    num_missing: so many of them it has not been told of.
    """
    with transaction.atomic():
        until = Message.objects.filter(id=until_id).first()
        if until is None or not selectors.conversations_lock([until.conversation_id]):
            return None
        if earlier_id is not None and not Summary.objects.filter(id=earlier_id).exists():
            earlier_id = None
        return Summary.objects.create(
            conversation_id=until.conversation_id,
            until=until,
            earlier_id=earlier_id,
            text=text,
            num_messages=until.position + 1,
            num_missing=num_missing,
            model_name=model_name,
        )


@translated()
def summary_edit(*, user: User, conversation_id: UUID, summary_id: UUID, text: str) -> Summary:
    """The same stretch in other words, used from the next turn on. The same change again gives the same summary.

    Raises NotFound, Invalid (empty, too long, not storable), Conflict (it is no longer the newest of its stretch: these
    words would take the place of others, which whoever wrote them has not seen).
    """
    text = _checked(text.strip())
    with transaction.atomic():
        conversation = selectors.conversation_get(user, conversation_id, is_locked=True)
        old = conversation.summaries.filter(id=summary_id).first()
        if old is None:
            raise NotFound(_("This summary does not exist."))
        newest = conversation.summaries.filter(until_id=old.until_id).latest("created_at")
        if newest.text == text:
            return newest
        if newest.id != old.id:
            raise Conflict(
                _(
                    "This summary has other words by now. What you have written is still here: copy it, then cancel "
                    "to see the others."
                )
            )
        return Summary.objects.create(
            conversation=conversation,
            until_id=old.until_id,
            earlier_id=old.earlier_id,
            text=text,
            num_messages=old.num_messages,
            num_missing=old.num_missing,
            model_name=old.model_name,
            is_edited=True,
        )


def _checked(text: str) -> str:
    """A summary as it may be stored. Raises Invalid."""
    if is_blank(text):
        raise Invalid(_("The summary is empty."))
    if not is_storable(text):
        raise Invalid(_("The summary holds a character that cannot be stored (NUL or half a surrogate pair)."))
    if len(text) > MAX_CHARS:
        raise Invalid(
            _("The summary has %(num)s characters, at most %(max)s are allowed.")
            % {"num": f"{len(text):,}", "max": f"{MAX_CHARS:,}"},
        )
    return text
