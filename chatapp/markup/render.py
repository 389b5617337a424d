"""A text cut into its top-level blocks, and the HTML of one block.

A block is rendered from its own lines alone (and the link definitions of the text), so cutting and rendering can be
done a block at a time: block parsing at the top level starts afresh at each block.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it.token import Token

from chatapp.markup.parser import MAX_HIGHLIGHT_CHARS, MAX_NESTING, build_parser, fence_label
from chatapp.markup.plain import plain_block
from chatapp.markup.sanitise import sanitise

MAX_BLOCK_CHARS = 20_000
MAX_OPEN_HIGHLIGHT_CHARS = 4_000  # a code block that still grows is lexed again with every update
# Ended by a line of their own, or (indented code) by the indentation of the next, which its first character fixes.
_SELF_CLOSED = frozenset({"heading_open", "hr", "fence", "math_block", "code_block"})
_LISTS = frozenset({"bullet_list_open", "ordered_list_open"})
_LIST_MARKS = frozenset("-+*0123456789")

_MD = build_parser()


@dataclass(frozen=True, slots=True)
class Span:
    """Lines start..end (end excluded) of a top-level block; `labels` are the languages of the code in it."""

    start: int
    end: int
    kind: str
    is_too_deep: bool
    labels: tuple[str, ...]


def cut(lines: Sequence[str]) -> tuple[list[Span], dict[str, Any]]:
    """The top-level blocks of a text, and its link definitions by label."""
    env: dict[str, Any] = {"references": {}}
    tokens: list[Token] = []
    _MD.block.parse("\n".join(lines), _MD, env, tokens)
    spans: list[Span] = []
    start = 0
    for i, token in enumerate(tokens):
        if token.level == 0 and token.nesting <= 0:
            spans.append(_span(tokens[start : i + 1]))
            start = i + 1
    return spans, env["references"]


def num_stable(spans: Sequence[Span], lines: Sequence[str]) -> int:
    """How many blocks from the front stay as they are, whatever is appended; the last line, too, may still grow."""
    for i, span in enumerate(spans[:-1]):
        if not _is_stable(span, lines):
            return i
    return max(len(spans) - 1, 0)


def render_block(
    lines: Sequence[str],
    span: Span,
    references: Mapping[str, Any],
    *,
    plain_languages: Collection[str] = (),
    is_open: bool = False,
) -> str:
    """Sanitised HTML of one block; its escaped source where it is too large or too deeply nested."""
    source = "\n".join(lines[span.start : span.end])
    if span.is_too_deep or len(source) > MAX_BLOCK_CHARS:
        return plain_block(source)
    env = {
        "references": dict(references),
        "plain_languages": plain_languages,
        "max_highlight_chars": MAX_OPEN_HIGHLIGHT_CHARS if is_open else MAX_HIGHLIGHT_CHARS,
    }
    return sanitise(_MD.render(source, env))


def _span(tokens: Sequence[Token]) -> Span:
    assert tokens[0].map is not None
    start, end = tokens[0].map
    return Span(
        start=start,
        end=end,
        kind=tokens[0].type,
        is_too_deep=any(token.level >= MAX_NESTING - 1 for token in tokens),  # the parser drops what is deeper
        labels=tuple({fence_label(token): None for token in tokens if token.type == "fence" and token.info}),
    )


def _is_stable(span: Span, lines: Sequence[str]) -> bool:
    """A block that another one follows: can a longer text still change it?

    Only the last line may grow, and growing can turn it into something that belongs to the block before: "#" into "#x",
    "2" into "2. ". A table needs its second line to be told from a paragraph.
    """
    if span.kind in _SELF_CLOSED:
        return True
    last = len(lines) - 1
    following = next(i for i in range(span.end, len(lines)) if lines[i].strip(" \t"))
    is_after_blank = not lines[following - 1].strip(" \t")
    if span.kind in _LISTS:
        return following < last or (is_after_blank and lines[following].lstrip(" \t")[0] not in _LIST_MARKS)
    return is_after_blank or following + 1 < last
