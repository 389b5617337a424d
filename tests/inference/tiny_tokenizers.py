"""Tokenizers small enough to read: byte-level, and SentencePiece with byte fallback, as GGUF files describe them."""

from __future__ import annotations

from pathlib import Path

from inference.formats.base import TokenizerSpec
from inference.formats.gguf_metadata import TokenType
from tests.inference import tiny_models as tiny

SPACE = "\u2581"


def byte_level_spec(*, pre: str = "gpt-2", **changes: object) -> TokenizerSpec:
    """The vocabulary of tiny_models."""
    num_controls = len(tiny.CONTROLS)
    fields: dict[str, object] = {
        "source": Path("tiny.gguf"),
        "vocab_size": len(tiny.TOKENS),
        "model": "gpt2",
        "pre": pre,
        "tokens": tuple(tiny.TOKENS),
        "token_types": (3,) * num_controls + (1,) * (len(tiny.TOKENS) - num_controls),
        "merges": tuple(tiny.MERGES),
        "named_tokens": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        "eos_token_ids": (2,),
    }
    return TokenizerSpec(**(fields | changes))  # type: ignore[arg-type]


def sentencepiece_spec(**changes: object) -> TokenizerSpec:
    """<unk> <s> </s>, 256 bytes, letters, and a few words with scores as SentencePiece gives them."""
    words = ["he", "ll", "hell", "hello", f"{SPACE}h", f"{SPACE}hell", f"{SPACE}hello", "wo", "ld", f"{SPACE}wo"]
    letters = [SPACE, *"abcdefghijklmnopqrstuvwxyzé"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *letters]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    types += [TokenType.NORMAL] * (len(words) + len(letters))
    scores = [0.0] * 259 + [-float(index) for index in range(len(words) + len(letters))]
    fields: dict[str, object] = {
        "source": Path("tiny.gguf"),
        "vocab_size": len(tokens),
        "model": "llama",
        "pre": "default",
        "tokens": tuple(tokens),
        "token_types": tuple(map(int, types)),
        "scores": tuple(scores),
        "has_space_prefix": True,
        "named_tokens": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        "eos_token_ids": (2,),
    }
    return TokenizerSpec(**(fields | changes))  # type: ignore[arg-type]
