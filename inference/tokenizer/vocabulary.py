"""TokenizerSpec -> one description in the form of tokenizer.json, split into plain text and control tokens.

Whether the file brought a tokenizer.json or a GGUF vocabulary, what comes out is the same: a tokenizer.json that has
lost its control tokens, and these on their own. Knows nothing about encoding.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.base import TokenizerSpec
from inference.formats.gguf_metadata import TokenType

SPACE_MARK = "\u2581"  # SentencePiece's visible space
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = _WORDS + r"\p{N}{1,3}" + _REST
QWEN2_SPLIT = _WORDS + r"\p{N}" + _REST
DEFAULT_SPLITS = (r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]")  # as llama.cpp's "default"

# Added tokens written like this are markup (<think>, [TOOL_CALLS]) even where the file does not call them special.
MARKUP = re.compile(r"<.*>|\[.*\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that only a template or the model may produce. The strip flags widen its match over white space.

    is_special: the file itself calls it so; otherwise it is markup that a reply may hold.
    """

    token_id: int
    text: str
    strips_left: bool = False
    strips_right: bool = False
    is_special: bool = True


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """description: a tokenizer.json, parsed, from which no control token can come. texts: id -> text of every token."""

    description: dict[str, Any]
    controls: tuple[ControlToken, ...]
    added_texts: dict[int, str]  # ordinary added tokens: their text is meant literally
    texts: dict[int, str]  # of the model's vocabulary
    is_byte_level: bool
    strips_leading_space: bool  # decode() takes away the space that encode() put in front


def read_vocabulary(spec: TokenizerSpec) -> Vocabulary:
    """Raises ModelFileError for a description that contradicts itself, UnsupportedModelError for a kind we lack."""
    if spec.tokenizer_json:
        description = _parse(spec)
    elif spec.model == "gpt2":
        description = _byte_level(spec)
    elif spec.model == "llama":
        description = _sentencepiece(spec)
    else:
        problem = f"tokenizer model {spec.model!r} is not supported"
        raise UnsupportedModelError(spec.source, problem, field="tokenizer.ggml.model", known=("gpt2", "llama"))
    try:
        return _separate(spec, description)
    except (KeyError, TypeError, AttributeError) as error:  # a tokenizer.json of another shape
        raise ModelFileError(spec.source, f"malformed ({type(error).__name__}: {error})", field="tokenizer") from error


