"""Reply: the output of one request as ids and as text, and which ids the text is made of."""

from __future__ import annotations

from inference.tokenizer.detokenizer import Detokenizer
from inference.tokenizer.tokenizer import Tokenizer


class Reply:
    """Grows token by token until finish(). The stop token is never given to it.

    Ids and text are given out together, and only while the detokenizer holds nothing back. Whatever has been given out
    is therefore whole, and no stop string can reach back into it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...], *, is_continuation: bool = False) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, stop, is_continuation=is_continuation)
        self._token_ids: list[int] = []
        self._num_given = 0
        self._text = ""  # of the tokens that have not been given out, as far as it may be shown
        self._is_continuation = is_continuation

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has occurred."""
        return self._detokenizer.is_stopped

    def add(self, token_id: int) -> tuple[tuple[int, ...], str]:
        """The ids and the text that are whole with this token; often neither, or several."""
        self._token_ids.append(token_id)
        self._text += self._detokenizer.add(token_id)
        if self._detokenizer.is_holding or self.is_stopped:
            return (), ""
        token_ids, text = tuple(self._token_ids[self._num_given :]), self._text
        self._num_given, self._text = len(self._token_ids), ""
        return token_ids, text

    def finish(self) -> tuple[tuple[int, ...] | None, str]:
        """The ids of the whole reply, and the text that add() has not given out.

        A stop string takes its tokens with it. None for the ids when it began inside a token: no head of them has the
        text then.
        """
        text = self._text + self._detokenizer.finish()
        given, rest = self._token_ids[: self._num_given], self._token_ids[self._num_given :]
        while len(self._decode(rest)) > len(text):
            rest.pop()
        return (*given, *rest) if self._decode(rest) == text else None, text

    def _decode(self, rest: list[int]) -> str:
        """Text of ids that follow those given out."""
        is_continuation = self._is_continuation or self._num_given > 0
        detokenizer = Detokenizer(self._tokenizer, is_continuation=is_continuation)
        return "".join(map(detokenizer.add, rest)) + detokenizer.finish()
