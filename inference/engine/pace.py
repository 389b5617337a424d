"""PrefillPace: how many prompt tokens a step may read, so that it stays short on this machine, today.

Between two steps nothing is heard: no Stop, no other person's next word, no new percentage. A fixed chunk is wrong on
most machines: 512 tokens take half a second on a fast idle one and ten on a slow busy one. The kernels give the same
bits for any chunk, so its size may follow the clock. Pure: durations come in as arguments.
"""

from __future__ import annotations

import math

ALONE_S = 0.5  # aim for a step in which nobody decodes; 0.3 reads prompts 15 % slower
BESIDE_S = 0.1  # aim for a step in which somebody does: words of a reply come at most 0.15 s apart, chance included
ALONE_MIN = 64  # fewer take about as long
BESIDE_MIN = 16  # fewer save no time any more
FIXED_TOKENS = 16  # what a step costs besides, in tokens; rather too low: else short steps would swing
FIRST_TOKENS = 256  # before anything has been measured, alone


class PrefillPace:
    """Ask num_tokens before each step, report its duration after it."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._alone = min(FIRST_TOKENS, max_tokens)
        self._beside = min(ALONE_MIN, max_tokens)

    def num_tokens(self, *, is_beside: bool) -> int:
        """Prompt tokens for the step to come. is_beside: other sequences decode in it."""
        return self._beside if is_beside else self._alone

    def record(self, num_tokens: int, seconds: float, *, is_beside: bool) -> None:
        """Takes the duration of a step that has read num_tokens (above 0) of prompts."""
        if is_beside:
            self._beside = self._next(self._beside, num_tokens, seconds, BESIDE_S, BESIDE_MIN)
        else:
            self._alone = self._next(self._alone, num_tokens, seconds, ALONE_S, ALONE_MIN)

    def _next(self, current: int, num_tokens: int, seconds: float, aim_s: float, min_tokens: int) -> int:
        """The chunk that would have taken aim_s.

        A step of less than half of what is worth one counts only if it was slow: few tokens run poorly. It has more
        whenever there are enough tokens, see even_part().
        """
        fitting = (num_tokens + FIXED_TOKENS) * aim_s / seconds - FIXED_TOKENS if seconds > 0 else math.inf
        if 2 * num_tokens < min(current, ALONE_MIN) and seconds <= aim_s:
            return current
        if fitting > current:
            fitting = (current + fitting) / 2  # all the way down at once, half the way up: else the chunks would swing
        return int(min(max(fitting, min_tokens), self._max_tokens))


def even_part(num_pending: int, max_tokens: int) -> int:
    """The next chunk when num_pending tokens go in as few, equal chunks as fit: 256 + 256 is faster than 300 + 212."""
    num_parts = -(-num_pending // max_tokens)
    return -(-num_pending // num_parts)
