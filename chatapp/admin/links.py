"""Links of the admin to messages, by the names that a person would call them."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext

from chatapp.models import Message


def place_of(position: int | None) -> str:
    """The message at a depth of a branch, as a person would call it: questions and replies take turns."""
    if position is None:
        return gettext("the beginning")
    name = gettext("reply %(n)s") if position % 2 else gettext("question %(n)s")
    return name % {"n": position // 2 + 1}


def message_url(message_id: UUID) -> str:
    return reverse("admin:chatapp_message_change", args=[message_id])


def message_link(message_id: UUID, position: int) -> str:
    return format_html('<a href="{}" class="text-link">{}</a>', message_url(message_id), place_of(position))


def message_links(message_ids: Iterable[str]) -> str:
    """Those of them that are there, oldest first. One query."""
    rows = Message.objects.filter(id__in=list(message_ids)).order_by("position").values_list("id", "position")
    return format_html_join(", ", "{}", ((message_link(message_id, position),) for message_id, position in rows))
