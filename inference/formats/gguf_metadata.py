"""GGUF metadata -> ModelConfig and TokenizerSpec: each value type-checked, features that we lack refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from inference.config import ModelConfig
from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.architectures import GGUF_ARCHITECTURES
from inference.formats.base import TokenizerSpec
from inference.formats.gguf_header import Value
from inference.formats.mapping import build

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


def read_config(
    metadata: Metadata, *, vocab_size: int, has_output: bool, eos_token_ids: tuple[int, ...]
) -> ModelConfig:
    """The config of a Llama. Raises UnsupportedModelError for features that change the arithmetic and are not ours."""
    path = metadata.path
    architecture = metadata.get("general.architecture", str)
    if architecture not in GGUF_ARCHITECTURES:
        problem = f"architecture {architecture!r} is not supported"
        raise UnsupportedModelError(path, problem, field="general.architecture", known=tuple(GGUF_ARCHITECTURES))
    _refuse_unsupported(metadata, architecture)

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    num_heads = metadata.get(key("attention.head_count"), int)
    if num_heads < 1:
        raise ModelFileError(path, f"{num_heads} attention heads", field=key("attention.head_count"))
    hidden_size = metadata.get(key("embedding_length"), int)
    if hidden_size % num_heads and key("attention.key_length") not in metadata.values:
        problem = f"{hidden_size} is no multiple of the {num_heads} attention heads"
        raise ModelFileError(path, problem, field=key("embedding_length"))
    head_dim = metadata.get(key("attention.key_length"), int, hidden_size // num_heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if metadata.get(key(name), int, head_dim) != head_dim:
            problem = f"{metadata.values[key(name)]}, only the head size {head_dim} is supported"
            raise UnsupportedModelError(path, problem, field=key(name))
    return build(
        path,
        ModelConfig,
        model_type=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=metadata.get(key("feed_forward_length"), int),
        num_hidden_layers=metadata.get(key("block_count"), int),
        num_attention_heads=num_heads,
        num_key_value_heads=metadata.get(key("attention.head_count_kv"), int, num_heads),
        head_dim=head_dim,
        max_position_embeddings=metadata.get(key("context_length"), int),
        rms_norm_eps=metadata.get(key("attention.layer_norm_rms_epsilon"), float),
        rope_theta=metadata.get(key("rope.freq_base"), float, 10_000.0),
        tie_word_embeddings=not has_output,
        bos_token_id=metadata.token_id("tokenizer.ggml.bos_token_id", vocab_size),
        eos_token_ids=eos_token_ids,
    )


def _refuse_unsupported(metadata: Metadata, architecture: str) -> None:
    """Keys whose presence with another value than the neutral one changes what the model computes."""
    neutral: dict[str, tuple[Value, ...]] = {
        f"{architecture}.rope.scaling.type": ("none",),
        f"{architecture}.rope.scale_linear": (1.0,),
        f"{architecture}.rope.scaling.factor": (1.0, 0.0),
        f"{architecture}.expert_count": (0,),
        f"{architecture}.attention.sliding_window": (0,),
        f"{architecture}.attention.clamp_kqv": (0.0,),
        f"{architecture}.attention.max_alibi_bias": (0.0,),
        f"{architecture}.attention.causal": (True,),
        f"{architecture}.attention.scale": (0.0,),
        f"{architecture}.logit_scale": (0.0, 1.0),
        f"{architecture}.residual_scale": (0.0, 1.0),
        f"{architecture}.embedding_scale": (0.0, 1.0),
        f"{architecture}.use_parallel_residual": (False,),
    }
    for key, values in neutral.items():
        if key in metadata.values and metadata.values[key] not in values:
            problem = f"{str(metadata.values[key])[:60]!r} is not supported, only {values[0]!r}"
            raise UnsupportedModelError(metadata.path, problem, field=key)


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
