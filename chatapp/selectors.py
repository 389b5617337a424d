"""Reads. They take the person first and answer NotFound for what belongs to somebody else: ownership is decided here.

Each names the columns that it needs; the number of queries does not depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import NamedTuple
from uuid import UUID

from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.db import connection
from django.db.models import Count, Expression, Q, QuerySet
from django.utils.translation import gettext as _

from chatapp.errors import Invalid, NotFound
from chatapp.models import (
    OPEN_STATUSES,
    Conversation,
    Generation,
    Message,
    Preset,
    Role,
    Summary,
    TitleSource,
    TurnContext,
    User,
    unpack_ids,
)
from chatapp.storage import key_of, translated, uuid_of
from chatapp.text import storable

_LIST_COLUMNS = ("id", "owner_id", "title", "title_source", "is_pinned", "is_archived", "created_at", "updated_at")
_TRANSCRIPT_COLUMNS = (
    *("id", "conversation_id", "parent_id", "role", "text", "thinking_chars", "status", "error", "client_id"),
    *("position", "created_at", "finished_at"),
)
_MAX_IDS = 500  # in one query
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE_PATH = 1 << 31
_NUM_SUMMARIES = 8  # read at once; mostly the first two are needed
# Whether there are others at the depth of message `m`: one that is alone there is on all paths that come as far.
HAS_OTHERS = f"""EXISTS (
    SELECT 1 FROM {Message._meta.db_table} o
    WHERE o.conversation_id = m.conversation_id AND o.position = m.position AND o.id <> m.id
)"""  # noqa: S608 -- no part of it comes from outside
_WITH_CONTEXT = f"LEFT JOIN {TurnContext._meta.db_table} c ON c.message_id = m.id"
# The owner whom a terminal made before the first visit: no password yet, and nobody has ever been logged in.
UNCLAIMED_OWNER = Q(is_owner=True, password__startswith=UNUSABLE_PASSWORD_PREFIX, last_login__isnull=True)


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """Part of the list: pinned ones first, then by last turn. next_cursor goes into the next call; "" at the end."""

    conversations: list[Conversation]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """A message on the active path. sibling_ids: its versions in the order in which they were made, itself included."""

    message: Message
    sibling_ids: tuple[UUID, ...]
    generation: Generation | None  # the newest; None for user messages and before the first one has ended

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


class HistoryMessage(NamedTuple):
    """What a prompt needs of a message. No model instance: a thousand of them are read for each send."""

    id: UUID
    position: int
    role: str
    text: str
    status: str
    token_ids: bytes | None
    token_fingerprint: str
    thinking_chars: int
    thinking_tokens: int
    context: str | None  # what was put in front of it when it was sent

    @property
    def ids(self) -> tuple[int, ...] | None:
        """As Message.ids."""
        return None if self.token_ids is None else unpack_ids(self.token_ids)


class SummaryText(NamedTuple):
    """A summary of everything on a path from the first message to `until`, which lies at `position`.

    num_missing: so many of these messages it does not know.
    """

    id: UUID
    until: UUID
    position: int
    text: str
    num_missing: int = 0

    @property
    def num_told(self) -> int:
        """How many messages it really sums up."""
        return self.position + 1 - self.num_missing


@dataclass(frozen=True, slots=True)
class Transcript:
    """A window of the active path, top to bottom. older_cursor: `before` for what lies above; None at the top."""

    messages: list[TranscriptMessage]
    older_cursor: UUID | None


@translated()
def is_set_up() -> bool:
    """Whether somebody can log in; until then the first visitor makes the owner's account, or claims it."""
    return User.objects.exclude(UNCLAIMED_OWNER).exists()


@translated()
def conversation_get(user: User, conversation_id: UUID, *, is_locked: bool = False) -> Conversation:
    """One conversation of this person. Raises NotFound.

    is_locked, inside a transaction: until its end nobody else gets this row locked (SQLite locks all writers out).
    """
    rows = Conversation.objects.select_for_update(no_key=True) if is_locked else Conversation.objects.all()
    try:
        return rows.get(owner=user, id=conversation_id)
    except Conversation.DoesNotExist:
        raise NotFound(_("This conversation does not exist.")) from None


@translated()
def conversation_id_check(user: User, conversation_id: UUID) -> None:
    """Raises NotFound for what is somebody else's: no conversation of this person can begin under that id."""
    if Conversation.objects.filter(id=conversation_id).exclude(owner=user).exists():
        raise NotFound(_("This conversation does not exist."))


