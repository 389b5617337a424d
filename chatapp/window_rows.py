"""Reads of what the page shows of the context window: one summary, and what was quoted in front of questions."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from django.utils.translation import gettext as _

from chatapp.errors import NotFound
from chatapp.models import Message, Summary, TurnContext, User
from chatapp.storage import translated
from chatapp.wire import Recalled, RecalledMessage


@translated()
def summary_get(user: User, conversation_id: UUID, summary_id: UUID) -> Summary:
    """One summary of a conversation of this person. Raises NotFound."""
    rows = Summary.objects.filter(conversation__owner=user, conversation_id=conversation_id)
    if (found := rows.filter(id=summary_id).first()) is None:
        raise NotFound(_("This summary does not exist."))
    return found


@translated()
def changed_summary_id(conversation_id: UUID) -> UUID | None:
    """The newest summary of a conversation that a person has changed; None when nobody has."""
    rows = Summary.objects.filter(conversation_id=conversation_id, is_edited=True)
    return rows.order_by("-created_at").values_list("id", flat=True).first()


@translated()
def recalled_for(message_ids: Collection[UUID]) -> dict[UUID, Recalled]:
    """What was quoted in front of these messages, for those that have something. Two queries, mostly one."""
    contexts = list(TurnContext.objects.filter(message_id__in=message_ids))
    names = {UUID(source) for context in contexts for source in context.sources}
    rows = Message.objects.filter(id__in=names).values_list("id", "position") if names else ()
    positions = dict(rows)
    return {context.message_id: _recalled(context, positions) for context in contexts}


def _recalled(context: TurnContext, positions: dict[UUID, int]) -> Recalled:
    names = [name for source in context.sources if (name := UUID(source)) in positions]
    return Recalled(context.text, tuple(RecalledMessage(name, positions[name]) for name in names))
