"""A prompt in the making: known ids and text still to be encoded, in order, and places to be found again.

Text between two pieces of ids is encoded in one go, as the reference implementation would, so a place inside it becomes
a token index only afterwards.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from inference.tokenizer.tokenizer import EncodedSpan, Tokenizer
from inference.tokenizer.vocabulary import ControlToken
from inference.types import I32


class Place(NamedTuple):
    """So many characters into a segment; into a segment of ids only its beginning."""

    segment: int
    offset: int


class Draft:
    """Appended to piece by piece, then encoded once."""

    def __init__(self) -> None:
        self._segments: list[list[str] | EncodedSpan] = []
        self._text: list[str] | None = None  # the last segment, if it is text
        self._num_chars = 0  # of it
        self._strips_next = False  # the control token just added swallows the white space behind it
        self._is_first = True  # nothing stands before it in the prompt

    @property
    def num_segments(self) -> int:
        return len(self._segments)

    def end(self, *, before_text: bool) -> Place:
        """The place at which the next piece, text or ids, will begin."""
        if before_text and self._text is not None:
            return Place(len(self._segments) - 1, self._num_chars)
        return Place(len(self._segments), 0)

    def add_text(self, text: str) -> None:
        if self._strips_next:
            text = text.lstrip()
            self._strips_next = not text
        if self._text is None:
            self._text = []
            self._num_chars = 0
            self._segments.append(self._text)
        self._text.append(text)
        self._num_chars += len(text)

    def add_ids(self, span: EncodedSpan) -> None:
        self._text = None
        self._strips_next = False
        self._segments.append(span)

    def add_control(self, control: ControlToken, span: EncodedSpan) -> None:
        if control.strips_left and self._text is not None:
            self._text[:] = ["".join(self._text).rstrip()]
        self.add_ids(span)
        self._strips_next = control.strips_right

    def parted(self) -> tuple[Draft, Draft]:
        """What nothing that is added can change any more, and what goes on behind it; the places of the second are
        counted from there. Both are copies."""
        closed, rest = Draft(), self.copy()
        closed._is_first = self._is_first
        closed._segments = self._segments if self._text is None else self._segments[:-1]
        closed._segments = list(closed._segments)
        rest._segments = rest._segments[len(closed._segments) :]
        rest._is_first = self._is_first and not closed._segments
        return closed, rest

    def copy(self) -> Draft:
        """The same; what is added to one is not in the other."""
        copied = Draft()
        copied._segments = list(self._segments)
        copied._num_chars = self._num_chars
        copied._strips_next = self._strips_next
        copied._is_first = self._is_first
        if self._text is not None:
            copied._text = copied._segments[-1] = list(self._text)
        return copied

    def encode(self, tokenizer: Tokenizer) -> EncodedDraft:
        """Encode what is text. Cost: see Tokenizer.encode_spans."""
        texts = [
            ("".join(segment), self._is_first and index == 0)
            for index, segment in enumerate(self._segments)
            if isinstance(segment, list)
        ]
        encoded = iter(tokenizer.encode_spans(texts))
        return EncodedDraft(
            [next(encoded) if isinstance(segment, list) else segment for segment in self._segments],
            tokenizer.bos_token_id,
        )


class EncodedDraft:
    """The ids of a draft, and its places as token indices.

    Templates and files are known to bring a BOS token each; of two at the head only one is kept, two confuse a model.
    """

    def __init__(self, spans: list[EncodedSpan], bos_token_id: int | None) -> None:
        heads = [span.ids.tolist() if len(span.ids) == 1 else None for span in spans[:2]]
        if heads == [[bos_token_id]] * 2:
            spans[0] = EncodedSpan(np.empty(0, np.int32), ())
        self.ids: I32 = np.concatenate([np.empty(0, np.int32), *(span.ids for span in spans)])  # (T,)
        self._spans = spans
        self._starts = [0, *accumulate(len(span.ids) for span in spans)]

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
            complete = bisect_right(ends, stop.offset)  # a character of several tokens ends in all of them
            is_cut = complete < len(ends) and (not complete or ends[complete - 1] < stop.offset)
            end += complete + is_cut
        return first, max(first, end)