@translated()
def conversation_exists(conversation_id: UUID) -> bool:
    """Whether it has not been deleted, whosever it is: for work that nobody asked for."""
    return Conversation.objects.filter(id=conversation_id).exists()


@translated()
def conversations_lock(conversation_ids: Collection[UUID]) -> set[UUID]:
    """Which of these have not been deleted, and will not be before the end of the transaction, whosever they are: a
    deletion beside it would not know of the row that is about to be stored there, and fail for it."""
    rows = Conversation.objects.select_for_update(no_key=True).filter(id__in=conversation_ids)
    return set(rows.order_by("id").values_list("id", flat=True))  # in one order: nobody waits for one another


@translated()
def conversation_owners(conversation_ids: Collection[UUID]) -> dict[UUID, str]:
    """Which of these have not been deleted, with the names of their owners: for the books of the disk."""
    ids = list(conversation_ids)
    owners: dict[UUID, str] = {}
    for start in range(0, len(ids), _MAX_IDS):
        rows = Conversation.objects.filter(id__in=ids[start : start + _MAX_IDS])
        owners.update(rows.values_list("id", "owner__username"))
    return owners


@translated()
def conversation_find(conversation_id: UUID) -> Conversation | None:
    """A conversation, whosever it is, if it has not been deleted: for work that nobody asked for."""
    return Conversation.objects.filter(id=conversation_id).first()


@translated()
def title_is_wanted(conversation_id: UUID, *, max_attempts: int) -> bool:
    """Whether a model may name it: it is called by its first words, its owner has not switched that off, and no more
    than max_attempts replies have been written in it, those made again included. One query."""
    unnamed = Conversation.objects.filter(id=conversation_id, title_source=TitleSource.FIRST_WORDS)
    counted = unnamed.annotate(num=Count("messages__generations"))
    found = counted.values_list("owner__preferences", "num").first()
    return found is not None and found[0].get("titles", True) is not False and found[1] <= max_attempts


@translated()
def message_get(user: User, conversation_id: UUID, message_id: UUID) -> Message:
    """One message of this person, with its conversation. Raises NotFound."""
    try:
        return Message.objects.select_related("conversation").get(
            conversation__owner=user, conversation_id=conversation_id, id=message_id
        )
    except Message.DoesNotExist:
        raise NotFound(_("This message does not exist.")) from None


@translated()
def conversation_list(
    user: User,
    *,
    cursor: str = "",
    query: str = "",
    found: Expression | None = None,
    limit: int = 50,
    is_archived: bool = False,
) -> ConversationPage:
    """A page of this person's conversations; with a query those that have it in the title, and those that are `found`.

    found: their ids, as search.conversations_with makes them. Raises Invalid for a bad cursor.
    """
    rows = Conversation.objects.filter(owner=user, is_archived=is_archived).only(*_LIST_COLUMNS)
    if words := storable(query).strip():
        rows = rows.filter(Q(title__icontains=words) | (Q(id__in=found) if found is not None else Q()))
    if cursor:
        rows = rows.filter(_is_below(cursor))
    page = list(rows.order_by("-is_pinned", "-updated_at", "-id")[: limit + 1])
    return ConversationPage(page[:limit], _cursor_of(page[limit - 1]) if len(page) > limit else "")


@translated()
def running_ids(user: User, conversation_ids: Collection[UUID]) -> set[UUID]:
    """Which of these conversations of this person have a reply that is being written."""
    rows = Message.objects.filter(
        conversation__owner=user, conversation_id__in=conversation_ids, status__in=OPEN_STATUSES
    )
    return set(rows.values_list("conversation_id", flat=True))


@translated()
def preset_get(user: User, preset_id: UUID | None) -> Preset | None:
    """A public preset or one of this person; for None the default one, if there is one. Raises NotFound."""
    if preset_id is None:
        return Preset.objects.filter(is_default=True).first()
    try:
        return _presets_of(user).get(id=preset_id)
    except Preset.DoesNotExist:
        raise NotFound(_("This preset does not exist.")) from None


@translated()
def public_presets() -> list[Preset]:
    """What everybody may begin a conversation with, the default one first."""
    return list(
        Preset.objects.filter(owner__isnull=True).order_by("-is_default", "name").only("id", "name", "is_default")
    )


