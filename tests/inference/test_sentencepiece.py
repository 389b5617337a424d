"""SentencePiece vocabularies from a GGUF file give the ids of the `sentencepiece` package (tests/data/ holds them)."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.formats.base import TokenizerSpec
from inference.formats.file_bytes import FileBytes
from inference.formats.gguf_header import read_header
from inference.formats.gguf_metadata import Metadata, TokenType, read_tokenizer_spec
from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.tokenizer import Tokenizer
from inference.types import ChatMessage
from tests.examples import examples
from tests.inference import tiny_models as tiny

DATA = Path(__file__).parent.parent / "data" / "sentencepiece"
FIXTURES: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}


def spec_of(fixture: dict[str, Any]) -> TokenizerSpec:
    return TokenizerSpec(
        source=DATA,
        vocab_size=len(fixture["tokens"]),
        model="llama",
        pre="default",
        tokens=tuple(fixture["tokens"]),
        token_types=tuple(fixture["token_types"]),
        scores=tuple(fixture["scores"]),
        has_space_prefix=fixture["has_space_prefix"],
        named_tokens={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        eos_token_ids=(2,),
    )


TOKENIZERS = {name: Tokenizer(spec_of(fixture)) for name, fixture in FIXTURES.items()}


def test_both_kinds_are_there() -> None:
    assert set(TOKENIZERS) == {"llama", "gemma"}


@pytest.mark.parametrize("name", FIXTURES)
def test_ids_are_those_of_the_reference(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert len(FIXTURES[name]["cases"]) > 500
    for text, ids in FIXTURES[name]["cases"]:
        assert tokenizer.encode(text) == ids, repr(text)


@pytest.mark.parametrize("name", FIXTURES)
def test_the_end_of_every_token_is_counted_in_the_text_itself(name: str) -> None:
    for text, _ in FIXTURES[name]["cases"]:
        (span,) = TOKENIZERS[name].encode_spans([(text, True)])
        assert list(span.ends) == sorted(span.ends)
        assert not text or span.ends[-1] == len(text)


@pytest.mark.parametrize("name", FIXTURES)
@settings(max_examples=examples(200), deadline=None)
@given(text=st.text(max_size=20) | st.text(" \n\t\u2581ab<table>", max_size=20))
def test_all_text_comes_back(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    # the visible space is a space: SentencePiece can not tell them apart either
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("\u2581", " ")


def by_score(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule in its plainest form: join the pair with the best score, the leftmost of several."""
    symbols = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


words = st.lists(st.text("ab", min_size=2, max_size=5), min_size=1, max_size=12, unique=True)


@settings(max_examples=examples(200), deadline=None)
@given(words=words, texts=st.lists(st.text("ab", min_size=1, max_size=20), min_size=1, max_size=20))
def test_whatever_the_vocabulary_the_best_score_is_joined_first(words: list[str], texts: list[str]) -> None:
    """Also with words that no training would have found, as long as no two scores are equal."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, "a", "b"]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    types += [TokenType.NORMAL] * (len(words) + 2)
    scores = [0.0] * 259 + [-float(index) for index in range(len(words) + 2)]
    tokenizer = Tokenizer(
        spec_of({"tokens": tokens, "token_types": types, "scores": scores, "has_space_prefix": False})
    )
    ranked = dict(zip(tokens[259:], scores[259:], strict=True))
    for text in texts:
        assert [tokens[i] for i in tokenizer.encode(text)] == by_score(text, ranked)


def test_markers_of_phi_3_swallow_the_white_space_behind_them() -> None:
    source = "{{ '<s>' }}{% for m in messages %}<start_of_turn>\n{{ m.content }}<end_of_turn>\n\n{% endfor %}"
    plain, stripping = (
        ChatTemplate(Tokenizer(replace(spec_of(FIXTURES["gemma"]), strips_right=strips)), source)
        for strips in (False, True)
    )
    messages = [ChatMessage("user", "  hello")]
    tokenizer = stripping._tokenizer
    ids = [tokenizer.special_tokens[text] for text in ("<s>", "<start_of_turn>", "<end_of_turn>")]
    assert stripping.build(messages).ids.tolist() == [*ids[:2], *tokenizer.encode("hello"), ids[2]]
    assert tokenizer.decode(plain.build(messages).ids.tolist()).count("\n") == 3


def test_only_phi_3_has_such_markers(tmp_path: Path) -> None:
    for architecture, kind, strips in (("phi3", "llama", True), ("phi3", "gpt2", False), ("llama", "llama", False)):
        made = tiny.tiny_gguf()
        made.set("general.architecture", tiny.STRING, architecture)
        made.set("tokenizer.ggml.model", tiny.STRING, kind)
        made.set_array("tokenizer.ggml.scores", tiny.F32, [0.0] * len(tiny.TOKENS))
        path = made.write(tmp_path / "m.gguf")
        spec = read_tokenizer_spec(Metadata(path, read_header(FileBytes(path)).metadata))
        assert spec.strips_right is strips


def test_html_is_text_and_turns_are_not() -> None:
    tokenizer = TOKENIZERS["gemma"]
    table = FIXTURES["gemma"]["tokens"].index("<table>")
    assert tokenizer.encode("<table>") == [table]
    assert set(tokenizer.special_tokens) >= {"<start_of_turn>", "<end_of_turn>", "<s>", "</s>"}
    assert "<table>" not in tokenizer.special_tokens
    turn = tokenizer.encode("<start_of_turn>user")
    assert not set(turn) & set(tokenizer.special_tokens.values())
    assert tokenizer.decode(turn) == "<start_of_turn>user"
