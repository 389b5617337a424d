"""PromptLookup: guesses the next tokens of a reply from what the request has said before.

Who edits a text, quotes or writes code repeats long stretches word for word: what followed the last three tokens the
last time is a fair guess, costs one search, and is checked by the model in the same pass that computes the next token
(prompt lookup decoding, Saxena 2023). Right guesses are tokens for the price of a row, wrong ones cost their rows.

Knows no model: it is given the known tokens and told how its guesses have fared.
"""

from __future__ import annotations

import numpy as np

from inference.types import I32

NGRAM = 3  # a shorter one occurs again by chance
FIRST_DRAFT = 3
ROW_COST = 0.2  # of a pass over one row, what another row adds, up to eight (measured: 0.2)
MAX_CREDIT = 2.0  # so much may be lost at a stretch before it pauses
FIRST_PAUSE = 16  # tokens; twice as many each time that it fails again
MAX_PAUSE = 256


class PromptLookup:
    """Of one request. draft() before each of its decoding steps, record() after each that had a draft.

    It keeps an account: a right guess earns a step, every guess costs ROW_COST of one. Overdrawn, it pauses. So a text
    that repeats nothing costs next to nothing, and the outcome depends on the tokens alone, never on a clock.
    """

    def __init__(self) -> None:
        self._length = FIRST_DRAFT
        self._credit = MAX_CREDIT
        self._num_paused = 0
        self._pause = FIRST_PAUSE

    def draft(self, token_ids: I32, max_tokens: int) -> tuple[int, ...]:
        """At most max_tokens guesses for what follows the known tokens (T,). O(T), some microseconds."""
        if self._num_paused > 0:
            self._num_paused -= 1
            return ()
        num_guesses = min(self._length, max_tokens)
        start = _end_of_last_repeat(token_ids) if num_guesses > 0 else 0
        if not start:
            return ()
        return tuple(np.resize(token_ids[start:], num_guesses).tolist())  # as if the text went round from here

    def record(self, num_drafted: int, num_accepted: int) -> None:
        """How many guesses of a draft there were, and how many at its head were right."""
        self._length = 2 * num_drafted if num_accepted == num_drafted else max(num_accepted, 1)
        self._credit = min(self._credit + num_accepted - ROW_COST * num_drafted, MAX_CREDIT)
        if self._credit < 0:
            self._credit = 0.0
            self._num_paused = self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE)
        elif num_accepted == num_drafted:
            self._pause = FIRST_PAUSE


def _end_of_last_repeat(token_ids: I32) -> int:
    """Where the latest earlier occurrence of the last NGRAM tokens ends; 0 if there is none."""
    num_starts = len(token_ids) - NGRAM  # the last n-gram itself is left out
    if num_starts < 1:
        return 0
    is_repeat = token_ids[:num_starts] == token_ids[-NGRAM]
    for i in range(1, NGRAM):
        is_repeat &= token_ids[i : i + num_starts] == token_ids[i - NGRAM]
    starts = np.flatnonzero(is_repeat)
    return int(starts[-1]) + NGRAM if len(starts) else 0
