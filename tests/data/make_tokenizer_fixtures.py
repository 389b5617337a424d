"""Make the tokenizer fixtures: tiny vocabularies, texts, and the ids that independent implementations give:
`sentencepiece`, and `tiktoken` for byte-level BPE.

Run in an environment of its own, never in the one of the tests:

    python -m venv /tmp/spm && /tmp/spm/bin/pip install sentencepiece==0.2.1 tiktoken==0.14.0 regex tokenizers
    /tmp/spm/bin/python tests/data/make_tokenizer_fixtures.py

Writes tests/data/sentencepiece/<name>.json and tests/data/byte_level/<name>.json, as a GGUF file would hold them:
pieces and kinds, scores or merges. cases: ids of single texts; digests: see texts.py. Always the same bytes.
"""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import sentencepiece
import texts as shared
import tiktoken
from tiktoken._educational import bpe_train
from tokenizers.normalizers import NFC

HERE = Path(__file__).parent
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

CORPUS = (
    """\
The lighthouse on the northern cape was built in 1783, and its keeper wrote down every ship that went by.
Nobody reads the logbook now, but it lies there, page after page: wind, weather, names, and numbers.
She said that she'd come back; he's not so sure, they're waiting, and we've waited since 12:45.
A table has rows and columns, a list has items, a book has chapters. What has none of them is a poem.
def add(left: int, right: int) -> int:
    # indented by four spaces
    return left + right
for (int i = 0; i < 100; i++) { total += values[i] * 2; }
        deeper and deeper,            and far away
灯塔建于一七八三年，守塔人记下了每一艘经过的船。没有人再读那本日志了，但它还在那里。
你好，世界。今天天气很好，我们去海边走走吧。海边有灯塔，灯塔旁边有一条小路。
بُنيت المنارة على الرأس الشمالي، وكان حارسها يكتب اسم كل سفينة تمر من هناك.
Der Leuchtturm wurde 1783 gebaut; größer als alle andern, schöner auch. Où est l'été? À la fenêtre, naïve.
"""
    * 4
)

FIXED = [
    "", " ", "  ", "   a", "a   ", "\n", "\n\n\n", "\t\tx", " \n \n ", "hello", "Hello world", " Hello  world ",
    "12345 1,234.5", "don't they're WE'VE", "def f(x):\n    return x\n", "你好，世界", "没有人 read 那本 logbook",
    "مرحبا بالعالم",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪", "e\u0301 a\u0308 o\u0302\u0323", "\u200b\u200d\ufeff",
    "\u2581", "a\u2581\u2581b", "<0x41>", "<unk>", "aaaaaaaaaaaaa",
    "\x00\x01", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "\u3000全角　", "<table><tr>", "x" * 99, "\r\n\r\n", "ﬁ ½ Å ①",
]  # fmt: skip
ALPHABETS = [" aelt", " \n\tab", "灯塔的，a ", "0123 ,.", "\u2581 ab", "éßøñ e", "منار ة", "👩\u200d👧a ", "<>/table "]


def texts() -> list[str]:
    rng = random.Random(20261130)
    made = list(FIXED)
    for _ in range(30):
        for alphabet in ALPHABETS:
            made.append("".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 24))))
    for _ in range(150):
        start = rng.randrange(len(CORPUS))
        made.append(CORPUS[start : start + rng.randrange(60)])
    for _ in range(100):
        codes = [rng.choice([rng.randrange(32, 0xD800), rng.randrange(0xE000, 0x11000), 32]) for _ in range(8)]
        made.append("".join(map(chr, codes)))
    return made


def kind_of(model: sentencepiece.SentencePieceProcessor, index: int, user_defined: set[str]) -> int:
    if model.is_unknown(index):
        return UNKNOWN
    if model.is_control(index):
        return CONTROL
    if model.is_byte(index):
        return BYTE
    return USER_DEFINED if model.id_to_piece(index) in user_defined else NORMAL


