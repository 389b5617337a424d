"""The list of conversations as the page shows it: pinned ones, then groups by day; or what has been put away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby
from uuid import UUID

from django.utils import timezone
from django.utils.translation import gettext as _

from chatapp import search, selectors
from chatapp.models import Conversation, User
from chatapp.snippets import Part


@dataclass(frozen=True, slots=True)
class Row:
    """snippet: of a message that has what was looked for."""

    id: UUID
    title: str
    is_pinned: bool
    is_running: bool
    is_archived: bool = False
    snippet: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Rows under one heading. `key` stays the same in every language."""

    key: str
    name: str
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Listing:
    groups: list[Group]
    next_cursor: str
    query: str
    is_archive: bool = False


def listing(user: User, *, query: str = "", cursor: str = "", is_archived: bool = False) -> Listing:
    """One page of the list, or of the archive; a fixed number of queries. Raises Invalid for a bad cursor."""
    found = search.conversations_with(user, query) if query else None
    page = selectors.conversation_list(user, query=query, found=found, cursor=cursor, is_archived=is_archived)
    ids = [conversation.id for conversation in page.conversations]
    running = selectors.running_ids(user, ids)
    snippets = search.snippets(user, query, ids) if query else {}
    groups = _grouped(page.conversations, running, snippets, timezone.localdate())
    return Listing(groups, page.next_cursor, query, is_archived)


def _grouped(
    conversations: Sequence[Conversation], running: set[UUID], snippets: Mapping[UUID, tuple[Part, ...]], today: date
) -> list[Group]:
    names = {
        "pinned": _("Pinned"),
        "today": _("Today"),
        "yesterday": _("Yesterday"),
        "week": _("Last 7 days"),
        "month": _("Last 30 days"),
        "older": _("Older"),
    }
    return [
        Group(
            key,
            names[key],
            [Row(c.id, c.title, c.is_pinned, c.id in running, c.is_archived, snippets.get(c.id, ())) for c in found],
        )
        for key, found in groupby(conversations, key=lambda conversation: _group_key(conversation, today))
    ]


def _group_key(conversation: Conversation, today: date) -> str:
    if conversation.is_pinned:
        return "pinned"
    age = today - timezone.localdate(conversation.updated_at)
    if age < timedelta(days=1):  # a clock that went back makes no sixth group
        return "today"
    if age == timedelta(days=1):
        return "yesterday"
    if age < timedelta(days=7):
        return "week"
    return "month" if age < timedelta(days=30) else "older"
