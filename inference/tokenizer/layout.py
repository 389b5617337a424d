"""Find where each message's content lies in a rendered conversation.

The template is rendered with a mark in place of every content; what stands between the marks is the template's own.
Where the template looks at contents it is rendered with them as well, and its own text must reappear around them.
Searching for the contents instead would take the word "user" in a message for the one in its role header.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """What the template wrote since the content before, whose content comes next, and how it is written."""

    gap: str
    number: int  # of the message
    content: str = ""


class Layout(NamedTuple):
    """A rendered conversation: parts in the order of the text, then what the template wrote after the last one."""

    parts: list[Part]
    tail: str


def marks(mark: str, num_messages: int) -> list[str]:
    """One mark per message, to be rendered in place of its content."""
    return [f"{mark}{index}{mark}" for index in range(num_messages)]


def split_marks(rendered_marks: str, mark: str) -> Layout:
    """Cut the rendering of marks() at its marks. Contents are left empty."""
    pieces = re.split(f"{mark}([0-9]+){mark}", rendered_marks)  # gap, index, gap, index, ..., tail
    gaps_and_indices = zip(pieces[:-1:2], pieces[1::2], strict=True)
    return Layout([Part(gap, int(index)) for gap, index in gaps_and_indices], pieces[-1])


def locate(rendered: str, contents: Sequence[str], layout: Layout) -> Layout:
    """The same parts found in `rendered`, with the contents as they stand there: trimmed, where the template trims.

    A content that the template rewrites is all that stands in its place.
    """
    parts: list[Part] = []
    following = [*(part.gap for part in layout.parts), layout.tail][1:]
    end = 0  # of the last content
    for part, after in zip(layout.parts, following, strict=True):
        start = end + len(part.gap) if rendered.startswith(part.gap, end) else end
        stop = _content_stop(rendered, start, contents[part.number], after)
        parts.append(Part(rendered[end:start], part.number, rendered[start:stop]))
        end = stop
    return Layout(parts, rendered[end:])


def _content_stop(rendered: str, start: int, content: str, following: str) -> int:
    """Where the content that begins at `start` ends: the template's `following` text begins there."""
    for candidate in (content, content.strip(), content.rstrip(), content.lstrip()):
        stop = start + len(candidate)
        if rendered.startswith(candidate, start) and rendered.startswith(following, stop):
            return stop
    stop = rendered.find(following, start)
    return len(rendered) if stop < 0 or not following else stop
