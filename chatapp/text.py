"""Text of people on its way into a row: what a database can hold, and how a title is cut out of a message. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

_UNSTORABLE = {0: "\ufffd"} | dict.fromkeys(range(55296, 57344), "�")  # NUL and lone surrogates
_TITLE_COLUMNS = 60
_WIDE_STOPS = ("。", "！", "？")
_MARKUP = "#>*-_`~|=+ "  # what a line of Markdown may begin with
# Letters, marks and symbols without ink: Unicode's Default_Ignorable_Code_Point beyond category Cf, and the empty
# Braille cell. The same set as in static/js/format.js.
_INKLESS = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2065\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000))))
)


def is_blank(text: str) -> bool:
    """Whether nothing of it would be seen."""
    return all(c.isspace() or c in _INKLESS or unicodedata.category(c) in ("Cc", "Cf") for c in text)


def is_storable(text: str) -> bool:
    """Whether every database can hold it: PostgreSQL takes no NUL, and a lone surrogate has no UTF-8."""
    return text == storable(text)


def storable(text: str) -> str:
    """`text` with a replacement character for each thing that no database holds."""
    return text.translate(_UNSTORABLE)


def one_line(text: str) -> str:
    """`text` on one line: white space collapsed, control characters (also those that turn the direction) dropped."""
    visible = "".join(" " if c.isspace() else c for c in text if c.isspace() or not _is_control(c))
    return " ".join(visible.split())


def joined(sentences: Iterable[str]) -> str:
    """Sentences one after the other, without the empty ones. A full stop of Chinese brings its own space."""
    text = ""
    for sentence in filter(None, sentences):
        text += sentence if not text or text.endswith(_WIDE_STOPS) else f" {sentence}"
    return text


def first_words(text: str, columns: int = _TITLE_COLUMNS) -> str:
    """A title: the beginning of the first line that says something, at most `columns` wide, "…" where it was cut.

    A Chinese, Japanese or Korean character is two columns wide and may be cut behind, best where a clause ends;
    elsewhere words stay whole. Both only if that leaves at least half of the width. Never cuts between a letter and its
    combining marks.
    """
    line = next((found for raw in text.splitlines() if (found := one_line(raw).lstrip(_MARKUP))), "")
    if num_columns(line) <= columns:
        return line
    end = width = 0
    while width + _char_width(line[end]) < columns:  # one column stays for the ellipsis
        width += _char_width(line[end])
        end += 1
    while end and (unicodedata.combining(line[end]) or line[end] in "\u200d\ufe0e\ufe0f" or line[end - 1] == "\u200d"):
        end -= 1
    best = _clause_end(line, end) if _char_width(line[end]) == 2 else _word_start(line, end)
    if num_columns(line[:best]) * 2 >= columns:
        end = best
    return line[:end].rstrip(" ,;:.，。；：、（《“‘「『【") + "…"


def _clause_end(line: str, end: int) -> int:
    """Behind the last mark before `end` at which a Chinese or Japanese clause ends; 0 without one."""
    return max(line.rfind(mark, 0, end) for mark in "，。；：！？") + 1


def _word_start(line: str, end: int) -> int:
    """Where the word that `end` falls into begins: behind white space or a wide character; 0 at the first word."""
    return next((i for i in range(end, 0, -1) if line[i] == " " or _char_width(line[i - 1]) == 2), 0)


def _is_control(character: str) -> bool:
    # Cf holds the bidirectional overrides, but also the joiners of emoji and of Indic and Persian words
    return unicodedata.category(character) in ("Cc", "Cf", "Cs") and character not in "\u200c\u200d"


def _char_width(character: str) -> int:
    if unicodedata.combining(character) or character in "\u200c\u200d\ufe0e\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def num_columns(text: str) -> int:
    """How wide a text is: ideographs take two columns, combining marks none."""
    return sum(map(_char_width, text))
