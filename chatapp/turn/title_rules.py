"""What a model is asked for a title, and which of its answers are used. Pure.

Small models mostly do not name a conversation but go on with it. Beginning the answer for them helps most; what is left
is refused here: the first words of the conversation are never a bad title, and nobody misses another.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chatapp.text import num_columns, one_line

MAX_TOKENS = 24
MAX_COLUMNS = 60  # as wide as the first words
MAX_WORDS = 8  # six are asked for
_MIN_IDEOGRAPHS = 3  # two are a word, not a title
_STEM = 4  # letters that words of one family have in common: optimize, optimising
_ENDING = 3  # letters that a shorter word may get: egg, eggs
_IDEOGRAPH_WEIGHT = 3  # letters: a technical term in Latin ones makes no Chinese question an English one
# The words of an English title that say nothing about its topic.
_FUNCTION_WORDS = (
    "a about an and are at by can do does for from guide her his how i in into is it its my of on or our simple than "
    "that the their this to use using vs was what when where which who why will with you your"
)
_EMPTY = frozenset(_FUNCTION_WORDS.split())

_WORD = re.compile(r"[^\W_]+")
_IDEOGRAPHS = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff]+")
_LABEL = re.compile(r"\W*(?:title|标题)\W*[:：]", re.IGNORECASE)
_AROUND = " \t\"'`*_#~<>|“”‘’«»‹›„「」『』《》【】()[]{}（）-–—•.。,，、;；:：!！…"  # but for a question mark


@dataclass(frozen=True, slots=True)
class Wording:
    """instruction: the message behind the conversation. beginning: of the answer, which ends at one of `stop`."""

    instruction: str
    beginning: str
    stop: tuple[str, ...] = ("**", "\n")


# Tried with the default model on 44 first exchanges. Examples in the instruction come back as titles; a quotation mark
# in place of the stars, or no beginning, brings sentences about the conversation.
_WORDING = Wording("Write a title for this conversation in its own language, at most six words.", "Title: **")
_CHINESE = Wording("请为这段对话写一个标题，不超过十二个字。", "标题：**")


def wording(said: Sequence[str]) -> Wording:
    """How to ask for the title of a conversation in which a person has said this."""
    return _CHINESE if _script("".join(said)) == "CJK" and not re.search("[\u3040-\u30ff]", "".join(said)) else _WORDING


def accepted_title(written: str, *, said: Sequence[str], answered: Sequence[str]) -> str:
    """A title from what the model has written, "" if that is none.

    It is in the script of what the person has said. More than half of it is about what was said or answered, something
    about what was said: small models like to name something else, the instruction above all.
    """
    title = _LABEL.sub("", one_line(written), count=1)
    candidates = (title, title.partition(": ")[0])  # a subtitle may be too much
    return next(
        (found for text in candidates if (found := text.strip(_AROUND)) and _is_title(found, said, answered)), ""
    )


def _is_title(title: str, said: Sequence[str], answered: Sequence[str]) -> bool:
    if (
        num_columns(title) > MAX_COLUMNS
        or "<" in title
        or "\ufffd" in title
        or _script(title) != _script("".join(said))
    ):
        return False
    num_words = len(_WORD.findall(title))
    words = [word for word in _words(title) if word not in _EMPTY]
    num_ideographs = sum(map(len, _IDEOGRAPHS.findall(title)))
    if not words or (num_ideographs < _MIN_IDEOGRAPHS if num_ideographs else num_words < 2):
        return False
    if num_words > MAX_WORDS or max(Counter(words).values()) > max(1, len(words) // 3):
        return False
    own = set().union(*map(_words, said))
    asked = set(_words(wording(said).instruction)) - own
    known = own.union(*map(_words, answered)) - asked
    num_known = sum(_is_among(word, known) for word in words)
    is_echo = any(word in asked for word in words)
    return 2 * num_known > len(words) and any(_is_among(word, own) for word in words) and not is_echo


def _words(text: str) -> list[str]:
    """Words, and pairs of ideographs."""
    text = text.casefold()
    pairs = [run[i : i + 2] for run in _IDEOGRAPHS.findall(text) for i in range(len(run) - 1)]
    return pairs + _WORD.findall(_IDEOGRAPHS.sub(" ", text))


def _is_among(word: str, known: Iterable[str]) -> bool:
    return any(_is_related(word, other) for other in known)


def _is_related(one: str, other: str) -> bool:
    shorter, longer = sorted((one, other), key=len)
    is_inflected = len(shorter) == _STEM - 1 and len(longer) - len(shorter) <= _ENDING and longer.startswith(shorter)
    return one == other or is_inflected or (len(shorter) >= _STEM and one[:_STEM] == other[:_STEM])


def _script(text: str) -> str:
    """The script that most letters are of; "" without any."""
    names = Counter(_script_of(c) for c in text if c.isalpha())
    names["CJK"] *= _IDEOGRAPH_WEIGHT
    return max(names, key=lambda name: names[name]) if names.total() else ""


def _script_of(letter: str) -> str:
    if _IDEOGRAPHS.match(letter):
        return "CJK"
    return unicodedata.name(letter, "").partition(" ")[0]