@translated()
def transcript(user: User, conversation_id: UUID, *, before: UUID | None = None, limit: int = 50) -> Transcript:
    """The last `limit` messages of the active path, or of what lies above message `before`. Raises NotFound."""
    conversation = conversation_get(user, conversation_id)
    if before is None:
        leaf_id = conversation.active_leaf_id
    else:
        leaf_id = message_get(user, conversation_id, before).parent_id
    path = _path(leaf_id, columns=_TRANSCRIPT_COLUMNS, limit=limit)
    siblings = _siblings_of(conversation, path)
    generations = generations_of([message.id for message in path if message.role == Role.ASSISTANT])
    return Transcript(
        [
            TranscriptMessage(message, tuple(siblings[message.parent_id]), generations.get(message.id))
            for message in path
        ],
        path[0].id if path and path[0].parent_id else None,
    )


@translated()
def history(
    conversation: Conversation, leaf: Message, *, since: UUID | None = None, limit: int = _WHOLE_PATH
) -> list[HistoryMessage]:
    """The path to `leaf`, which is included, with what a prompt needs. One query.

    It begins with message `since`, if that lies on it, or else with the first one; but it has `limit` messages at most.
    """
    assert leaf.conversation_id == conversation.id
    parameters = [key_of(leaf.id), *([] if since is None else [key_of(since)]), limit]
    columns = (*(f"m.{name}" for name in HistoryMessage._fields[:-1]), "c.text")
    with connection.cursor() as cursor:
        cursor.execute(_path_query(columns, _WITH_CONTEXT, is_bounded=since is not None), parameters)
        return [HistoryMessage(uuid_of(row[0]), *row[1:]) for row in cursor.fetchall()]


@translated()
def summaries(leaf: Message, first: int) -> list[SummaryText]:
    """What can stand in a prompt whose messages begin at position `first` or below, shortest stretch first: the newest
    summary of each stretch from the first message to one on the path to `leaf` that lies there, and the longest of
    those that end above. One query, more only where branches have summaries of their own.
    """
    found: list[SummaryText] = []
    for start in count(0, _NUM_SUMMARIES):
        part, shared = _summaries(leaf, start)
        on_path = path_ids(leaf, {each.until: each.position for each in part if each.until in shared})
        for each in part:
            if (each.until not in shared or each.until in on_path) and not (found and found[-1].until == each.until):
                found.append(each)
                if each.position < first:
                    return found[::-1]
        if len(part) < _NUM_SUMMARIES:
            return found[::-1]
    raise AssertionError("there is an end to it")


def _summaries(leaf: Message, start: int) -> tuple[list[SummaryText], set[UUID]]:
    """_NUM_SUMMARIES of the summaries that end above `leaf`, the longest stretches first; and which of the messages
    that they end with have others at their depth. One query."""
    query = f"""
        SELECT s.id, s.until_id, s.num_messages - 1, s.text, s.num_missing, {HAS_OTHERS}
        FROM {Summary._meta.db_table} s JOIN {Message._meta.db_table} m ON m.id = s.until_id
        WHERE s.conversation_id = %s AND s.num_messages <= %s
        ORDER BY s.num_messages DESC, s.created_at DESC LIMIT {_NUM_SUMMARIES} OFFSET {start}
    """  # noqa: S608 -- no part of it comes from outside
    part: list[SummaryText] = []
    shared: set[UUID] = set()
    with connection.cursor() as cursor:
        cursor.execute(query, [key_of(leaf.conversation_id), leaf.position])
        for key, until, position, text, num_missing, has_others in cursor.fetchall():
            part.append(SummaryText(uuid_of(key), uuid_of(until), position, text, num_missing))
            if has_others:
                shared.add(part[-1].until)
    return part, shared


@translated()
def has_summary_until(message_ids: Collection[UUID], *, earlier_id: UUID | None) -> bool:
    """Whether a summary ends with one of these messages and knows what the one before them says now.

    earlier_id: that one. A summary that goes on from words which a person has changed since does not know them, unless
    a person has written it, too.
    """
    rows = Summary.objects.filter(until_id__in=message_ids)
    return rows.filter(Q(earlier_id=earlier_id) | Q(is_edited=True)).exists()


@translated()
def path_ids(leaf: Message, places: Mapping[UUID, int]) -> set[UUID]:
    """Which of these messages of the conversation, with their positions, all above `leaf`, lie on the path to it.

    One that is alone at its depth does: one query. Where there are others the path is walked up to there.
    """
    if not places:
        return set()
    rows = Message.objects.filter(conversation_id=leaf.conversation_id, position__in=set(places.values())).order_by()
    shared = rows.values("position").annotate(num=Count("id")).filter(num__gt=1)
    shared_positions = set(shared.values_list("position", flat=True))
    if not shared_positions:
        return set(places)
    with connection.cursor() as cursor:
        cursor.execute(_path_query(("m.id",)), [key_of(leaf.id), leaf.position - min(shared_positions) + 1])
        walked = {uuid_of(row[0]) for row in cursor.fetchall()}
    return {each for each, position in places.items() if position not in shared_positions or each in walked}


