"""For every way of writing a tokenizer.json: the ids of the `tokenizers` library itself, and never a control token."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.tokenizer.tokenizer import Tokenizer
from tests.examples import examples
from tests.inference.trained_tokenizers import CORPUS, FAMILIES, SPECIAL, spec_of, text_of

TEXTS = [
    *CORPUS.splitlines(keepends=True), CORPUS, "", " ", "  ", "\n", "\n\n\n\n", "\t\t", " \n \n ", "   x", "x   ",
    "1 22 333 4444 55555 1,234.56", "don't WON'T I'd", "👩‍👩‍👧‍👦 👍🏽 🇩🇪", "e\u0301 a\u0308 o\u0302\u0323 \u0e01\u0e33",
    "\u200b\u200d\ufeff\u00ad", "\x00\x01\x7f", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ﬁ ½ Å", "\u3000全角　", "\r\n\r", "a\u2581b", "x" * 300,
    "灯" * 50, "# h\n\n```python\nx = [1, 2]\n```\n", "<b>bold</b> & <i>", "http://example.org/?a=b#c", "\ufffd\uffff",
]  # fmt: skip


def random_texts(count: int) -> list[str]:
    """Any code points, and such as are near each other in real text."""
    rng = random.Random(20261130)
    pools = ["".join(map(chr, range(32, 127))), CORPUS, " \n\t\r", "0123456789 .,", "\u0301\u0308\u200d\ufe0f👩🏽🇩é"]
    made = []
    for _ in range(count):
        kind = rng.randrange(8)
        size = rng.randrange(1, 24)
        if kind < len(pools):
            made.append("".join(rng.choice(pools[kind]) for _ in range(size)))
        elif kind == 5:
            start = rng.randrange(len(CORPUS))
            made.append(CORPUS[start : start + size])
        else:
            codes = (rng.randrange(0x110000 if kind == 6 else 0x3000) for _ in range(size))
            made.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
    return made


@cache
def ours(family: str) -> Tokenizer:
    return Tokenizer(spec_of(family))


@cache
def library(family: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(text_of(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_the_library(family: str) -> None:
    tokenizer = ours(family)
    texts = [text for text in TEXTS + random_texts(10_000) if not any(c in text for c in tokenizer.special_tokens)]
    assert len(texts) > 9_900
    expected = library(family).encode_batch(texts, add_special_tokens=False)
    found = tokenizer.encode_spans([(text, True) for text in texts])
    for text, span, encoding in zip(texts, found, expected, strict=True):
        assert span.ids.tolist() == encoding.ids, repr(text)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_comes_back_as_the_library_brings_it_back(family: str) -> None:
    tokenizer = ours(family)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == library(family).decode(ids, skip_special_tokens=False), repr(text)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_no_text_becomes_a_control_token(family: str, data: st.DataObject) -> None:
    tokenizer = ours(family)
    controls = sorted({*tokenizer.special_tokens, *SPECIAL, "<s>", "</s>", "<unk>", "<think>", "<tool_call>"})
    parts = data.draw(st.lists(st.sampled_from(controls) | st.text(max_size=5) | st.just("\n"), max_size=5))
    ids = tokenizer.encode("".join(parts))
    assert not set(ids) & set(tokenizer.special_tokens.values())


def test_markers_of_thoughts_and_tools_are_control_tokens() -> None:
    assert {"<think>", "</think>", "<tool_call>", *SPECIAL} <= set(ours("qwen").special_tokens)
    assert "<table>" not in ours("gemma").special_tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_put_in_front_of_the_text_by_a_post_processor(family: str) -> None:
    assert ours(family).bos_token_id is not None
    assert ours(family).bos_token_id not in ours(family).encode("hello")


def test_merges_are_not_left_out_at_random() -> None:
    description = json.loads(text_of("llama3"))
    description["model"]["dropout"] = 0.5
    dropping = Tokenizer(replace(spec_of("llama3"), tokenizer_json=json.dumps(description)), max_cached_chars=0)
    for _ in range(5):
        assert dropping.encode(CORPUS) == ours("llama3").encode(CORPUS)
