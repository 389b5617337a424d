"""Text to token ids and back.

Plain text only: what a chat template writes between messages is chat_template's business, and so are control tokens.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

from inference.errors import ModelFileError
from inference.formats.base import TokenizerSpec
from inference.formats.gguf_metadata import BYTE_TOKEN
from inference.tokenizer.gguf_vocabulary import SPACE_MARK
from inference.tokenizer.span_cache import SpanCache
from inference.tokenizer.vocabulary import ControlToken, Vocabulary, byte_alphabet, read_vocabulary
from inference.types import I32

MAX_CACHED_CHARS = 8 << 20


@dataclass(frozen=True, slots=True)
class EncodedSpan:
    """Ids of one stretch of text; ends[i] is the character offset at which token i ends."""

    ids: I32  # (T,), read-only
    ends: Sequence[int]


class Tokenizer:
    """Encodes plain text and decodes ids.

    encode() can not yield a control token: the tokenizer inside has none. Thread-safe: nothing changes after
    construction but a locked cache; truncation and padding are never set.

    vocab_size      rows of the embedding; ids without a token (padding of the matrix) decode to nothing
    special_tokens  text -> id of every control token
    named_tokens    "bos_token", ... -> text, for chat templates
    fingerprint     hex; changes when any text would be encoded into other ids
    """

    def __init__(self, spec: TokenizerSpec, *, max_cached_chars: int = MAX_CACHED_CHARS) -> None:
        vocabulary = read_vocabulary(spec)
        self.vocab_size = spec.vocab_size
        self.named_tokens = dict(spec.named_tokens)
        self.controls: tuple[ControlToken, ...] = vocabulary.controls
        self.special_tokens: dict[str, int] = {control.text: control.token_id for control in vocabulary.controls}
        self.bos_token_id: int | None = self._named_id("bos_token")
        named_end = self._named_id("eos_token")
        ends = spec.eos_token_ids if named_end is None else (*spec.eos_token_ids, named_end)
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys(ends))
        self.strips_leading_space = vocabulary.strips_leading_space
        self._text_prefix = vocabulary.text_prefix
        self._bytes = _byte_table(vocabulary, spec.vocab_size)
        self._at_start = _load(spec, vocabulary.description)
        inner = _without_first_prefix(vocabulary.description)
        self._inside = self._at_start if inner == vocabulary.description else _load(spec, inner)
        self.fingerprint: str = _fingerprint(vocabulary, self)
        self._cache: SpanCache[tuple[str, bool], EncodedSpan] = SpanCache(max_cached_chars, lambda key: len(key[0]))

    def _named_id(self, name: str) -> int | None:
        return self.special_tokens.get(self.named_tokens.get(name, ""))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; the text of a control token is encoded like any other. Raises ValueError for a lone
        surrogate, which is no text."""
        ids: list[int] = self.encode_spans([(text, True)])[0].ids.tolist()
        return ids

    def encode_spans(self, spans: Sequence[tuple[str, bool]]) -> list[EncodedSpan]:
        """Encode many stretches of text, each with whether it stands at the very start of a prompt.

        Cost: a dictionary look-up for what was encoded recently; the rest in one batch, on several cores.
        """
        return self._cache.get_all(spans, self._encode_missing)

    def _encode_missing(self, spans: list[tuple[str, bool]]) -> list[EncodedSpan]:
        encoded: dict[tuple[str, bool], EncodedSpan] = {}
        for tokenizer, is_at_start in ((self._at_start, True), (self._inside, False)):
            group = [span for span in spans if span[1] is is_at_start]
            if group:
                for text, _ in group:
                    text.encode()  # the library answers a lone surrogate with a TypeError about something else
                texts = [self._text_prefix + text if text else "" for text, _ in group]
                found = tokenizer.encode_batch(texts, add_special_tokens=False)
                spans_found = (_span(encoding, len(self._text_prefix)) for encoding in found)
                encoded |= dict(zip(group, spans_found, strict=True))
        return [encoded[span] for span in spans]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; control tokens appear as their text, invalid UTF-8 as U+FFFD."""
        text = b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")
        return text[1:] if self.strips_leading_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; part of a character is possible."""
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token id {token_id}, the vocabulary has {self.vocab_size}")
        return self._bytes[token_id]


def _span(encoding: Any, num_prefix: int) -> EncodedSpan:
    ids = np.array(encoding.ids, np.int32)
    ids.flags.writeable = False
    return EncodedSpan(ids, array("I", [max(end - num_prefix, 0) for _, end in encoding.offsets]))


def _load(spec: TokenizerSpec, description: dict[str, Any]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(description))
    except Exception as error:  # the library raises Exception itself
        raise ModelFileError(spec.source, f"the tokenizer can not be built ({error})", field="tokenizer") from error


def _without_first_prefix(value: Any) -> Any:
    """The description for text that does not stand first: a prefix "first" (only at the very start) becomes none."""
    if isinstance(value, list):
        return [_without_first_prefix(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "prepend_scheme" in value:
        return {**value, "prepend_scheme": "never"} if value["prepend_scheme"] == "first" else value
    return {
        key: _without_first_prefix(item) if key in ("pre_tokenizer", "pretokenizers") else item
        for key, item in value.items()
    }


def _byte_table(vocabulary: Vocabulary, vocab_size: int) -> list[bytes]:
    alphabet = byte_alphabet()
    table = [b""] * vocab_size
    for token_id, text in vocabulary.texts.items():
        if not vocabulary.is_byte_level:
            is_byte = BYTE_TOKEN.fullmatch(text) is not None
            table[token_id] = bytes((int(text[3:5], 16),)) if is_byte else text.replace(SPACE_MARK, " ").encode()
        elif all(char in alphabet for char in text):
            table[token_id] = bytes(map(alphabet.__getitem__, text))
        else:
            table[token_id] = text.encode()
    for token_id, text in vocabulary.added_texts.items():
        table[token_id] = (text if vocabulary.is_byte_level else text.replace(SPACE_MARK, " ")).encode()
    for control in vocabulary.controls:
        table[control.token_id] = control.text.encode()
    return table


def _fingerprint(vocabulary: Vocabulary, tokenizer: Tokenizer) -> str:
    """Digest over vocabulary, merges, pre-tokenizer and control tokens."""
    controls = [(control.token_id, control.text) for control in vocabulary.controls]
    facts = [
        vocabulary.description,
        vocabulary.text_prefix,
        controls,
        tokenizer.named_tokens,
        tokenizer.eos_token_ids,
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
