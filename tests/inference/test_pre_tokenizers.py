"""Every pre-tokenizer that a GGUF file may name cuts text where its published expression does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from inference.errors import UnsupportedModelError
from inference.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from inference.tokenizer.tokenizer import Tokenizer
from tests.examples import examples
from tests.inference.tiny_tokenizers import byte_level_spec

TEXT = "It's 12345 don'T  x\t\n\n y!= /a//\n naïve 北京 मानक $x²;"

# What each makes of it, read off the expression by hand; "|" between words.
WORDS = {
    "gpt-2": "It|'s| 12345| don|'|T| | x|\t\n\n| y|!=| /|a|//|\n| naïve| 北京| म|ा|नक| $|x|²|;",
    "starcoder": "It|'s| |1|2|3|4|5| don|'|T| | x|\t\n\n| y|!=| /|a|//|\n| naïve| 北京| म|ा|नक| $|x|²|;",
    "default": "It|'|s| |123|45| don|'|T| | x|\t\n\n| y|!=| |/|a|//|\n| naïve| 北京| म|ा|नक| |$|x|²|;",
    "falcon": "It|'|s| |123|45| don|'|T| | x|\t\n\n| y|!=| |/|a|//|\n| naïve| 北京| म|ा|नक| |$|x|²|;",
    "llama-bpe": "It|'s| |123|45| don|'T| | x|\t\n\n| y|!=| /|a|//\n| naïve| 北京| म|ानक| $|x|²|;",
    "qwen2": "It|'s| |1|2|3|4|5| don|'T| | x|\t\n\n| y|!=| /|a|//\n| naïve| 北京| म|ानक| $|x|²|;",
    "qwen35": "It|'s| |1|2|3|4|5| don|'T| | x|\t\n\n| y|!=| /|a|//\n| naïve| 北京| मानक| $|x|²|;",
    "gpt-4o": "It's| |123|45| don'T| | x|\t\n\n| y|!=| /|a|//\n| naïve| 北京| मानक| $|x|²|;",
    "tekken": "It|'s| |1|2|3|4|5| don|'T| | x|\t\n\n| y|!=| /|a|//\n| naïve| 北京| मानक| $|x|²|;",
    "tiny_aya": "It's| |12|345| don'T| | x|\t\n\n| y|!=| /|a|//\n| naïve| 北京| मानक| $|x|²|;",
    "kimi-k2": "It's| |123|45| don'T| | x|\t\n\n| y|!=| /|a|//\n| naïve| |北京| मानक| $|x|²|;",
    "deepseek-v3": "It|'s| |123|45| don|'T| | x|\t\n\n| y|!=| /|a|//\n| naïve| |北京| मानक| $|x|²|;",
    "deepseek-coder": "It|'|s| |1|2|3|4|5| don|'|T| | x|\t|\n|\n| y|!|=| /|a|//|\n| naïve| |北京| |म|ा|नक| $|x|²|;",
    "deepseek-llm": "It|'|s| |12345| don|'|T| | x|\t|\n|\n| y|!=| /|a|//|\n| na|ï|ve| |北京| |मानक| $|x|²|;",
    "seed-coder": "It|'s| |1|2|3|4|5| don|'T| | x|\t\n\n| y|!=| /|a|//|\n| naïve| 北京| म|ानक| $|x|²|;",
    "minicpm5": "It|'s| |123|45| don|'T| | x|\t\n\n| y|!=| /|a|//\n| naïve| 北京| म|ानक| $|x|²|;",
    "youtu": "It's| |1|2|3|4|5| don'T| | x|\t\n\n| y|!=| /|a|//\n| naïve| |北京| मानक| $|x|²|;",
    "exaone-moe": "It|'s| |1|2|3|4|5| don|'T| | x|\t\n\n| y|!=| /|a|//\n| naïve 北京 मानक| $|x|²|;",
    "bloom": "It's| 12345| don'T| | x|\t\n\n| y|!|=| /a//|\n| naïve| 北京| मानक| $x²;",
    "viking": "It's| |1|2|3|4|5| don'T| | x|\t\n\n| y|!|=| /a//|\n| naïve| 北京| मानक| $x|²|;",
    "bailingmoe": "It|'s| |1|2|3|4|5| don|'T| | x|\t\n\n| y|!=| /|a|//\n| naïve| 北京| म|ानक| $|x|²|;",
}
# Names under which converters write the same expression.
ALIKE = {
    "gpt-2": ("smollm", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat", "exaone4", "mellum"),
    "starcoder": ("refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    "llama-bpe": ("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "dbrx", "smaug-bpe", "chatglm-bpe"),
    "qwen2": ("deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2", "solar-open"),
    "deepseek-v3": ("hunyuan-dense", "joyai-llm"),
    "gpt-4o": ("llama4", "kanana2", "minimax-m2"),
    "bloom": ("poro-chat", "gpt3-finnish"),
}


def words(name: str, text: str) -> list[str]:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[name].splits]
    return [word for word, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", WORDS)
def test_text_is_cut_where_the_published_expression_cuts(name: str) -> None:
    assert words(name, TEXT) == WORDS[name].split("|")


def test_names_for_one_expression_cut_alike() -> None:
    for name, others in ALIKE.items():
        for other in others:
            assert PRE_TOKENIZERS[other].splits == PRE_TOKENIZERS[name].splits, other


def test_only_models_that_normalise_have_their_text_normalised() -> None:
    decomposed = "e\u0301"
    for name in ("qwen2", "qwen35", "stablelm2", "olmo", "mpt", "command-r"):
        tokenizer = Tokenizer(byte_level_spec(pre=name))
        assert tokenizer.decode(tokenizer.encode(decomposed)) == "\u00e9"
    for name in ("smollm", "llama-bpe", "deepseek-r1-qwen", "gpt-4o"):
        tokenizer = Tokenizer(byte_level_spec(pre=name))
        assert tokenizer.decode(tokenizer.encode(decomposed)) == decomposed


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@settings(max_examples=examples(25), deadline=None)
@given(text=st.text(max_size=30) | st.text(" \t\r\n'sS1a中é!/", max_size=30))
def test_every_pre_tokenizer_loses_nothing(name: str, text: str) -> None:
    assert "".join(words(name, text)) == text


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pre_tokenizer_makes_a_tokenizer(name: str) -> None:
    tokenizer = Tokenizer(byte_level_spec(pre=name))
    for text in ("it's 12345  hello\n\n  world!", "<|im_end|>", "é😀", TEXT):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_unknown_pre_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="'nonsense'") as caught:
        Tokenizer(byte_level_spec(pre="nonsense"))
    assert caught.value.field == "tokenizer.ggml.pre"
    assert "smollm" in caught.value.known