def _parse(spec: TokenizerSpec) -> dict[str, Any]:
    try:
        description = json.loads(spec.tokenizer_json)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(spec.source, f"not JSON ({error})") from error
    if not isinstance(description, dict) or not isinstance(description.get("model"), dict):
        raise ModelFileError(spec.source, "it describes no model", field="model")
    kind = description["model"].get("type", "BPE")
    if kind != "BPE":
        raise UnsupportedModelError(spec.source, f"tokenizer model {kind!r} is not supported", known=("BPE",))
    return description


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _bytes_step(*, uses_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": uses_regex}


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How text is cut into words before the merges."""

    steps: tuple[dict[str, Any], ...]
    ignores_merges: bool = False  # a word that is a token is taken as it is
    is_normalised: bool = False  # NFC first


PRE_TOKENIZERS = {
    "default": _PreTokenizer((*map(_split, DEFAULT_SPLITS), _bytes_step(uses_regex=False))),
    "gpt-2": _PreTokenizer((_bytes_step(uses_regex=True),)),
    "starcoder": _PreTokenizer(({"type": "Digits", "individual_digits": True}, _bytes_step(uses_regex=True))),
    "llama-bpe": _PreTokenizer((_split(LLAMA3_SPLIT), _bytes_step(uses_regex=False)), ignores_merges=True),
    "qwen2": _PreTokenizer((_split(QWEN2_SPLIT), _bytes_step(uses_regex=False)), is_normalised=True),
}
PRE_TOKENIZERS |= dict.fromkeys(("llama3", "llama-v3"), PRE_TOKENIZERS["llama-bpe"])
PRE_TOKENIZERS |= dict.fromkeys(("refact", "command-r"), PRE_TOKENIZERS["starcoder"])
# As the reference implementation reads such a file. llama.cpp cuts digits out first, like starcoder; since no token of
# this vocabulary holds two digits, that differs only in how several white spaces in front of a digit are cut.
PRE_TOKENIZERS["smollm"] = PRE_TOKENIZERS["gpt-2"]


def _byte_level(spec: TokenizerSpec) -> dict[str, Any]:
    """A GGUF vocabulary of kind "gpt2"."""
    pre = PRE_TOKENIZERS.get(spec.pre)
    if pre is None:
        problem = f"pre-tokenizer {spec.pre[:60]!r} is not supported"
        raise UnsupportedModelError(spec.source, problem, field="tokenizer.ggml.pre", known=tuple(PRE_TOKENIZERS))
    *steps, last = pre.steps
    return {
        "version": "1.0",
        "added_tokens": _added(spec),
        "normalizer": {"type": "NFC"} if pre.is_normalised else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*steps, {**last, "add_prefix_space": spec.has_space_prefix}],
        },
        "decoder": _bytes_step(uses_regex=True),
        "model": {
            "type": "BPE",
            "vocab": {token: token_id for token_id, token in enumerate(spec.tokens)},
            "merges": [merge.split(" ", 1) for merge in spec.merges],
            "ignore_merges": pre.ignores_merges,
        },
    }


def _sentencepiece(spec: TokenizerSpec) -> dict[str, Any]:
    """A GGUF vocabulary of kind "llama": its merges are all ways to put a token together, best score first."""
    vocab = {token: token_id for token_id, token in enumerate(spec.tokens)}
    normal = {token for token, kind in zip(spec.tokens, spec.token_types, strict=True) if kind == TokenType.NORMAL}
    found = []
    for token in normal:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in normal and right in normal:
                found.append((-spec.scores[vocab[token]], vocab[token], vocab[left], vocab[right], left, right))
    prefix = [{"type": "Prepend", "prepend": SPACE_MARK}] if spec.has_space_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if spec.has_space_prefix else []
    unknown = next(
        (t for t, kind in zip(spec.tokens, spec.token_types, strict=True) if kind == TokenType.UNKNOWN), None
    )
    return {
        "version": "1.0",
        "added_tokens": _added(spec),
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*prefix, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}],
        },
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
            "unk_token": unknown,
            "byte_fallback": True,
            "fuse_unk": True,
        },
    }


def _added(spec: TokenizerSpec) -> list[dict[str, Any]]:
    """Control and user-defined tokens of a GGUF vocabulary, in the form of tokenizer.json."""
    kinds = (TokenType.CONTROL, TokenType.USER_DEFINED)
    return [
        {"id": token_id, "content": token, "special": kind == TokenType.CONTROL, "normalized": False}
        for token_id, (token, kind) in enumerate(zip(spec.tokens, spec.token_types, strict=True))
        if kind in kinds and token
    ]


def _separate(spec: TokenizerSpec, description: dict[str, Any]) -> Vocabulary:
    """Take the control tokens out of the description, so that no text whatever can be encoded into one."""
    model = description["model"]
    vocab: dict[str, int] = dict(model["vocab"])
    added = {int(token["id"]): token for token in description.get("added_tokens") or []}
    for token_id in [*vocab.values(), *added]:
        if not 0 <= token_id < spec.vocab_size:
            raise ModelFileError(spec.source, f"token id {token_id}, the embedding has {spec.vocab_size} rows")
    texts = {token_id: text for text, token_id in vocab.items()}
    is_byte_level, strips_leading_space = _decoder_kind(spec, description.get("decoder"))
    if is_byte_level or (model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocab for byte in range(256))):
        model["unk_token"] = None  # there is a token for every byte; text must not turn into a special "unknown"
    named = set(spec.named_tokens.values()) - {model.get("unk_token")}
    controls = []
    for token_id, token in added.items():
        text = token["content"]
        is_special = bool(token["special"]) or token_id in spec.eos_token_ids or text in named
        if text != model.get("unk_token") and (is_special or MARKUP.fullmatch(text)):
            strips = bool(token.get("lstrip")), bool(token.get("rstrip"))
            controls.append(ControlToken(token_id, text, *strips, is_special))
    taken = {control.token_id for control in controls}
    for token_id, text in texts.items():
        if token_id not in taken and (token_id in spec.eos_token_ids or text in named):
            controls.append(ControlToken(token_id, text))
    gone = {control.text for control in controls}
    plain = [token for token_id, token in added.items() if token["content"] not in gone]
    # The library numbers added tokens anew unless the vocabulary knows them.
    vocab |= {token["content"]: int(token["id"]) for token in plain}
    parts = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
    kept = [[left, right] for left, right in parts if not gone & {left, right, left + right}]
    description = {
        **description,
        "truncation": None,  # shared state that makes encode() unsafe between threads when it is ever set
        "padding": None,
        "post_processor": None,  # would add control tokens of its own
        "added_tokens": [_full(token) for token in plain],
        "model": {**model, "vocab": {text: i for text, i in vocab.items() if text not in gone}, "merges": kept},
    }
    return Vocabulary(
        description=description,
        controls=tuple(sorted(controls, key=lambda control: control.token_id)),
        added_texts={int(token["id"]): token["content"] for token in plain},
        texts=texts,
        is_byte_level=is_byte_level,
        strips_leading_space=strips_leading_space,
    )


def _full(token: dict[str, Any]) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {**flags, **token, "special": False}


def _decoder_kind(spec: TokenizerSpec, decoder: Any) -> tuple[bool, bool]:
    """(byte-level?, is a leading space taken away?) of the decoders that we can follow byte by byte."""
    steps = decoder["decoders"] if isinstance(decoder, dict) and decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] if isinstance(step, dict) else "none" for step in steps]
    if kinds == ["ByteLevel"]:
        return True, False
    if set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        strips = any(
            (step["type"] == "Strip" and step["start"] == 1)
            or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
            for step in steps
        )
        return False, strips
    known = ("ByteLevel", "Metaspace", "Replace + ByteFallback + Fuse + Strip")
    raise UnsupportedModelError(spec.source, f"decoder {kinds} is not supported", field="decoder", known=known)


def byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one visible character (GPT-2's table): character -> byte."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    table = {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(hidden)}
    assert set(table) == set(ByteLevel.alphabet())
    return table
