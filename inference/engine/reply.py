"""Reply: the output of one request as ids and as text, and which ids the finished text is made of."""

from __future__ import annotations

from inference.tokenizer.detokenizer import Detokenizer
from inference.tokenizer.tokenizer import Tokenizer


class Reply:
    """Grows token by token until finish(). The stop token is never given to it."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...], *, is_continuation: bool = False) -> None:
        self._tokenizer = tokenizer
        self._is_continuation = is_continuation
        self._detokenizer = Detokenizer(tokenizer, stop, is_continuation=is_continuation)
        self._token_ids: list[int] = []
        self._texts: list[str] = []

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has occurred."""
        return self._detokenizer.is_stopped

    def add(self, token_id: int) -> str:
        """The text that may be shown after this token."""
        self._token_ids.append(token_id)
        self._texts.append(self._detokenizer.add(token_id))
        return self._texts[-1]

    def finish(self) -> tuple[str, tuple[int, ...] | None]:
        """The text that was held back, and the ids that decode to exactly the whole text; None when no head does.

        A stop string takes its tokens with it; where it begins inside a token there is no such head. Costs one decode
        for each token that goes.
        """
        rest = self._detokenizer.finish()
        text = "".join(self._texts) + rest
        token_ids = list(self._token_ids)
        decoded = self._decode(token_ids)
        while len(decoded) > len(text):
            token_ids.pop()
            decoded = self._decode(token_ids)
        return rest, tuple(token_ids) if decoded == text else None

    def _decode(self, token_ids: list[int]) -> str:
        detokenizer = Detokenizer(self._tokenizer, is_continuation=self._is_continuation)
        return "".join(map(detokenizer.add, token_ids)) + detokenizer.finish()
