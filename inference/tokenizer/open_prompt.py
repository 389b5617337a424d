"""A prompt whose last message is still being written: what stands before it is laid out and encoded once.

Knows no template: it is given what that has made (see ChatTemplate.open), and how to build a prompt anew where the
text of the last message can change what is written around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from inference.tokenizer.draft import Draft, EncodedDraft, Place
from inference.tokenizer.tokenizer import Tokenizer
from inference.types import I32, Prompt

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Beginning:
    """Everything in front of the last message. spans: of the other messages; rest: the text in which the last one
    begins, if the template wrote some of it."""

    ids: I32  # (T,)
    spans: Spans
    rest: Draft

    @classmethod
    def of(cls, draft: Draft, places: list[tuple[Place, Place]], tokenizer: Tokenizer) -> Beginning | None:
        """Of a draft up to the last message, and where the others lie in it. None where what follows is encoded in one
        go with some of that: at the very start, and behind a message that no control token ends."""
        closed, rest = draft.parted()
        last = Place(closed.num_segments, 0)
        if closed.num_segments < 2 or any(place > last for pair in places for place in pair):
            return None
        encoded: EncodedDraft = closed.encode(tokenizer)
        return cls(encoded.ids, tuple(encoded.token_range(start, stop) for start, stop in places), rest)


class OpenPrompt:
    """Prompts that differ in the text of their last message. Thread-safe.

    Exact: prompt(text) equals ChatTemplate.build of the same messages with that text in the last one. Cost with a
    template that does not look at contents: that of encoding the text, however long the conversation is. With one that
    does, that of build.
    """

    def __init__(
        self,
        beginning: Beginning | None,
        finish: Callable[[Draft], None],
        count_public: Callable[[I32], int],
        build: Callable[[str], Prompt],
        tokenizer: Tokenizer,
    ) -> None:
        """finish: adds what follows the last message. count_public: Prompt.num_public_tokens of ids. build: makes the
        prompt as a whole, where there is no beginning."""
        self._beginning = beginning
        self._finish = finish
        self._count_public = count_public
        self._build = build
        self._tokenizer = tokenizer

    @property
    def is_cheap(self) -> bool:
        """Whether a prompt costs no more than its last message."""
        return self._beginning is not None

    def prompt(self, text: str) -> Prompt:
        """The prompt with this in its last message. Raises TemplateError where the template looks at it and refuses."""
        if self._beginning is None:
            return self._build(text)
        draft = self._beginning.rest.copy()
        begin = draft.end(before_text=True)
        draft.add_text(text)
        stop = draft.end(before_text=True)
        self._finish(draft)
        encoded = draft.encode(self._tokenizer)
        num_before = len(self._beginning.ids)
        ids = np.concatenate([self._beginning.ids, encoded.ids])
        first, last = encoded.token_range(begin, stop)
        spans = (*self._beginning.spans, (num_before + first, num_before + last))
        return Prompt(ids=ids, spans=spans, num_public_tokens=self._count_public(ids))
