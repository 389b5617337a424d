"""Finding messages by their words, the same way on SQLite and on PostgreSQL.

An entry holds the keys of a message: its words, one that names its owner and one that names its conversation, so that
what is not asked for is never looked at. A key is ASCII, whatever the word: no database has to know its script. Its
first letter says what it is of: nobody's text can name an owner.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import log
from uuid import UUID

from django.db import connection
from django.db.models.expressions import RawSQL

from chatapp.models import Conversation, Message, SearchEntry, User
from chatapp.selectors import path_ids
from chatapp.storage import translated
from chatapp.words import Term, index_words, query_terms, telling_words

TABLE = SearchEntry._meta.db_table
FTS_TABLE = f"{TABLE}_fts"
TSVECTOR = "array_to_tsvector(string_to_array(e.keys, ' '))"  # no parser, no language: keys are words already
_MAX_HITS = 500  # messages looked at for one word
_MAX_TERMS = 32  # of a query


def keys_of(text: str, *, owner_id: int, conversation_id: UUID) -> str:
    """SearchEntry.keys of a text."""
    return " ".join([_owner_key(owner_id), _conversation_key(conversation_id), *map(_key, index_words(text))])


@translated()
def index(message: Message, *, owner_id: int) -> None:
    """Let a message be found by what it says now, its thinking aside."""
    keys = keys_of(message.answer, owner_id=owner_id, conversation_id=message.conversation_id)
    SearchEntry.objects.bulk_create(
        [SearchEntry(message_id=message.id, keys=keys)],
        update_conflicts=True,
        unique_fields=["message"],
        update_fields=["keys"],
    )


def conversations_with(user: User, query: str) -> RawSQL | None:
    """The ids of this person's conversations in which one message has all words of the query, for `id__in`.

    None when there is no word in it.
    """
    terms = query_terms(query)[:_MAX_TERMS]
    if not terms:
        return None
    condition, parameter = _matches([Term(_owner_key(user.pk)), *map(_keyed, terms)])
    rows = f"{Message._meta.db_table} m JOIN {TABLE} e ON e.message_id = m.id"
    return RawSQL(f"SELECT m.conversation_id FROM {rows} WHERE {condition}", [parameter])  # noqa: S608, S611 -- ours


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that shares words with what was asked. score: the more they tell, the higher."""

    message_id: UUID
    position: int
    role: str
    text: str  # without its thinking
    score: float


@translated()
def related(conversation: Conversation, question: Message, before: int, limit: int = 8) -> list[Hit]:
    """Messages above a question, at positions below `before`, that are about what it is about; the best ones first.

    A word counts the more the fewer of these messages have it, and not at all when more than a fifth has it: then it
    belongs to the conversation and tells nothing about one message.
    """
    words = telling_words(question.text)
    found = _found(conversation, words, before)
    scores: dict[tuple[int, UUID], float] = {}
    for messages in found:
        if len(messages) > max(4, before // 5):
            continue
        weight = log(1 + (before - len(messages) + 0.5) / (len(messages) + 0.5))
        for message in messages:
            scores[message] = scores.get(message, 0.0) + weight
    best = sorted(scores, key=lambda message: (-scores[message], -message[0]))
    on_path = path_ids(question, [message_id for _, message_id in best], below=before)
    best = [message for message in best if message[1] in on_path][:limit]
    rows = Message.objects.in_bulk([message_id for _, message_id in best])
    return [
        Hit(message_id, position, rows[message_id].role, rows[message_id].answer, scores[position, message_id])
        for position, message_id in best
    ]


def _found(conversation: Conversation, words: Sequence[str], before: int) -> list[list[tuple[int, UUID]]]:
    """For each word that occurs the newest messages that have it, as (position, id). One query."""
    if not words:
        return []
    scope = Term(_conversation_key(conversation.id))
    rows = f"{TABLE} e JOIN {Message._meta.db_table} m ON m.id = e.message_id"
    parts: list[str] = []
    parameters: list[str | int] = []
    for number, word in enumerate(words):
        condition, parameter = _matches([scope, Term(_key(word))])
        parts.append(
            f"SELECT * FROM (SELECT {number} AS word, m.position, m.id FROM {rows} WHERE {condition} "  # noqa: S608 -- ours
            f"AND m.position < %s ORDER BY m.position DESC LIMIT {_MAX_HITS}) q"
        )
        parameters += [parameter, before]
    found: dict[int, list[tuple[int, UUID]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), parameters)
        for number, position, key in cursor.fetchall():
            found.setdefault(number, []).append((position, key if isinstance(key, UUID) else UUID(key)))
    return list(found.values())


def _matches(keys: Collection[Term]) -> tuple[str, str]:
    """A condition on entry `e` that it has all these keys, and its parameter."""
    if connection.vendor == "sqlite":
        query = " AND ".join(f'"{key.word}"{"*" * key.is_prefix}' for key in keys)
        return f"e.id IN (SELECT rowid FROM {FTS_TABLE} WHERE {FTS_TABLE} MATCH %s)", query  # noqa: S608 -- ours
    return f"{TSVECTOR} @@ %s::tsquery", " & ".join(f"'{key.word}'{':*' * key.is_prefix}" for key in keys)


def _keyed(term: Term) -> Term:
    return Term(_key(term.word), term.is_prefix)


def _key(word: str) -> str:
    """UTF-8 in hexadecimal keeps what a prefix is."""
    return f"w{word}" if word.isascii() else f"x{word.encode().hex()}"


def _owner_key(owner_id: int) -> str:
    return f"o{owner_id}"


def _conversation_key(conversation_id: UUID) -> str:
    return f"c{conversation_id.hex}"
