"""A GGUF vocabulary -> the description that a tokenizer.json would hold. Knows nothing about control tokens.

Two kinds: "gpt2" is byte-level BPE with ranked merges; "llama" is SentencePiece BPE with scores and a token for every
byte, which Gemma uses as well, without the space in front.
"""

from __future__ import annotations

from typing import Any

from inference.errors import UnsupportedModelError
from inference.formats.base import TokenizerSpec
from inference.formats.gguf_metadata import TokenType
from inference.tokenizer.pre_tokenizers import PRE_TOKENIZERS

SPACE_MARK = "\u2581"  # SentencePiece's visible space
BEGINNINGS = ("<s>", "<|endoftext|>")  # behind which Phi-3 keeps white space
GGUF_KINDS = ("gpt2", "llama")


def describe(spec: TokenizerSpec) -> dict[str, Any]:
    """Raises UnsupportedModelError for a kind or a pre-tokenizer that is not known."""
    if spec.model == "gpt2":
        return _byte_level(spec)
    if spec.model == "llama":
        return _sentencepiece(spec)
    problem = f"tokenizer model {spec.model[:60]!r} is not supported"
    raise UnsupportedModelError(spec.source, problem, field="tokenizer.ggml.model", known=GGUF_KINDS)


def _byte_level(spec: TokenizerSpec) -> dict[str, Any]:
    pre = PRE_TOKENIZERS.get(spec.pre)
    if pre is None:
        problem = f"pre-tokenizer {spec.pre[:60]!r} is not supported"
        known = tuple(sorted(PRE_TOKENIZERS))
        raise UnsupportedModelError(spec.source, problem, field="tokenizer.ggml.pre", known=known)
    return {
        "version": "1.0",
        "added_tokens": _added(spec, is_normalised=False),
        "normalizer": {"type": "NFC"} if pre.is_normalised else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre.steps(has_space_prefix=spec.has_space_prefix)},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: token_id for token_id, token in enumerate(spec.tokens)},
            "merges": [merge.split(" ", 1) for merge in spec.merges],
            "ignore_merges": pre.ignores_merges,
        },
    }


def _sentencepiece(spec: TokenizerSpec) -> dict[str, Any]:
    """Merges are all ways to put a token together, best score first.

    SentencePiece joins the pair with the best score, the leftmost of several; a list of merges does the same as long as
    no two tokens share a score, which is how they come out of training. Files that were converted without their scores
    have one score for all tokens; there the order of the ids is the order of the merges.
    The space in front of the text is not described here: read_vocabulary() tells it, since it stands in front of the
    whole text, not in front of every piece between two user-defined tokens.
    """
    vocab = {token: token_id for token_id, token in enumerate(spec.tokens)}
    kinds = list(zip(spec.tokens, spec.token_types, strict=True))
    normal = {token for token, kind in kinds if kind == TokenType.NORMAL}
    found = []
    for token in normal:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in normal and right in normal:
                found.append((-spec.scores[vocab[token]], vocab[token], vocab[left], vocab[right], left, right))
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if spec.has_space_prefix else []
    return {
        "version": "1.0",
        "added_tokens": _added(spec, is_normalised=True),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *strip,
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": [[left, right] for *_, left, right in sorted(found)],
            "unk_token": next((token for token, kind in kinds if kind == TokenType.UNKNOWN), None),
            "byte_fallback": True,
            "fuse_unk": True,
        },
    }


def _added(spec: TokenizerSpec, *, is_normalised: bool) -> list[dict[str, Any]]:
    """Control and user-defined tokens. is_normalised: the latter are looked for where spaces are visible already."""
    kinds = (TokenType.CONTROL, TokenType.USER_DEFINED)
    return [
        {
            "id": token_id,
            "content": token,
            "special": kind == TokenType.CONTROL,
            "normalized": is_normalised and kind == TokenType.USER_DEFINED,
            "rstrip": spec.strips_right and token not in BEGINNINGS,
        }
        for token_id, (token, kind) in enumerate(zip(spec.tokens, spec.token_types, strict=True))
        if kind in kinds and token
    ]