@translated()
def newest_leaf_id(message: Message) -> UUID:
    """The last message that was made below this one; itself when there is none."""
    table = Message._meta.db_table
    # The newest descendant is a leaf, since a child is made after its parent.
    query = f"""
        WITH RECURSIVE below(id, position, created_at) AS (
            SELECT id, position, created_at FROM {table} WHERE id = %s
            UNION ALL
            SELECT m.id, m.position, m.created_at FROM {table} m JOIN below ON m.parent_id = below.id
        )
        SELECT id FROM below ORDER BY created_at DESC, position DESC LIMIT 1
    """  # noqa: S608 -- no part of it comes from outside
    return Message.objects.raw(query, [key_of(message.id)])[0].id


@translated()
def generations_of(message_ids: Collection[UUID]) -> dict[UUID, Generation]:
    """The newest generation of each of these messages."""
    rows = Generation.objects.filter(message_id__in=message_ids).order_by("created_at")
    return {generation.message_id: generation for generation in rows}


def _path(leaf_id: UUID | None, *, columns: tuple[str, ...], limit: int) -> list[Message]:
    """`leaf_id` and what lies above it, at most `limit` messages, top to bottom, with these columns loaded."""
    if leaf_id is None:
        return []
    query = _path_query(tuple(f"m.{name}" for name in columns))
    return list(Message.objects.raw(query, [key_of(leaf_id), limit]))


def _path_query(columns: tuple[str, ...], joined: str = "", *, is_bounded: bool = False) -> str:
    """SQL for a leaf and what lies above it, messages `m`, top to bottom. Parameters: the leaf's key, if it is bounded
    that of the message with which it begins, how many messages at most.

    The database walks from parent to parent, so the cost depends on the limit and not on how large the tree is. (A
    whole path of 1,248 takes 11 ms on SQLite and 10 on PostgreSQL, as instances; reading the tree to walk it here takes
    as long.) Depth and position count down together: rows that form a ring by some accident cannot keep it going.
    """
    table = Message._meta.db_table
    return f"""
        WITH RECURSIVE path(id, parent_id, position, num) AS (
            SELECT id, parent_id, position, 1 FROM {table} WHERE id = %s
            UNION ALL
            SELECT m.id, m.parent_id, m.position, path.num + 1 FROM path
            JOIN {table} m ON m.id = path.parent_id AND m.position = path.position - 1
            WHERE {"path.id <> %s AND " if is_bounded else ""}path.num < %s
        )
        SELECT {", ".join(columns)} FROM path JOIN {table} m ON m.id = path.id {joined}
        ORDER BY m.position
    """  # noqa: S608 -- no part of it comes from outside


def _siblings_of(conversation: Conversation, path: list[Message]) -> dict[UUID | None, list[UUID]]:
    """Parent -> its children in the order in which they were made, for the parents of a path."""
    parents = [message.parent_id for message in path if message.parent_id]
    wanted = Q(parent_id__in=parents)
    if path and not path[0].parent_id:
        wanted |= Q(conversation=conversation, position=0)
    siblings: dict[UUID | None, list[UUID]] = {}
    for message_id, parent_id in (
        Message.objects.filter(wanted).order_by("created_at", "id").values_list("id", "parent_id")
    ):
        siblings.setdefault(parent_id, []).append(message_id)
    return siblings


def _presets_of(user: User) -> QuerySet[Preset]:
    return Preset.objects.filter(Q(owner__isnull=True) | Q(owner=user))


def _cursor_of(conversation: Conversation) -> str:
    """The place of a row in the list's order, as text for a URL."""
    microseconds = (conversation.updated_at - _EPOCH) // timedelta(microseconds=1)
    return f"{conversation.is_pinned:d}.{microseconds}.{conversation.id.hex}"


def _is_below(cursor: str) -> Q:
    """The condition for rows behind the one that _cursor_of was given. Raises Invalid."""
    try:
        pinned, microseconds, hexadecimal = cursor.split(".")
        is_pinned = bool(int(pinned))
        updated_at = _EPOCH + timedelta(microseconds=int(microseconds))
        conversation_id = UUID(hexadecimal)
    except (ValueError, OverflowError):
        raise Invalid(_("This address of a page of the list is not valid.")) from None
    return Q(is_pinned__lt=is_pinned) | Q(is_pinned=is_pinned) & (
        Q(updated_at__lt=updated_at) | Q(updated_at=updated_at, id__lt=conversation_id)
    )
