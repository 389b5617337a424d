"""Ids of every kind of tokenizer are those that independent implementations gave (make_tokenizer_fixtures.py).

The same vocabulary comes as a GGUF file holds it and, where a family publishes one, as a tokenizer.json.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inference.formats.base import TokenizerSpec
from inference.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from inference.tokenizer.tokenizer import Tokenizer
from tests.data.texts import CORPUS, INVALID, digests, random_texts

DATA = Path(__file__).parents[1] / "data"
FILES = sorted([*(DATA / "sentencepiece").glob("*.json"), *(DATA / "byte_level").glob("*.json")])
CONTROL = 3


@cache
def fixture_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def from_gguf(path: Path) -> TokenizerSpec:
    fixture = fixture_of(path)
    is_byte_level = "merges" in fixture
    return TokenizerSpec(
        source=path,
        vocab_size=len(fixture["tokens"]),
        model="gpt2" if is_byte_level else "llama",
        pre=fixture.get("pre", ""),
        tokens=tuple(fixture["tokens"]),
        token_types=tuple(fixture["token_types"]),
        scores=tuple(fixture.get("scores", ())),
        merges=tuple(fixture.get("merges", ())),
        has_space_prefix=fixture.get("has_space_prefix", False),
    )


def from_json(path: Path) -> TokenizerSpec:
    """As Hugging Face would publish it."""
    fixture = fixture_of(path)
    pre = PRE_TOKENIZERS[fixture["pre"]]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    kinds = list(enumerate(zip(fixture["tokens"], fixture["token_types"], strict=True)))
    description = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": text, **flags} for i, (text, kind) in kinds if kind == CONTROL],
        "normalizer": {"type": "NFC"} if pre.is_normalised else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre.steps(has_space_prefix=False)},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, (text, kind) in kinds if kind != CONTROL},
            "merges": fixture["merges"],
            "ignore_merges": pre.ignores_merges,
        },
    }
    return TokenizerSpec(source=path, vocab_size=len(kinds), tokenizer_json=json.dumps(description))


CASES = {f"{path.stem} in GGUF": from_gguf(path) for path in FILES} | {
    f"{path.stem} as tokenizer.json": from_json(path) for path in FILES if path.parent.name == "byte_level"
}


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return Tokenizer(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_ids_are_those_that_an_independent_implementation_gives(name: str) -> None:
    tokenizer, fixture = tokenizer_of(name), fixture_of(CASES[name].source)
    cases = [(text, ids) for text, ids in fixture["cases"] if not any(t in text for t in tokenizer.special_tokens)]
    for text, ids in cases:
        assert tokenizer.encode(text) == ids, repr(text)
    assert {text for text, _ in cases} >= {text for text in CORPUS if "<" not in text}
    texts = random_texts()
    found = digests(span.ids.tolist() for span in tokenizer.encode_spans([(text, True) for text in texts]))
    assert found == fixture["digests"]


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_text_is_refused_whatever_the_kind(name: str) -> None:
    for text in INVALID:
        with pytest.raises(ValueError, match="surrogates"):
            tokenizer_of(name).encode(text)


def test_the_corpus_is_large_and_always_the_same() -> None:
    texts = random_texts()
    assert texts == random_texts()
    assert len(texts) == 10_000
    assert max(max(text) for text in texts if text) > "\U00010000"
    assert {Path(spec.source).stem for spec in CASES.values()} == {
        "gemma",
        "gpt-2",
        "gpt-4o",
        "llama",
        "llama-bpe",
        "qwen2",
    }
