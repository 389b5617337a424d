"""What has left the window and is about what is asked now, as a quotation in front of the question. Pure.

A small model calls no tools, so it is not asked whether it wants to know: what was said is found by search.related and
put where the model reads it. It stands in the new user turn, never in front of the history, so all KV is reused; and it
is stored with the turn and replayed word for word, so it is reused from then on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from chatapp.search import MIN_SHARE, Hit
from chatapp.snippets import densest

MAX_PASSAGES = 4
_MAX_CHARS = 1200  # of one passage; of a longer one what stands around its telling words
_CHINESE = re.compile("[\u4e00-\u9fff]")
# Said to the model in the language of the question. Never as if the person had said it: quoted, with its speaker.
_FRAMES = {
    False: ("Earlier in this conversation, quoted from its record:", {"user": "User", "assistant": "Assistant"}),
    True: ("以下引自本次对话较早的记录：", {"user": "用户", "assistant": "助手"}),
}


@dataclass(frozen=True, slots=True)
class Recalled:
    """What is put in front of a question, and which messages it quotes, oldest first, with their positions."""

    text: str
    sources: tuple[UUID, ...]
    positions: tuple[int, ...]


def quote(
    question: str, passages: Sequence[Hit], words: Sequence[str], *, count: Callable[[str], int], max_tokens: int
) -> Recalled | None:
    """As many of the best passages as have max_tokens together; None when there is none.

    words: what was looked for. count: tokens of a text.
    """
    best = max((passage.score for passage in passages), default=0.0)
    ranked = [p for p in sorted(passages, key=lambda p: -p.score) if p.score >= MIN_SHARE * best][:MAX_PASSAGES]
    for num in range(len(ranked), 0, -1):
        chosen = sorted(ranked[:num], key=lambda passage: passage.position)
        text = _framed(question, chosen, words)
        if count(text) <= max_tokens:
            ids, positions = (p.message_id for p in chosen), (p.position for p in chosen)
            return Recalled(text, tuple(ids), tuple(positions))
    return None


def _framed(question: str, passages: Sequence[Hit], words: Sequence[str]) -> str:
    heading, speakers = _FRAMES[_CHINESE.search(question) is not None]
    lines = [heading]
    for passage in passages:
        speaker = speakers[passage.role]
        lines += [f"> {speaker}: " + _excerpt(passage.text, words).replace("\n", "\n> ")]
    return "\n".join(lines) + "\n\n"


def _excerpt(text: str, words: Sequence[str]) -> str:
    """The text, or of a long one the part in which most of the words stand closest together."""
    text = text.strip()
    if len(text) <= _MAX_CHARS:
        return text
    folded = text.casefold()
    places = sorted(match.start() for word in words for match in re.finditer(re.escape(word), folded))
    start = densest(places, _MAX_CHARS // 2) if places else 0
    start = max(0, min(start - _MAX_CHARS // 4, len(text) - _MAX_CHARS))
    excerpt = text[start : start + _MAX_CHARS]
    return ("… " if start else "") + excerpt.strip() + (" …" if start + _MAX_CHARS < len(text) else "")
