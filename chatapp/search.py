"""Finding messages by their words, the same way on SQLite and on PostgreSQL; for recall by their meaning, too.

An entry holds the keys of a message: its words, one that names its owner and one that names its conversation, so that
what is not asked for is never looked at. A key is ASCII, whatever the word: no database has to know its script. Its
first letter says what it is of: nobody's text can name an owner.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log
from uuid import UUID

from django.db import connection
from django.db.models import F, Window
from django.db.models.expressions import RawSQL
from django.db.models.functions import RowNumber

from chatapp import vectors
from chatapp.models import Conversation, Message, SearchEntry, User
from chatapp.selectors import path_ids
from chatapp.snippets import Part, snippet_of
from chatapp.storage import translated
from chatapp.vectors import Place
from chatapp.words import Term, index_words, query_terms, telling_words

TABLE = SearchEntry._meta.db_table
FTS_TABLE = f"{TABLE}_fts"
TSVECTOR = "array_to_tsvector(string_to_array(e.keys, ' '))"  # no parser, no language: keys are words already
MAX_OF_WORD = 200  # messages of a conversation; what more of them have tells nothing about one
MIN_SHARE = 0.4  # of the best hit's score; what has less is a coincidence
_MAX_RELATED = 400  # messages that are looked at
_RANK_OFFSET = 60  # of reciprocal rank fusion, as its authors chose it
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
    matching, parameter = _matching([Term(_owner_key(user.pk)), *map(_keyed, terms)])
    rows = f"{Message._meta.db_table} m JOIN {TABLE} e ON e.message_id = m.id"
    return RawSQL(f"SELECT m.conversation_id FROM {rows} WHERE e.id IN ({matching})", [parameter])  # noqa: S608, S611 -- ours


@translated()
def snippets(user: User, query: str, conversation_ids: Collection[UUID]) -> dict[UUID, tuple[Part, ...]]:
    """Of each of these conversations in which one message of this person's has all words of the query, a line of the
    newest such message. Two queries at most."""
    terms = query_terms(query)[:_MAX_TERMS]
    if not terms or not conversation_ids:
        return {}
    matching, parameter = _matching([Term(_owner_key(user.pk)), *map(_keyed, terms)])
    newest = Window(RowNumber(), partition_by=F("message__conversation"), order_by=F("message__created_at").desc())
    rows = SearchEntry.objects.filter(id__in=RawSQL(matching, [parameter]))  # noqa: S611 -- ours
    rows = rows.filter(message__conversation__in=conversation_ids).annotate(place=newest).filter(place=1)
    messages = Message.objects.filter(id__in=list(rows.values_list("message_id", flat=True)))
    found = messages.only("conversation_id", "text", "thinking_chars")
    return {message.conversation_id: snippet_of(message.answer, terms) for message in found}


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that is about what was asked, by its words or its meaning. score: the more so, the higher; comparable
    among the hits of one question only."""

    message_id: UUID
    position: int
    role: str
    text: str  # without its thinking
    score: float


@translated()
def related(conversation: Conversation, question: Message, before: int, limit: int = 8) -> list[Hit]:
    """Messages above a question, at positions below `before`, that are about what it is about; the best ones first.

    By words, and by meaning where there is an encoder (vectors.nearest, a query more). Three queries, more only where
    there are branches; the cost depends on the question and not on how long the conversation is.
    """
    by_word = _by_word(conversation, question, before)
    by_meaning = vectors.nearest(question, before)
    places = [*by_word, *by_meaning]
    on_path = path_ids(question, {message_id: position for position, message_id in places})
    by_word = {place: score for place, score in by_word.items() if place[1] in on_path}
    scores = _fused(by_word, [place for place in by_meaning if place[1] in on_path], limit)
    best = sorted(scores, key=lambda place: (-scores[place], -place[0]))[:limit]
    rows = Message.objects.in_bulk([message_id for _, message_id in best])
    return [
        Hit(message_id, position, rows[message_id].role, rows[message_id].answer, scores[position, message_id])
        for position, message_id in best
    ]


