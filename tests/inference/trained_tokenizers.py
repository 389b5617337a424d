"""Files as model families publish them, small: trained here by the `tokenizers` library on a page of text."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from inference.formats.base import TokenizerSpec
from inference.tokenizer.pre_tokenizers import GPT4, GPT4O, QWEN2

SPACE = "\u2581"
CORPUS = """\
The lighthouse on the northern cape was built in 1783, and its keeper wrote down every ship that went by.
She said that she'd come back; he's not so sure, they're waiting, and we've waited since 12:45.
def add(left: int, right: int) -> int:
    # indented by four spaces
    return left + right
for (int i = 0; i < 100; i++) { total += values[i] * 2; }
        deeper and deeper,            and far away
灯塔建于一七八三年，守塔人记下了每一艘经过的船。没有人再读那本日志了，但它还在那里。
你好，世界。今天天气很好，我们去海边走走吧。海边有灯塔，灯塔旁边有一条小路。
بُنيت المنارة على الرأس الشمالي، وكان حارسها يكتب اسم كل سفينة تمر من هناك.
Der Leuchtturm wurde 1783 gebaut; größer als alle andern. Où est l'été? À la fenêtre, naïve.
"""
SPECIAL = ("<|begin|>", "<|end|>", "<|turn|>")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _train(tokenizer: Tokenizer, first: list[str]) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        show_progress=False,
        special_tokens=first,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if "<unk>" not in first else [],
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)


def _byte_level(*steps: pre_tokenizers.PreTokenizer, uses_regex: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=uses_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, last])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def llama3() -> Tokenizer:
    """One expression, words taken as they are, a BOS added by the post-processor."""
    tokenizer = _byte_level(pre_tokenizers.Split(Regex(GPT4), "isolated"))
    _train(tokenizer, list(SPECIAL))
    tokenizer.model.ignore_merges = True
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B", special_tokens=[("<|begin|>", 0)]
    )
    return tokenizer


def qwen() -> Tokenizer:
    """NFC; thoughts and tool calls in tokens that are added and not special."""
    tokenizer = _byte_level(pre_tokenizers.Split(Regex(QWEN2), "isolated"))
    tokenizer.normalizer = normalizers.NFC()
    _train(tokenizer, list(SPECIAL))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>", "<tool_call>")])
    return tokenizer


def gpt4o() -> Tokenizer:
    tokenizer = _byte_level(pre_tokenizers.Split(Regex(GPT4O), "removed", invert=True))
    _train(tokenizer, list(SPECIAL))
    return tokenizer


def smollm() -> Tokenizer:
    """Digits one by one, then the expression that is built into the byte-level step."""
    tokenizer = _byte_level(pre_tokenizers.Digits(individual_digits=True), uses_regex=True)
    _train(tokenizer, list(SPECIAL))
    return tokenizer


def neox() -> Tokenizer:
    """Runs of spaces as added tokens, normalised ones at that."""
    tokenizer = _byte_level(uses_regex=True)
    tokenizer.normalizer = normalizers.NFC()
    _train(tokenizer, list(SPECIAL))
    tokenizer.add_tokens([AddedToken(" " * size, normalized=True) for size in range(2, 9)])
    return tokenizer


def _fallback() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return tokenizer


def llama2() -> Tokenizer:
    """SentencePiece in the old way: a mark in front of every piece of text, spaces visible."""
    tokenizer = _fallback()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    _train(tokenizer, ["<unk>", "<s>", "</s>", *BYTES])
    return tokenizer


def phi3() -> Tokenizer:
    """The same, with markers that swallow the white space behind them."""
    tokenizer = llama2()
    tokenizer.add_special_tokens([AddedToken(text, rstrip=True, normalized=False) for text in SPECIAL])
    return tokenizer


def gemma() -> Tokenizer:
    """No mark in front; runs of spaces and line breaks as added tokens."""
    tokenizer = _fallback()
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    _train(tokenizer, ["<unk>", "<s>", "</s>", *BYTES])
    runs = ["\n", "\n\n", "\n\n\n", "\t", SPACE * 2, SPACE * 3, SPACE * 4, "<table>", "</table>"]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in runs])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    return tokenizer


def metaspace() -> Tokenizer:
    """SentencePiece in the new way: a mark at the very start only."""
    tokenizer = _fallback()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    _train(tokenizer, ["<unk>", "<s>", "</s>", *BYTES])
    return tokenizer


FAMILIES = {make.__name__: make for make in (llama3, qwen, gpt4o, smollm, neox, llama2, phi3, gemma, metaspace)}


@cache
def text_of(family: str) -> str:
    """tokenizer.json."""
    text: str = FAMILIES[family]().to_str()
    description: dict[str, Any] = json.loads(text)
    # Only as special tokens can the trainer give bytes their ids; in published files they are ordinary.
    description["added_tokens"] = [token for token in description["added_tokens"] if token["content"] not in BYTES]
    return json.dumps(description, ensure_ascii=False)


def spec_of(family: str) -> TokenizerSpec:
    description = json.loads(text_of(family))
    ids = {token["content"]: token["id"] for token in description["added_tokens"]} | description["model"]["vocab"]
    begin, end = ("<|begin|>", "<|end|>") if "<|end|>" in ids else ("<s>", "</s>")
    return TokenizerSpec(
        source=Path("tokenizer.json"),
        vocab_size=max(ids.values()) + 1,
        tokenizer_json=text_of(family),
        named_tokens={"bos_token": begin, "eos_token": end},
        eos_token_ids=(ids[end],),
    )
