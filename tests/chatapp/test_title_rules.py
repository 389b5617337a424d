"""Which answers of a model are titles. The refused ones are what the default model has written when it was asked."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.text import num_columns
from chatapp.turn.title_rules import MAX_COLUMNS, MAX_WORDS, accepted_title, wording

EGG = "How do I boil an egg so that the yolk stays soft?"
EGG_REPLY = "To boil an egg without leaving any residue on its surface, you need to use a simple pot."
ROME = "Plan a three day trip to Rome with two small children, we like museums but not crowds."
FIB = "def fib(n):\n    return fib(n-1)+fib(n-2)\n\nwhy does this never end?"


def title_of(written: str, said: str = EGG, answered: str = EGG_REPLY) -> str:
    return accepted_title(written, said=[said], answered=[answered])


@pytest.mark.parametrize(
    ("written", "said", "answered", "title"),
    [
        ("Boil an Egg to Stay Soft", EGG, EGG_REPLY, "Boil an Egg to Stay Soft"),
        (" Boiling eggs", EGG, EGG_REPLY, "Boiling eggs"),
        ("TCP vs UDP", "What's the difference between TCP and UDP?", "", "TCP vs UDP"),
        ("Endless recursion in fib", FIB, "Endless recursion: there is no base case.", "Endless recursion in fib"),
        ("前缀缓存", "什么是前缀缓存，它为什么能加速大语言模型？", "它是一种数据。", "前缀缓存"),
        ("安装express框架", "如何安装express框架", "用npm安装。", "安装express框架"),
        ("キャッシュの仕組み", "キャッシュの仕組みを教えて", "", "キャッシュの仕組み"),
        (
            "Meilleure époque au Pérou",
            "Quelle est la meilleure époque pour le Pérou ?",
            "",
            "Meilleure époque au Pérou",
        ),
        ("Кэш префиксов", "Что такое кэш префиксов?", "", "Кэш префиксов"),
        ("How long to boil an egg?", EGG, EGG_REPLY, "How long to boil an egg?"),
    ],
)
def test_a_good_title_is_taken(written: str, said: str, answered: str, title: str) -> None:
    assert title_of(written, said, answered) == title


@pytest.mark.parametrize(
    "written",
    [
        '"Boiling eggs"',
        "“Boiling eggs”.",
        "**Boiling eggs**",
        "# Boiling eggs",
        "Title: Boiling eggs",
        "Title: **Boiling eggs",
        "`Boiling eggs`",
        "- Boiling eggs!",
        "Boiling\u202e eggs\u0000\u2066",
        "  Boiling \t eggs \r",
        "(Boiling eggs)",
        "Boiling eggs:",
    ],
)
def test_what_stands_around_a_title_is_taken_off(written: str) -> None:
    assert title_of(written) == "Boiling eggs"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", EGG),
        (" \n ", EGG),
        ("...", EGG),
        ("Here's a possible title", EGG),
        ("Here's a summary of the conversation in a title", EGG),
        ("At most six words that name its topic", EGG),
        ("Write a title for this conversation", EGG),
        ("The topic of this conversation", EGG),
        ("Your Name", EGG),
        ("The Uncanny", "Is it safe to eat raw eggs?"),
        ("The Unlikely Friendship", "Who wrote Pride and Prejudice and when?"),
        ("Egg", EGG),  # the first words say more
        ("Egg Egg Egg", EGG),
        ("Boil Boil", EGG),
        ("🍽🍽🍽🍽", EGG),
        ("Boil <b>eggs</b>", EGG),
        ("Boil eggs \ufffd", EGG),
        (" ".join(["boil", "an", "egg"] * 4), EGG),
        ("Boil an egg so that the yolk stays soft and " + "o" * 40, EGG),
        ("SMO", "白菜好吃吗"),
        ("How to Use the Express API", "如何安装express"),
        ("北京", "北京有什么好玩的地方"),
        ("煮鸡蛋", EGG),
        ("请为这段对话写一个标题", "什么是前缀缓存"),
        ("The Perilous Perilous Perilous Trip to Rome", ROME),
    ],
)
def test_what_is_none_is_refused(written: str, said: str) -> None:
    assert title_of(written, said) == ""


def test_a_subtitle_that_is_too_much_is_left_out() -> None:
    said = "What's the difference between TCP and UDP?"
    assert title_of("TCP vs UDP: A Guide to Understanding the Key Differences", said) == "TCP vs UDP"
    assert title_of("Boil an egg: the soft yolk", EGG) == "Boil an egg: the soft yolk"


def test_a_word_of_the_instruction_is_no_echo_if_the_person_has_used_it() -> None:
    said = "Which programming language has the best conversation about titles of books?"
    assert title_of("Programming language", said) == "Programming language"
    assert title_of("Programming language", "Teach me programming", "Choose a language.") == ""


@pytest.mark.parametrize(
    ("said", "is_chinese"),
    [
        ("白菜好吃吗", True),
        ("如何安装express", True),
        ("キャッシュの仕組みを教えて", False),
        ("What is the meaning of 缓存?", False),
        ("", False),
        ("12 + 30 = ?", False),
    ],
)
def test_chinese_is_asked_in_chinese(said: str, is_chinese: bool) -> None:
    assert ("标题" in wording([said]).instruction) == is_chinese


@given(
    written=st.text(max_size=80) | st.text("ab egg:*\"'“\u202e\n白菜", max_size=80),
    said=st.text(max_size=40) | st.just("ab egg 白菜 白菜egg"),
    answered=st.text(max_size=40),
)
def test_a_title_is_one_clean_line_about_what_was_said_or_nothing(written: str, said: str, answered: str) -> None:
    title = accepted_title(written, said=[said], answered=[answered])
    assert num_columns(title) <= MAX_COLUMNS
    assert title == title.strip()
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in title if c not in "\u200c\u200d")
    assert len(title.split()) <= MAX_WORDS
    if title:
        assert any(c.isalpha() and c.casefold() in said.casefold() for c in title)
