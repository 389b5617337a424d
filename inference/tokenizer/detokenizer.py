"""Token ids to text as they come: never half a character, never part of a stop string.

Cost: constant per byte and stop string, whatever has gone before. Knows nothing about stop tokens (the engine does).
"""

from __future__ import annotations

import codecs

from inference.tokenizer.tokenizer import Tokenizer


class _StopMatcher:
    """How much of one stop string the text so far ends with (Knuth, Morris, Pratt 1977)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._fallback = [0] * len(stop)  # [i]: longest proper border of stop[: i + 1]
        for index in range(1, len(stop)):
            self._fallback[index] = self._next(self._fallback[index - 1], stop[index])

    def _next(self, num_matched: int, char: str) -> int:
        while num_matched and self.stop[num_matched] != char:
            num_matched = self._fallback[num_matched - 1]
        return num_matched + (self.stop[num_matched] == char)

    def add(self, char: str) -> bool:
        """Whether the stop string is complete with this character."""
        self.num_matched = self._next(self.num_matched, char)
        return self.num_matched == len(self.stop)


class Detokenizer:
    """One reply's text. add() gives what may be shown now, finish() what was held back.

    All pieces together are tokenizer.decode(all ids), cut before the stop string that was complete first (of those that
    were complete together, the longest). After it is_stopped is true and everything further is ignored.
    is_continuation: text stands before this reply, so that a leading space belongs to it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), *, is_continuation: bool = False) -> None:
        self.is_stopped = False
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matchers = [_StopMatcher(text) for text in stop]
        self._held = ""  # decoded, and possibly the beginning of a stop string
        self._drops_space = tokenizer.strips_leading_space and not is_continuation

    @property
    def is_holding(self) -> bool:
        """Whether something is held back: half a character, or what may begin a stop string."""
        return bool(self._held or self._decoder.getstate()[0])

    def add(self, token_id: int) -> str:
        """Text that may be shown after this token; "" while a character or a possible stop string is incomplete."""
        if self.is_stopped:
            return ""
        return self._release(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def finish(self) -> str:
        """The held-back rest, incomplete bytes as U+FFFD; "" when a stop string has ended the reply."""
        if self.is_stopped:
            return ""
        shown = self._release(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return shown

    def _release(self, new: str) -> str:
        if self._drops_space and new:
            self._drops_space = False
            new = new.removeprefix(" ")
        text = self._held + new
        if not self._matchers:
            return text
        for index, char in enumerate(new, start=len(self._held) + 1):
            complete = [matcher.num_matched for matcher in self._matchers if matcher.add(char)]
            if complete:
                self.is_stopped = True
                self._held = ""
                return text[: index - max(complete)]
        num_shown = len(text) - max(matcher.num_matched for matcher in self._matchers)
        self._held = text[num_shown:]
        return text[:num_shown]
