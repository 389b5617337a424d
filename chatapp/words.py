"""What a text is found by: words, and pairs of neighbours where a script writes no spaces. Pure.

Made here and not by a database, so that both find the same: SQLite's tokenizer takes a Chinese sentence for one word,
and its trigrams find nothing of one or two characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

MAX_WORD_CHARS = 40
# Scripts that are written without spaces, or whose words take endings: Han, Kana, Hangul, Thai, Lao, Burmese, Khmer.
_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
_MARKS = "\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0dff"  # inside words, and no \w to `re`
_RUN = re.compile(rf"[{_DENSE}]+|(?:[^\W_{_DENSE}]|[{_MARKS}])+")
_IS_DENSE = re.compile(f"[{_DENSE}]")
# What nearly every message has says nothing about any: not looked for when earlier turns are recalled.
_COMMON_WORDS = """
a about again all also am an and any are as at be because been before but by can could did do does done for from get
give go had has have he hello her here hi him his how i if in into is it its just know let like make many me more most
much my no not now of on one only or other our out over please really say see she should so some such tell than thank
thanks that the their them then there these they thing this those to too up us very want was we well were what when
where which while who why will with would yes you your
我们 你们 他们 什么 怎么 这个 那个 一个 可以 没有 是不 不是 就是 还是 的是 请问 谢谢 如何 为什 哪些 哪里 知道
告诉 诉我 一下
"""
_COMMON = frozenset(_COMMON_WORDS.split())


@dataclass(frozen=True, slots=True)
class Term:
    """A word to look for; is_prefix: words that begin with it count."""

    word: str
    is_prefix: bool = False


def index_words(text: str) -> list[str]:
    """Under what a text is found, each word once: 前缀缓存 under 前缀, 缀缓, 缓存 and 存."""
    found: dict[str, None] = {}
    for run, is_dense in _runs(text):
        if is_dense:
            found.update(dict.fromkeys(run[i : i + 2] for i in range(len(run))))
        else:
            found[run[:MAX_WORD_CHARS]] = None
    return list(found)


def query_terms(text: str) -> list[Term]:
    """What a text must be found under to match a query: all of these. The last word may be unfinished."""
    terms: dict[Term, None] = {}
    runs = list(_runs(text))
    for number, (run, is_dense) in enumerate(runs, 1):
        if is_dense and len(run) > 1:
            terms.update(dict.fromkeys(Term(run[i : i + 2]) for i in range(len(run) - 1)))
        else:
            terms[Term(run[:MAX_WORD_CHARS], is_prefix=is_dense or number == len(runs))] = None
    return list(terms)


def telling_words(text: str, limit: int = 48) -> list[str]:
    """The words of a message that may tell which earlier ones it is about: without those that every message has."""
    words = (word for word in index_words(text) if word not in _COMMON)
    telling = [word for word in words if len(word) > 1 or word.isdigit()]
    return telling[:limit]


def _runs(text: str) -> Iterator[tuple[str, bool]]:
    """Words, and runs of dense script, in one spelling."""
    for run in _RUN.findall(unicodedata.normalize("NFKC", text).casefold()):
        yield run, _IS_DENSE.match(run) is not None
