"""Markdown of messages -> sanitised HTML of top-level blocks; cached for pages of history, incremental for streams.

The work is done in the jail (chatapp.markup, in a child process), because the grammars can be made to run for ever. What
the jail does not answer in time is shown as plain escaped text. Synchronous: call from a thread. Never raises for a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chatapp.wire import Block


def render_blocks(text: str) -> tuple[str, ...]:
    """Sanitised HTML of each top-level block of `text`, in order. Cached."""
    return render_many([text])[0]


def render_many(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """render_blocks of each text, in as few calls to the jail as possible: for a page of history."""
    raise NotImplementedError


class StreamUpdate(NamedTuple):
    """What changed: these blocks replace or follow the ones with their index; from `num_blocks` on none is left."""

    blocks: tuple[Block, ...]
    num_blocks: int


class BlockStream:
    """The blocks of one growing text. Not thread-safe: one stream, one caller at a time."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks as of the last update: for a snapshot."""
        raise NotImplementedError

    def update(self, full_text: str, is_final: bool = False) -> StreamUpdate:
        """Take the text as it is now. After the final update the blocks equal render_blocks(full_text)."""
        raise NotImplementedError
