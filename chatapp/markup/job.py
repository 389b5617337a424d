"""The job "markdown.render": texts in, HTML of their blocks out, one answer at a time.

One answer per block, so that the server knows which block was being rendered when it lost patience.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chatapp.markup.plain import normalise
from chatapp.markup.render import cut, num_stable, render_block


def render_texts(payload: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
    """For each item {text, first, is_bare, is_open}: what it consists of, then the HTML of each block from `first` on.

    is_bare: no highlighting in block `first`, which has timed out with it. is_open: the text still grows.
    payload["plain_languages"]: labels that are not highlighted at all.
    """
    plain_languages = frozenset(payload["plain_languages"])
    for item in payload["items"]:
        lines = normalise(item["text"]).split("\n")
        spans, references = cut(lines)
        stable = num_stable(spans, lines)
        yield {
            "spans": [[span.start, span.end, span.labels] for span in spans],
            "num_stable": stable,
            "has_definitions": bool(references),
        }
        for i, span in enumerate(spans[item["first"] :], start=item["first"]):
            is_bare = item["is_bare"] and i == item["first"]
            yield render_block(
                lines,
                span,
                references,
                plain_languages=plain_languages.union(span.labels) if is_bare else plain_languages,
                is_open=item["is_open"] and i >= stable,
            )
