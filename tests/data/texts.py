"""Texts that tokenizers are compared on: the same in the environment that makes the fixtures and in the tests.

Uses nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence

NUM_RANDOM = 10_000
GROUP = 100  # random texts to a digest

CORPUS = [
    # English
    "The lighthouse on the northern cape was built in 1783.", "She said that she'd come back; he's not so sure.",
    "don't WON'T I'd we'Ve they'RE", "HELLO Hello hELLO", "naïve café – “quoted” … it’s",
    # Chinese
    "你好，世界。", "灯塔建于一七八三年，守塔人记下了每一艘经过的船。",
    "没有人 read 那本 logbook", "「引号」、顿号；全角：１２３",
    # Arabic
    "مرحبا بالعالم", "بُنيت المنارة على الرأس الشمالي، وكان حارسها.", "العدد ١٢٣ و 456",
    # code
    "def f(x):\n    return x\n", "for (int i = 0; i < n; i++) { a[i] *= 2; }", "\tif x:\n\t\ty()\n",
    "<b>bold</b> &amp; <br/>",
    "```python\nx = {'a': [1, 2]}\n```", "http://example.org/?a=b#c", "SELECT * FROM t WHERE a='b';",
    # digits
    "0", "1234567890", "12345 1,234.5 3.14159e-10", "1 22 333 4444 55555", "²³ ½ Ⅷ ٣",
    # runs of white space
    "", " ", "  ", "   a", "a   ", "a    b", "\n", "\n\n\n", "\t\tx", " \n \n ", "\r\n\r\n", "a \n b",
    "\u3000全角　", "\u00a0x\u2003y",
    # emoji with joiners
    "👩‍👩‍👧‍👦", "👍🏽 🇩🇪 🏳️‍🌈", "a😀b", "👨‍💻 writes code",
    # combining marks
    "e\u0301 a\u0308 o\u0302\u0323", "\u0e01\u0e33\u0e19\u0e49\u0e33", "क्षि नमस्ते",
    "Z\u0351\u036b\u0343a\u0321lgo", "가각 \u1100\u1161",
    # edges
    "\u200b\u200d\ufeff", "\x00\x01\x7f", "\ufffd\uffff", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "ﬁ Å ①", "x" * 99,
    "a\u2581b \u2581", "<0x41>", "<unk>",
    "<|im_end|>", " ~", "**Duration:** Around ~2-4 days.",
]  # fmt: skip

# Python can hold half a pair of surrogates; UTF-8 can not, and it is no text.
INVALID = ["\ud800", "a\udfff", "\udc00\ud800", "x\ud83d", "\ude00 hello"]


def random_texts() -> list[str]:
    """Code points of all planes, of one plane, and such as stand near each other in real text; no surrogates."""
    rng = random.Random(20261130)
    pools = [
        "".join(CORPUS),
        " \n\t\r  ab",
        "0123456789 .,",
        "\u0301\u0308\u200d\ufe0f👩🏽🇩é ",
        "灯塔的 a，",
        "'sStTrReE dDmM",
    ]
    made = []
    for _ in range(NUM_RANDOM):
        kind, size = rng.randrange(len(pools) + 3), rng.randrange(1, 25)
        if kind < len(pools):
            made.append("".join(rng.choice(pools[kind]) for _ in range(size)))
            continue
        end = (0x110000, 0x10000, 0x3000)[kind - len(pools)]
        codes = (rng.randrange(end) for _ in range(size))
        made.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
    return made


def digests(ids_of_texts: Iterable[Sequence[int]]) -> list[str]:
    """One for each GROUP of texts, over their ids."""
    lines = [",".join(map(str, ids)) for ids in ids_of_texts]
    groups = [lines[start : start + GROUP] for start in range(0, len(lines), GROUP)]
    return [hashlib.sha256("\n".join(group).encode()).hexdigest()[:16] for group in groups]
