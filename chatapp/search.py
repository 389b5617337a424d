"""Finding messages by their words, the same way on SQLite and on PostgreSQL; for recall by their meaning, too.

An entry holds the keys of a message: its words, one that names its owner and one that names its conversation, so that
what is not asked for is never looked at. A key is ASCII, whatever the word: no database has to know its script. Its
first letter says what it is of: nobody's text can name an owner.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log
from threading import Lock
from uuid import UUID

from django.db import connection
from django.db.models import F, Window
from django.db.models.expressions import RawSQL
from django.db.models.functions import RowNumber

from chatapp import vectors
from chatapp.llm import Meaning
from chatapp.models import Conversation, Message, SearchEntry, User
from chatapp.selectors import HAS_OTHERS, path_ids
from chatapp.snippets import Part, snippet_of
from chatapp.storage import translated, uuid_of
from chatapp.vectors import Place
from chatapp.words import Term, index_words, query_terms, telling_words

TABLE = SearchEntry._meta.db_table
FTS_TABLE = f"{TABLE}_fts"
TSVECTOR = "array_to_tsvector(string_to_array(e.keys, ' '))"  # no parser, no language: keys are words already
MAX_OF_WORD = 200  # messages of a conversation; what more of them have tells nothing about one
MIN_SHARE = 0.4  # of the best hit's score; what has less is a coincidence
MAX_RELATED = 400  # messages that are looked at; a rarer word comes first
_RANK_OFFSET = 60  # of reciprocal rank fusion, as its authors chose it
_MAX_TERMS = 32  # of a query
_MAX_KEPT = 64  # conversations whose common words are known


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
def related(
    conversation: Conversation, question: Message, before: int, *, meaning: Meaning | None = None, limit: int = 8
) -> list[Hit]:
    """Messages above a question, at positions below `before`, that are about what it is about; the best ones first.

    By words, and by the meaning of the question where that is given (vectors.nearest, a query more). Three queries,
    more only where there are branches; the cost depends on the question and not on how long the conversation is.
    """
    found, shared = _found(conversation, telling_words(question.text), before)
    by_word, by_meaning = _scores(found, before), vectors.nearest(question, meaning, before)
    doubtful = {*by_meaning, *(shared & by_word.keys())}
    on_path = path_ids(question, {message_id: position for position, message_id in doubtful})
    elsewhere = {place for place in doubtful if place[1] not in on_path}
    by_word = {place: score for place, score in by_word.items() if place not in elsewhere}
    scores = _fused(by_word, [place for place in by_meaning if place not in elsewhere], limit)
    best = sorted(scores, key=lambda place: (-scores[place], -place[0]))[:limit]
    rows = Message.objects.only("role", "text", "thinking_chars").in_bulk([message_id for _, message_id in best])
    return [
        Hit(message_id, position, rows[message_id].role, rows[message_id].answer, scores[position, message_id])
        for position, message_id in best
        if message_id in rows  # not deleted since the words were looked up
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


def _scores(found: Sequence[Sequence[Place]], before: int) -> dict[Place, float]:
    """How much it tells of messages at positions below `before` that they share words with a question. found: of each
    word the messages that have it.

    A word counts the more the fewer of these messages have it, and not at all when more than a fifth has it, or
    MAX_OF_WORD of the conversation: then it belongs to that and tells nothing about one message.
    """
    scores: dict[Place, float] = {}
    for messages in found:
        if len(messages) > max(4, before // 5):
            continue
        weight = log(1 + (before - len(messages) + 0.5) / (len(messages) + 0.5))
        for message in messages:
            scores[message] = scores.get(message, 0.0) + weight
    return scores


def _found(conversation: Conversation, words: Sequence[str], before: int) -> tuple[list[list[Place]], set[Place]]:
    """For each word that tells something the messages above `before` that have it, the rarest word first, and no more
    words once there are MAX_RELATED messages; and which of the messages have others at their depth. Two queries."""
    entries = sorted(_entries_with(conversation, words), key=len)
    totals = accumulate(map(len, entries))
    entries = [ids for ids, total in zip(entries, totals, strict=True) if total - len(ids) < MAX_RELATED]
    numbers = {number for ids in entries for number in ids}
    if not numbers:
        return [], set()
    places, shared = _places_of(numbers, before)
    return [[places[number] for number in ids if number in places] for ids in entries], shared


def _entries_with(conversation: Conversation, words: Sequence[str]) -> list[list[int]]:
    """Ids of the entries that have a word, for each that MAX_OF_WORD at most of the conversation have. One query."""
    common = _common.of(conversation.id)
    asked = [word for word in words if word not in common]
    if not asked:
        return []
    scope = Term(_conversation_key(conversation.id))
    parts: list[str] = []
    parameters: list[str] = []
    for number, word in enumerate(asked):
        matching, parameter = _matching([scope, Term(_key(word))])
        few = f"({matching} LIMIT {MAX_OF_WORD + 1}) found"
        counted = f"(SELECT id, count(*) OVER () AS num, row_number() OVER () AS place FROM {few}) counted"  # noqa: S608
        parts.append(f"SELECT {number}, id, num FROM {counted} WHERE num <= {MAX_OF_WORD} OR place = 1")  # noqa: S608
        parameters.append(parameter)
    found: dict[int, list[int]] = {}
    too_many: list[str] = []
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), parameters)
        for number, entry, num in cursor.fetchall():
            if num > MAX_OF_WORD:
                too_many.append(asked[number])
            else:
                found.setdefault(number, []).append(entry)
    _common.add(conversation.id, too_many)
    return list(found.values())


class CommonWords:
    """Words that more than MAX_OF_WORD messages of a conversation are known to have. Any thread.

    What has been seen once stays so, for messages are not taken away one by one. Of a few conversations, in memory: a
    draft asks for the same words at each keystroke, and for each PostgreSQL's index goes through all messages that have
    it before it gives the first (2 ms for 10,000).
    """

    def __init__(self) -> None:
        self._words: OrderedDict[UUID, frozenset[str]] = OrderedDict()
        self._lock = Lock()

    def of(self, conversation_id: UUID) -> frozenset[str]:
        with self._lock:
            return self._words.get(conversation_id, frozenset())

    def add(self, conversation_id: UUID, words: Collection[str]) -> None:
        """These have it as well; and the conversation is one that is being written in."""
        with self._lock:
            self._words[conversation_id] = self._words.get(conversation_id, frozenset()).union(words)
            self._words.move_to_end(conversation_id)
            while len(self._words) > _MAX_KEPT:
                self._words.popitem(last=False)


_common = CommonWords()  # of this process


def _places_of(entries: Collection[int], before: int) -> tuple[dict[int, Place], set[Place]]:
    """Where the messages of these entries lie, as far as that is above `before`, and which of them have others at their
    depth. One query; put together by the ORM it takes ten times the time of the processor."""
    query = f"""
        SELECT e.id, m.position, m.id, {HAS_OTHERS}
        FROM {TABLE} e JOIN {Message._meta.db_table} m ON m.id = e.message_id
        WHERE e.id IN ({", ".join("%s" for _ in entries)}) AND m.position < %s
    """  # noqa: S608 -- ours
    places: dict[int, Place] = {}
    shared: set[Place] = set()
    with connection.cursor() as cursor:
        cursor.execute(query, [*entries, before])
        for number, position, key, has_others in cursor.fetchall():
            places[number] = place = (position, uuid_of(key))
            if has_others:
                shared.add(place)
    return places, shared


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