def _fused(by_word: dict[Place, float], by_meaning: Sequence[Place], limit: int) -> dict[Place, float]:
    """One score for both, from the places in two rankings: a sum over words and a cosine have no common scale.

    Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009). Ranks forget how good a hit is, so what either
    way takes for a coincidence is left out before. Nothing of meaning: the words' own scores, as without an encoder.
    """
    if not by_meaning:
        return by_word
    best = max(by_word.values(), default=0.0)
    telling = [place for place, score in by_word.items() if score >= MIN_SHARE * best]
    telling.sort(key=lambda place: (-by_word[place], -place[0]))
    scores: dict[Place, float] = {}
    for ranking in (telling, by_meaning):
        for rank, place in enumerate(ranking[:limit], 1):
            scores[place] = scores.get(place, 0.0) + 1 / (_RANK_OFFSET + rank)
    return scores


def _by_word(conversation: Conversation, question: Message, before: int) -> dict[Place, float]:
    """Messages at positions below `before` that share words with a question, and how much that tells.

    A word counts the more the fewer of these messages have it, and not at all when more than a fifth has it, or
    MAX_OF_WORD of the conversation: then it belongs to that and tells nothing about one message. Two queries.
    """
    found = _found(conversation, telling_words(question.text), before)
    scores: dict[Place, float] = {}
    for messages in found:
        if len(messages) > max(4, before // 5):
            continue
        weight = log(1 + (before - len(messages) + 0.5) / (len(messages) + 0.5))
        for message in messages:
            scores[message] = scores.get(message, 0.0) + weight
    return scores


def _found(conversation: Conversation, words: Sequence[str], before: int) -> list[list[Place]]:
    """For each word that tells something the messages above `before` that have it, as (position, id); the rarest word
    first, and no more words once there are _MAX_RELATED messages. Two queries."""
    entries = sorted(_entries_with(conversation, words), key=len)
    totals = accumulate(map(len, entries))
    entries = [ids for ids, total in zip(entries, totals, strict=True) if total - len(ids) < _MAX_RELATED]
    numbers = {number for ids in entries for number in ids}
    if not numbers:
        return []
    rows = SearchEntry.objects.filter(id__in=numbers, message__position__lt=before)
    found = rows.values_list("id", "message__position", "message_id")
    places = {number: (position, message_id) for number, position, message_id in found}
    return [[places[number] for number in ids if number in places] for ids in entries]


def _entries_with(conversation: Conversation, words: Sequence[str]) -> list[list[int]]:
    """Ids of the entries that have a word, for each that MAX_OF_WORD at most of the conversation have. One query."""
    if not words:
        return []
    scope = Term(_conversation_key(conversation.id))
    parts: list[str] = []
    parameters: list[str] = []
    for number, word in enumerate(words):
        matching, parameter = _matching([scope, Term(_key(word))])
        parts.append(f"SELECT {number} AS word, q.id FROM ({matching} LIMIT {MAX_OF_WORD + 1}) q")  # noqa: S608 -- ours
        parameters.append(parameter)
    found: dict[int, list[int]] = {}
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), parameters)
        for number, entry in cursor.fetchall():
            found.setdefault(number, []).append(entry)
    return [ids for ids in found.values() if len(ids) <= MAX_OF_WORD]


def _matching(keys: Collection[Term]) -> tuple[str, str]:
    """A query for the ids of the entries that have all these keys, and its parameter. Taking a few of them is cheap,
    however many there are."""
    if connection.vendor == "sqlite":
        query = " AND ".join(f'"{key.word}"{"*" * key.is_prefix}' for key in keys)
        return f"SELECT rowid AS id FROM {FTS_TABLE} WHERE {FTS_TABLE} MATCH %s", query  # noqa: S608 -- ours
    query = " & ".join(f"'{key.word}'{':*' * key.is_prefix}" for key in keys)
    return f"SELECT e.id FROM {TABLE} e WHERE {TSVECTOR} @@ %s::tsquery", query  # noqa: S608 -- ours


def _keyed(term: Term) -> Term:
    return Term(_key(term.word), term.is_prefix)


def _key(word: str) -> str:
    """UTF-8 in hexadecimal keeps what a prefix is."""
    return f"w{word}" if word.isascii() else f"x{word.encode().hex()}"


def _owner_key(owner_id: int) -> str:
    return f"o{owner_id}"


def _conversation_key(conversation_id: UUID) -> str:
    return f"c{conversation_id.hex}"
