"""What of a reply is thinking: the leading block that a model puts between two marks, such as <think> and </think>.

Only what stands at the head of a reply is thinking: marks further down, in a code fence for instance, are what it talks
about. Pure functions of what was generated; nothing is ever taken out of ids or text here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import AnyStr, NamedTuple

from inference.tokenizer.tokenizer import Tokenizer

# As the families write them: Qwen 3, DeepSeek R1, SmolLM 3, GLM; Magistral; Seed-OSS; EXAONE; others.
PAIRS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<thought>", "</thought>"),
    ("<thinking>", "</thinking>"),
)


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """How a model marks its thinking.

    starts_open        the generation prompt has opened the block already: replies begin inside it
    open_id, close_id  the marks as control tokens; None where they are written out in ordinary tokens. Where they are
                       control tokens nothing else counts: a mark that a model spells out is something that it quotes
    """

    open: str
    close: str
    starts_open: bool = False
    open_id: int | None = None
    close_id: int | None = None


@dataclass(frozen=True, slots=True)
class ThinkingSplit:
    """Where in a reply the thinking ends.

    num_chars   so many characters of the text are thinking, with its marks and the white space behind it; 0 for none
    num_tokens  so many ids hold exactly these; None when the answer begins inside a token
    is_open     the block has not been closed (yet): all of the reply is thinking
    num_held    so many characters at the end may be the beginning of a mark, and are not to be shown yet
    """

    num_chars: int = 0
    num_tokens: int | None = 0
    is_open: bool = False
    num_held: int = 0


def find_marks(source: str, generation_prompt: str, special_tokens: Mapping[str, int]) -> ThinkingMarks | None:
    """The marks of a model whose template knows some, or whose vocabulary has a pair as control tokens."""
    named = [pair for pair in PAIRS if any(mark in source for mark in pair)]
    known = [pair for pair in PAIRS if all(mark in special_tokens for mark in pair)]
    if not named and not known:
        return None
    opening, closing = (named or known)[0]
    starts_open = generation_prompt.rfind(opening) > generation_prompt.rfind(closing)
    if (opening, closing) in known:
        return ThinkingMarks(opening, closing, starts_open, special_tokens[opening], special_tokens[closing])
    return ThinkingMarks(opening, closing, starts_open)


def split_text(text: str, marks: ThinkingMarks) -> ThinkingSplit:
    """The split of a reply of which only the text is known. num_tokens is None."""
    found = _scan(text, marks.open, marks.close, marks.starts_open)
    num_chars = len(text) if found.is_open else _behind_space(text, found.end)
    return ThinkingSplit(num_chars, None, found.is_open, found.num_held)


def split_ids(ids: Sequence[int], text: str, marks: ThinkingMarks, tokenizer: Tokenizer) -> ThinkingSplit:
    """The split of a reply by its ids, which decode to `text`. Cost: in proportion to the reply."""
    if marks.close_id is None:
        data = b"".join(map(tokenizer.token_bytes, ids))
        found = _scan(data, marks.open.encode(), marks.close.encode(), marks.starts_open)
        num_tokens = _num_tokens(ids, data, found.end, tokenizer)
    else:
        found = _scan_ids(ids, marks, tokenizer)
        data = b"".join(map(tokenizer.token_bytes, ids[: found.end]))
        num_tokens = _behind_space_tokens(ids, found.end, tokenizer)
        found = found._replace(end=len(data))
    if found.is_open:
        return ThinkingSplit(len(text), len(ids), is_open=True, num_held=found.num_held)
    if not found.end:
        return ThinkingSplit(num_held=found.num_held)
    decoded = data[: found.end].decode(errors="replace")
    has_lost_space = tokenizer.strips_leading_space and decoded.startswith(" ")
    return ThinkingSplit(_behind_space(text, len(decoded) - has_lost_space), num_tokens)


class ThinkingReader:
    """Splits the replies of one model. Changes nothing, keeps nothing."""

    def __init__(self, marks: ThinkingMarks, tokenizer: Tokenizer) -> None:
        self.marks = marks
        self._tokenizer = tokenizer

    def split(self, text: str, ids: Sequence[int] | None) -> ThinkingSplit:
        """The split of a reply; ids None where none stand for the text."""
        return split_text(text, self.marks) if ids is None else split_ids(ids, text, self.marks, self._tokenizer)

    def glance(self, text: str, ids: Sequence[int] | None) -> ThinkingSplit:
        """The same without the number of tokens where that would take a walk through all of them: for each token."""
        return self.split(text, None if self.marks.close_id is None else ids)


class _Found(NamedTuple):
    """end: behind the last mark of the leading block, 0 without one."""

    end: int
    is_open: bool = False
    num_held: int = 0


def _scan(text: AnyStr, opening: AnyStr, closing: AnyStr, is_open: bool) -> _Found:
    end = position = 0
    while True:
        if not is_open:
            rest = text[end:].lstrip()
            if not rest.startswith(opening):
                return _Found(end, num_held=len(rest) if rest and opening.startswith(rest) else 0)
            position = len(text) - len(rest) + len(opening)  # also of a second block right behind the first
        closed_at = text.find(closing, position)
        if closed_at < 0:
            return _Found(end, is_open=True, num_held=_num_held(text[position:], closing))
        end, is_open = closed_at + len(closing), False


def _scan_ids(ids: Sequence[int], marks: ThinkingMarks, tokenizer: Tokenizer) -> _Found:
    assert marks.close_id is not None
    end, position, is_open = 0, 0, marks.starts_open
    while True:
        if not is_open:
            position = _behind_space_tokens(ids, end, tokenizer)
            if position == len(ids) or ids[position] != marks.open_id:
                return _Found(end)
        try:
            end, is_open = ids.index(marks.close_id, position) + 1, False
        except ValueError:
            return _Found(end, is_open=True)


def _num_tokens(ids: Sequence[int], data: bytes, end: int, tokenizer: Tokenizer) -> int | None:
    """How many ids hold data[:end] and the white space behind it; None when the last of them holds more."""
    seen = 0
    for number, token in enumerate(ids):
        if seen >= end:
            return None if data[end:seen].strip() else _behind_space_tokens(ids, number, tokenizer)
        seen += len(tokenizer.token_bytes(token))
    return None if data[end:].strip() else len(ids)


def _behind_space(text: str, position: int) -> int:
    return len(text) - len(text[position:].lstrip()) if position else 0


def _behind_space_tokens(ids: Sequence[int], position: int, tokenizer: Tokenizer) -> int:
    while position < len(ids) and tokenizer.token_bytes(ids[position]).isspace():
        position += 1
    return position


def _num_held(text: AnyStr, mark: AnyStr) -> int:
    """Length of the longest end of the text with which the mark begins."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-size:])), 0)
