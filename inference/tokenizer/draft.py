"""A prompt in the making: known ids and text still to be encoded, in order, and places to be found again.

Text between two pieces of ids is encoded in one go, as the reference implementation would, so a place inside it becomes
a token index only afterwards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from inference.tokenizer.tokenizer import EncodedSpan, Tokenizer
from inference.types import I32


@dataclass(frozen=True, slots=True)
class Place:
    """So many characters into a segment; into a segment of ids only its beginning."""

    segment: int
    offset: int


class Draft:
    """Appended to piece by piece, then encoded once."""

    def __init__(self) -> None:
        self._segments: list[list[str] | I32] = []
        self._num_chars = 0  # of the last segment, if it is text

    def end(self, *, before_text: bool) -> Place:
        """The place at which the next piece will begin."""
        if before_text and self._segments and isinstance(self._segments[-1], list):
            return Place(len(self._segments) - 1, self._num_chars)
        return Place(len(self._segments), 0)

    def add_text(self, text: str) -> None:
        if not self._segments or not isinstance(self._segments[-1], list):
            self._segments.append([])
            self._num_chars = 0
        last = self._segments[-1]
        assert isinstance(last, list)
        last.append(text)
        self._num_chars += len(text)

    def add_ids(self, ids: I32) -> None:
        self._segments.append(ids)

    def drop_second_bos(self, bos_token_id: int | None) -> None:
        """Templates and files are known to bring one each; two of them confuse a model."""
        first_two = self._segments[:2]
        if len(first_two) == 2 and all(
            not isinstance(segment, list) and segment.tolist() == [bos_token_id] for segment in first_two
        ):
            self._segments[0] = np.empty(0, np.int32)

    def encode(self, tokenizer: Tokenizer) -> EncodedDraft:
        """Encode what is text. Cost: see Tokenizer.encode_spans."""
        texts = [
            ("".join(segment), index == 0) for index, segment in enumerate(self._segments) if isinstance(segment, list)
        ]
        encoded = iter(tokenizer.encode_spans(texts))
        return EncodedDraft(
            [next(encoded) if isinstance(segment, list) else EncodedSpan(segment, ()) for segment in self._segments]
        )


class EncodedDraft:
    """The ids of a draft, and its places as token indices."""

    def __init__(self, spans: list[EncodedSpan]) -> None:
        self.ids: I32 = np.concatenate([np.empty(0, np.int32), *(span.ids for span in spans)])  # (T,)
        self._spans = spans
        self._starts = [0]
        for span in spans:
            self._starts.append(self._starts[-1] + len(span.ids))

    def token_range(self, start: Place, stop: Place) -> tuple[int, int]:
        """Every token that has a character between the two places in it; empty when they are one."""
        first = self._starts[start.segment]
        if start.offset:
            first += bisect_right(self._spans[start.segment].ends, start.offset)
        if start == stop:
            return first, first
        end = self._starts[stop.segment]
        if stop.offset:
            ends = self._spans[stop.segment].ends
            end += min(bisect_left(ends, stop.offset) + 1, len(ends))
        return first, max(first, end)


def sorted_positions(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Every position once, the last first: to be popped in reading order."""
    return sorted({position for one in ranges for position in one}, reverse=True)
