"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence

from inference.formats.base import TokenizerSpec


class Tokenizer:
    """Encodes plain text and decodes ids. Thread-safe: nothing changes after construction but a locked cache."""

    vocab_size: int
    special_tokens: dict[str, int]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    fingerprint: str

    def __init__(self, spec: TokenizerSpec) -> None:
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. A control token can not come out: its text is encoded like any other text."""
        raise NotImplementedError

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; control tokens appear as their text, invalid UTF-8 as U+FFFD."""
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for."""
        raise NotImplementedError
