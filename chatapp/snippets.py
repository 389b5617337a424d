"""One line of a text around the words that were looked for, in parts: what matches, and what stands between. Pure.

Parts are plain text: whoever shows them escapes them.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chatapp.words import Term

MAX_CHARS = 120
_BEFORE = 16  # characters in front of the first match: the list is narrow
_MAX_MATCHES = 64  # looked at
_IN_A_WORD = r"[^\W_]"  # words.index_words parts words at an underscore


@dataclass(frozen=True, slots=True)
class Part:
    text: str
    is_match: bool = False


def snippet_of(text: str, terms: Sequence[Term]) -> tuple[Part, ...]:
    """The line in which most matches stand together, the first such; where none can be shown, the beginning."""
    line = " ".join(unicodedata.normalize("NFC", text).split())
    spans = _joined(sorted(_spans(line, terms)))
    start = _start_of(line, spans)
    stop = min(len(line), start + MAX_CHARS)
    parts = [Part("… ")] if start else []
    end = start
    for first, last in spans:
        if first < start or first >= stop:
            continue
        parts += [Part(line[end:first]), Part(line[first : min(last, stop)], is_match=True)]
        end = min(last, stop)
    parts += [Part(line[end:stop]), Part(" …" if stop < len(line) else "")]
    return tuple(part for part in parts if part.text)


def _start_of(line: str, spans: Sequence[tuple[int, int]]) -> int:
    """Where the part begins that shows most of the matches: a few characters before the first of them, with a word."""
    if not spans:
        return 0
    best = densest([first for first, _ in spans], MAX_CHARS - _BEFORE)
    if best <= _BEFORE + _BEFORE // 2:
        return 0
    start = best - _BEFORE
    return 1 + max(line.find(" ", start, best), start - 1)


def densest(places: Sequence[int], width: int) -> int:
    """The place from which on most of the others lie within so many characters, the first such. places: ascending.

    n log n: of a long message every figure may be a match.
    """
    return max(places, key=lambda place: bisect_left(places, place + width) - bisect_left(places, place))


def _spans(line: str, terms: Sequence[Term]) -> Iterator[tuple[int, int]]:
    """Where the terms stand, in one spelling as words.index_words finds them."""
    folded, places = _folded(line)
    for term in terms:
        word = re.escape(term.word)
        # A word by itself; of a script without spaces any part.
        pattern = (
            rf"(?<!{_IN_A_WORD}){word}" + ("" if term.is_prefix else rf"(?!{_IN_A_WORD})")
            if term.word.isascii()
            else word
        )
        for number, match in enumerate(re.finditer(pattern, folded)):
            if number == _MAX_MATCHES:
                break
            yield places[match.start()], places[match.end() - 1] + 1


def _folded(line: str) -> tuple[str, Sequence[int]]:
    """The line as words are compared, and for each character of that the one that it comes from."""
    if line.isascii():
        return line.casefold(), range(len(line))
    folded = [unicodedata.normalize("NFKC", char).casefold() for char in line]
    return "".join(folded), [place for place, chars in enumerate(folded) for _ in chars]


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that overlap or touch, as one: pairs of neighbouring characters become what was looked for."""
    joined: list[tuple[int, int]] = []
    for first, last in spans:
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined
