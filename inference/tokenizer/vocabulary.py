"""TokenizerSpec -> one description in the form of tokenizer.json, split into plain text and control tokens.

Whether the file brought a tokenizer.json or a GGUF vocabulary, what comes out is the same: a tokenizer.json that has
lost its control tokens, and these on their own. Knows nothing about encoding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.base import TokenizerSpec
from inference.tokenizer.gguf_vocabulary import describe

JSON_KINDS = ("BPE",)  # of tokenizer.json; no family that we run publishes another one (Unigram, WordPiece, WordLevel)

# Added tokens written like this are markup (<think>, [TOOL_CALLS]) even where the file does not call them special.
MARKUP = re.compile(r"<.*>|\[.*\]", re.DOTALL)
# But for these, which Gemma has: what people write about web pages with. <s> and </s> are never among them.
HTML = re.compile(
    r"</?(?:table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|sub|sup|code|p|br|hr|ul|ol|li|a|img"
    r"|div|span|pre)>"
)


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
    text_prefix: str  # what encode() puts in front itself; "" where the description does that, or nothing is wanted


def read_vocabulary(spec: TokenizerSpec) -> Vocabulary:
    """Raises ModelFileError for a description that contradicts itself, UnsupportedModelError for a kind we lack."""
    description = _parse(spec) if spec.tokenizer_json else describe(spec)
    try:
        return _separate(spec, description)
    except (KeyError, TypeError, AttributeError, ValueError) as error:  # a tokenizer.json of another shape
        raise ModelFileError(spec.source, f"malformed ({type(error).__name__}: {error})", field="tokenizer") from error


def _parse(spec: TokenizerSpec) -> dict[str, Any]:
    try:
        description = json.loads(spec.tokenizer_json)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(spec.source, f"not JSON ({error})") from error
    if not isinstance(description, dict) or not isinstance(description.get("model"), dict):
        raise ModelFileError(spec.source, "it describes no model", field="model")
    kind = description["model"].get("type", "BPE")
    if kind not in JSON_KINDS:
        problem = f"tokenizer model {str(kind)[:60]!r} is not supported"
        raise UnsupportedModelError(spec.source, problem, field="model.type", known=JSON_KINDS)
    return description


def _separate(spec: TokenizerSpec, description: dict[str, Any]) -> Vocabulary:
    """Take the control tokens out of the description, so that no text whatever can be encoded into one."""
    model = description["model"]
    vocab: dict[str, int] = dict(model["vocab"])
    added = {token["id"]: token for token in description.get("added_tokens") or []}
    _check_tokens(spec, [*vocab.items(), *((token["content"], token_id) for token_id, token in added.items())])
    texts = {token_id: text for text, token_id in vocab.items()}
    is_byte_level, strips_leading_space = _decoder_kind(spec, description.get("decoder"))
    if is_byte_level or (model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocab for byte in range(256))):
        model["unk_token"] = None  # there is a token for every byte; text must not turn into a special "unknown"
    named = set(spec.named_tokens.values()) - {model.get("unk_token")}
    controls = []
    for token_id, token in added.items():
        text = token["content"]
        is_special = bool(token["special"]) or token_id in spec.eos_token_ids or text in named
        is_markup = MARKUP.fullmatch(text) and not HTML.fullmatch(text)
        if text != model.get("unk_token") and (is_special or is_markup):
            strips = bool(token.get("lstrip")), bool(token.get("rstrip"))
            controls.append(ControlToken(token_id, text, *strips, is_special))
    taken = {control.token_id for control in controls}
    for token_id, text in texts.items():
        if token_id not in taken and (token_id in spec.eos_token_ids or text in named):
            controls.append(ControlToken(token_id, text))
    gone = {control.text for control in controls}
    plain = [token for token_id, token in added.items() if token["content"] not in gone]
    # The library numbers added tokens anew unless the vocabulary knows them.
    vocab |= {token["content"]: token["id"] for token in plain}
    parts = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
    kept = [[left, right] for left, right in parts if not gone & {left, right, left + right}]
    description = {
        **description,
        "truncation": None,  # shared state that makes encode() unsafe between threads when it is ever set
        "padding": None,
        "post_processor": None,  # would add control tokens of its own
        "added_tokens": [_full(token) for token in plain],
        "model": {
            **model,
            "vocab": {text: i for text, i in vocab.items() if text not in gone},
            "merges": kept,
            "dropout": None,  # leaves merges out at random: for training only
        },
    }
    return Vocabulary(
        description=description,
        controls=tuple(sorted(controls, key=lambda control: control.token_id)),
        added_texts={token["id"]: token["content"] for token in plain},
        texts=texts,
        is_byte_level=is_byte_level,
        strips_leading_space=strips_leading_space,
        text_prefix=" " if not spec.tokenizer_json and spec.model == "llama" and spec.has_space_prefix else "",
    )


def _check_tokens(spec: TokenizerSpec, tokens: Iterable[tuple[object, object]]) -> None:
    """Each is a text that can be written, and the number of a row."""
    for text, token_id in tokens:
        if type(token_id) is not int:  # True and 1.0 would do as keys, and be found elsewhere
            problem = f"token id {str(token_id)[:40]!r} of {str(text)[:40]!r}, an integer is expected"
            raise ModelFileError(spec.source, problem, field="tokenizer")
        if not 0 <= token_id < spec.vocab_size:
            raise ModelFileError(spec.source, f"token id {token_id}, the embedding has {spec.vocab_size} rows")
        if not isinstance(text, str) or any("\ud800" <= char <= "\udfff" for char in text):
            raise ModelFileError(spec.source, f"token {token_id} is {str(text)[:40]!r}, no text", field="tokenizer")


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
