"""Find where each message's content lies in a rendered conversation.

The template is also rendered with a mark in place of every content. What stands between the marks is the template's own
text; it must reappear around the contents, which are read off between it. Guessing by searching would take the word
"user" in a message for the one in its role header.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


def marks(mark: str, num_messages: int) -> list[str]:
    """One mark per message, to be rendered in place of its content."""
    return [f"{mark}{index}{mark}" for index in range(num_messages)]


def locate(rendered: str, contents: Sequence[str], layout: str, mark: str) -> list[tuple[int, int]]:
    """Character range in `rendered` of each message's content; where the template trims it, of what is left.

    `layout` is the rendering of marks(). A content that the template rewrites gets all that stands in its place, one
    that it leaves out an empty range. Of one that it repeats, the first place counts.
    """
    places: dict[int, tuple[int, int]] = {}
    # literal, index, literal, index, ..., literal
    parts = re.split(f"{mark}([0-9]+){mark}", layout)
    position = len(parts[0]) if rendered.startswith(parts[0]) else 0
    for index_text, following in zip(parts[1::2], parts[2::2], strict=True):
        index = int(index_text)
        stop = _content_stop(rendered, position, contents[index], following)
        places.setdefault(index, (position, stop))
        position = stop + len(following)
    position = 0
    found = []
    for index in range(len(contents)):
        place = places.get(index, (position, position))
        found.append(place)
        position = place[1]
    return found


def _content_stop(rendered: str, start: int, content: str, following: str) -> int:
    """Where the content that begins at `start` ends: the template's `following` text begins there."""
    for candidate in (content, content.strip(), content.rstrip(), content.lstrip()):
        stop = start + len(candidate)
        if rendered.startswith(candidate, start) and rendered.startswith(following, stop):
            return stop
    stop = rendered.find(following, start)
    return len(rendered) if stop < 0 or not following else stop
