"""What a database can hold, and titles."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.text import first_words, is_blank, is_storable, joined, one_line, storable

ANY_TEXT = st.text(alphabet=st.characters(), max_size=300)  # surrogates included


@given(ANY_TEXT)
def test_storable_text_has_utf8_and_no_nul(text: str) -> None:
    kept = storable(text)
    assert "\x00" not in kept
    assert kept.encode("utf-8").decode("utf-8") == kept
    assert is_storable(kept)
    assert len(kept) == len(text)


@pytest.mark.parametrize(
    "text", ["", " \n", "\u200b", "\ufeff\u2060", "\u200d\ufe0f", "\u3164", "\u2800 \u00ad", "\U000e0041", "\x01\u202e"]
)
def test_invisible_characters_alone_are_blank(text: str) -> None:
    assert is_blank(text)


@given(ANY_TEXT, st.sampled_from(".a中\u0301👩"))
def test_what_has_ink_is_not_blank(text: str, ink: str) -> None:
    assert not is_blank(text + ink)


@given(ANY_TEXT)
def test_one_line_is_one_printable_line(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert line == line.strip()
    assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in line)
    assert one_line(line) == line


@given(ANY_TEXT, st.integers(min_value=4, max_value=80))
def test_title_is_one_line_within_its_width(text: str, columns: int) -> None:
    title = first_words(text, columns)
    assert sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in title if not unicodedata.combining(c)) <= (
        columns + 2 * sum(c in "\u200c\u200d\ufe0e\ufe0f" for c in title)
    )
    assert len(title.splitlines()) <= 1


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello", "Hello"),
        ("  Hello,\n\nhow are you?", "Hello,"),
        ("# A heading\ntext", "A heading"),
        ("```\ncode\n```", "code"),
        ("\n\n", ""),
        ("word " * 30, "word " * 10 + "word word…"),
        ("x" * 100, "x" * 59 + "…"),
        ("我们讨论了前缀缓存的问题" * 5, ("我们讨论了前缀缓存的问题" * 5)[:29] + "…"),
        (
            "请详细解释一下光合作用的过程，并且说明植物在没有阳光的时候如何获取能量",
            "请详细解释一下光合作用的过程…",
        ),
        ("他说：" + "今天天气真好我们去公园散步吧" * 3, ("他说：" + "今天天气真好我们去公园散步吧" * 3)[:29] + "…"),
        (
            "问题是这样的，怎样才能用 Python 写一个排序算法？要求附上完整的注释",
            "问题是这样的，怎样才能用 Python 写一个排序算法？…",
        ),
        (
            "我想问一下关于这个问题的解决方案现在是否应该使用transformers库",
            "我想问一下关于这个问题的解决方案现在是否应该使用…",
        ),
        (
            "四大名著包括《西游记》《水浒传》《三国演义》以及另外一部《红楼梦》在内",
            "四大名著包括《西游记》《水浒传》《三国演义》以及另外一部…",
        ),
        ("Wie geht es dir? " + "Donaudampfschifffahrtsgesellschaftskapitän" * 2, None),
        ("a" * 57 + "\U0001f468\u200d\U0001f469\u200d\U0001f467" + "b" * 20, "a" * 57 + "…"),
        ("n" * 58 + "e\u0301" + "b" * 20, "n" * 58 + "e\u0301…"),
    ],
)
def test_title_of(text: str, title: str | None) -> None:
    found = first_words(text)
    assert found == title or (title is None and found.startswith("Wie geht es dir? Donau") and len(found) == 60)


def test_sentences_follow_each_other_as_their_language_wants() -> None:
    assert joined(["", "One.", "", "Two."]) == "One. Two."
    assert joined(["窗口已满。", "", "请缩短消息。"]) == "窗口已满。请缩短消息。"
    assert joined([]) == joined([""]) == ""