def make(name: str, user_defined: tuple[str, ...], has_space_prefix: bool, **options: Any) -> None:
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=trained,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        add_dummy_prefix=has_space_prefix,
        user_defined_symbols=list(user_defined),
        minloglevel=2,
        **options,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    indices = range(model.get_piece_size())
    fixture = {
        "has_space_prefix": has_space_prefix,
        "tokens": [model.id_to_piece(index) for index in indices],
        "token_types": [kind_of(model, index, set(user_defined)) for index in indices],
        "scores": [model.get_score(index) for index in indices],
        "cases": [[text, model.encode(text)] for text in [*texts(), *shared.CORPUS]],
        "digests": shared.digests(map(model.encode, shared.random_texts())),
    }
    write("sentencepiece", name, fixture)


def write(folder: str, name: str, fixture: dict[str, Any]) -> None:
    text = json.dumps(fixture, ensure_ascii=True, separators=(",", ":"))
    text = text.replace('"cases":[', '"cases":[\n').replace("]],", "]],\n")
    (HERE / folder).mkdir(exist_ok=True)
    (HERE / folder / f"{name}.json").write_text(text + "\n")


# The expressions that the families publish in their own tokenizers. Source: tiktoken (gpt-2, o200k), llama3 and Qwen.
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BEFORE, UPPER, LOWER = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt-2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": rf"{CONTRACTION}|{BEFORE}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}",
    "qwen2": rf"{CONTRACTION}|{BEFORE}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}",
    "gpt-4o": rf"{BEFORE}{UPPER}*{LOWER}+{CONTRACTION}?|{BEFORE}{UPPER}+{LOWER}*{CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}",
}
CONTROLS = ["<|begin|>", "<|im_start|>", "<|im_end|>"]
NUM_BYTE_LEVEL = 640


def byte_characters() -> dict[int, str]:
    """The character that byte-level BPE writes for each byte (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + index) for index, byte in enumerate(hidden)}


def make_byte_level(pre: str) -> None:
    """pre: as tokenizer.ggml.pre. Merges are all ways to put a token together, in the order of the ranks."""
    pattern = PATTERNS[pre]
    ranks = bpe_train(data=CORPUS, vocab_size=NUM_BYTE_LEVEL, pat_str=pattern, visualise=None)
    reference = tiktoken.Encoding(pre, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    characters = byte_characters()
    shown = {token: "".join(characters[byte] for byte in token) for token in ranks}
    splits = [
        (rank, ranks[token[:cut]], ranks[token[cut:]], f"{shown[token[:cut]]} {shown[token[cut:]]}")
        for token, rank in ranks.items()
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]

    def encode(text: str) -> list[int]:
        # As the family's published tokenizer does it; Python's NFC knows a newer Unicode, with other orders of marks.
        text = NFC().normalize_str(text) if pre == "qwen2" else text
        return reference.encode_ordinary(text)

    fixture = {
        "pre": pre,
        "tokens": [*(shown[token] for token in sorted(ranks, key=ranks.__getitem__)), *CONTROLS],
        "token_types": [NORMAL] * len(ranks) + [CONTROL] * len(CONTROLS),
        "merges": [merge for *_, merge in sorted(splits)],
        "cases": [[text, encode(text)] for text in shared.CORPUS],
        "digests": shared.digests(map(encode, shared.random_texts())),
    }
    write("byte_level", pre, fixture)


if __name__ == "__main__":
    make("llama", (), True, vocab_size=760)
    make(
        "gemma",
        ("\n", "\n\n", "\n\n\n", "\t", "\u2581\u2581", "\u2581\u2581\u2581", "\u2581" * 4, "<table>", "</table>"),
        False,
        vocab_size=760,
        control_symbols=["<start_of_turn>", "<end_of_turn>"],
    )
    for kind in PATTERNS:
        make_byte_level(kind)
