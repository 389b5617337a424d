"""Token ids to text as they come: never half a character, never part of a stop string."""

from __future__ import annotations

from inference.tokenizer.tokenizer import Tokenizer


class Detokenizer:
    """One reply's text. add() gives what may be shown now; finish() what was held back."""

    is_stopped: bool

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), *, is_continuation: bool = False) -> None:
        raise NotImplementedError

    def add(self, token_id: int) -> str:
        """Text that may be shown after this token; "" while a character or a possible stop string is incomplete."""
        raise NotImplementedError

    def finish(self) -> str:
        """The held-back rest, incomplete bytes as U+FFFD; "" when a stop string ended the reply."""
        raise NotImplementedError
