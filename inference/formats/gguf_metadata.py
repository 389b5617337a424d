"""GGUF metadata -> ModelConfig and TokenizerSpec: each value type-checked, features that we lack refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from inference.errors import ModelFileError
from inference.formats.base import TokenizerSpec
from inference.formats.gguf_header import Value

T = TypeVar("T", str, int, float, bool)

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TokenType(IntEnum):
    """Kinds of tokens, as tokenizer.ggml.token_type counts them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Metadata:
    """Typed reads. Raises ModelFileError naming the key that is missing or of another type."""

    def __init__(self, path: Path, values: Mapping[str, Value]) -> None:
        self.path = path
        self.values = values

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self.values.get(key, default)
        if value is None:
            raise ModelFileError(self.path, "the metadata key is missing", field=key)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelFileError(self.path, f"{type(value).__name__} found, {kind.__name__} expected", field=key)
        return value

    def array(self, key: str, kind: type[T]) -> tuple[T, ...]:
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            found = "nothing" if value is None else type(value).__name__
            raise ModelFileError(self.path, f"{found} found, an array of {kind.__name__} expected", field=key)
        return tuple(item for item in value if isinstance(item, kind))

    def token_id(self, key: str, vocab_size: int) -> int | None:
        """The id under a key that need not be there."""
        if key not in self.values:
            return None
        token_id = self.get(key, int)
        if not 0 <= token_id < vocab_size:
            raise ModelFileError(self.path, f"token id {token_id}, the vocabulary has {vocab_size}", field=key)
        return token_id


def read_tokenizer_spec(metadata: Metadata) -> TokenizerSpec:
    """The vocabulary, checked: one text per id, byte tokens well-formed, every special id inside."""
    path = metadata.path
    tokens = metadata.array("tokenizer.ggml.tokens", str)
    model = metadata.get("tokenizer.ggml.model", str)
    is_sentencepiece = model == "llama"
    types = metadata.array("tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        problem = f"{len(types)} types for {len(tokens)} tokens"
        raise ModelFileError(path, problem, field="tokenizer.ggml.token_type")
    _check_tokens(path, tokens, types)
    scores = metadata.array("tokenizer.ggml.scores", float) if is_sentencepiece else ()
    if is_sentencepiece and len(scores) != len(tokens):
        raise ModelFileError(path, f"{len(scores)} scores for {len(tokens)} tokens", field="tokenizer.ggml.scores")
    named = {
        f"{name}_token": tokens[token_id]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
        if (token_id := metadata.token_id(f"tokenizer.ggml.{key}_token_id", len(tokens))) is not None
    }
    ends = (metadata.token_id(f"tokenizer.ggml.{name}_token_id", len(tokens)) for name in ("eos", "eot", "eom"))
    return TokenizerSpec(
        source=path,
        vocab_size=len(tokens),
        model=model,
        pre=metadata.get("tokenizer.ggml.pre", str, "default"),
        tokens=tokens,
        token_types=types,
        scores=scores,
        merges=() if is_sentencepiece else metadata.array("tokenizer.ggml.merges", str),
        has_space_prefix=metadata.get("tokenizer.ggml.add_space_prefix", bool, is_sentencepiece),
        # No key says so. Phi-3's tokenizer.json does; its later kin with a byte-level vocabulary does not.
        strips_right=is_sentencepiece and metadata.get("general.architecture", str) == "phi3",
        named_tokens=named,
        eos_token_ids=tuple(dict.fromkeys(token_id for token_id in ends if token_id is not None)),
    )


def _check_tokens(path: Path, tokens: tuple[str, ...], types: tuple[int, ...]) -> None:
    field = "tokenizer.ggml.tokens"
    if not tokens:
        raise ModelFileError(path, "the vocabulary is empty", field=field)
    ids: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        if ids.setdefault(token, token_id) != token_id:
            raise ModelFileError(path, f"tokens {ids[token]} and {token_id} are both {token[:40]!r}", field=field)
    known = frozenset(TokenType)
    for token_id, kind in enumerate(types):
        if kind not in known:
            raise ModelFileError(path, f"token {token_id} has type {kind}", field="tokenizer.ggml.token_type")
        if kind == TokenType.BYTE and not BYTE_TOKEN.fullmatch(tokens[token_id]):
            problem = f"token {token_id} is to be a byte and is {tokens[token_id][:40]!r}"
            raise ModelFileError(path, problem, field=field)
