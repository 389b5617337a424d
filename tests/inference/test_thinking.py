"""How a model marks its thinking is found in its template and vocabulary, and where in a reply the thinking ends."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.detokenizer import Detokenizer
from inference.tokenizer.thinking import ThinkingMarks, ThinkingSplit, split_ids, split_text
from inference.tokenizer.tokenizer import Tokenizer
from inference.types import ChatMessage
from tests.inference.thinking_templates import PLAIN, THINKING
from tests.inference.trained_tokenizers import spec_of

TAGS = ThinkingMarks("<think>", "</think>")
OPENED = ThinkingMarks("<think>", "</think>", starts_open=True)


@cache
def tokenizer_of(family: str) -> Tokenizer:
    return Tokenizer(spec_of(family))


@cache
def chat_of(name: str, family: str = "qwen") -> ChatTemplate:
    return ChatTemplate(tokenizer_of(family), THINKING[name])


# --- what is found out at load


@pytest.mark.parametrize(
    ("name", "marks", "starts_open"),
    [
        ("switched", "<think>", False),
        ("opened", "<think>", True),
        ("cut", "<think>", True),
        ("kept", "<think>", False),
        ("bracketed", "[THINK]", False),
    ],
)
def test_the_marks_are_found_in_the_template(name: str, marks: str, starts_open: bool) -> None:
    for family in ("qwen", "llama3"):
        found = chat_of(name, family).thinking_marks()
        assert found is not None
        assert (found.open, found.starts_open) == (marks, starts_open)
        assert (found.close_id is not None) == (family == "qwen" and marks == "<think>")


def test_a_template_without_thinking_has_no_marks_unless_the_vocabulary_has() -> None:
    assert ChatTemplate(tokenizer_of("llama3"), PLAIN).thinking_marks() is None
    known = ChatTemplate(tokenizer_of("qwen"), PLAIN).thinking_marks()
    assert known is not None
    assert known.close_id == tokenizer_of("qwen").special_tokens["</think>"]


@pytest.mark.parametrize(
    ("name", "strips", "switches"),
    [
        ("switched", True, True),
        ("opened", True, False),
        ("cut", True, False),
        ("kept", False, True),
        ("bracketed", True, False),
    ],
)
def test_what_the_template_does_with_thinking_is_found_by_rendering(name: str, strips: bool, switches: bool) -> None:
    assert chat_of(name).strips_thinking is strips
    assert chat_of(name).can_switch_thinking is switches


@pytest.mark.parametrize("name", THINKING)
def test_thinking_switched_off_is_told_to_templates_that_know_of_it(name: str) -> None:
    chat = chat_of(name)
    question = [ChatMessage("user", "hello")]
    on, off = chat.build(question).ids.tolist(), chat.build(question, is_thinking_off=True).ids.tolist()
    assert (on != off) == chat.can_switch_thinking
    if chat.can_switch_thinking:
        marks = chat.thinking_marks(is_thinking_off=True)
        assert marks is not None
        assert not marks.starts_open
        assert marks.close_id in off
        assert chat.build(question, is_thinking_off=True).num_public_tokens > 0


# --- where the thinking ends


@pytest.mark.parametrize(
    ("text", "marks", "thinking"),
    [
        ("hello", TAGS, ""),
        ("", TAGS, ""),
        ("<think>\nhm\n</think>\n\nyes", TAGS, "<think>\nhm\n</think>\n\n"),
        ("\n<think>hm</think>yes", TAGS, "\n<think>hm</think>"),
        ("<think>\n\n</think>\n\nyes", TAGS, "<think>\n\n</think>\n\n"),
        ("hm</think>yes", OPENED, "hm</think>"),
        ("<think>hm</think>yes", OPENED, "<think>hm</think>"),  # opened a second time by the model
        ("hm</think>yes", TAGS, ""),  # nothing was opened
        ("Like `<think>a</think>` this", TAGS, ""),
        ("```\n<think>\n</think>\n```", TAGS, ""),
        ("<think>a</think>```\n<think>b</think>\n```", TAGS, "<think>a</think>"),
        ("<think>a<think>b</think>c</think>d", TAGS, "<think>a<think>b</think>"),
        ("<think>a</think>\n<think>b</think>\nc", TAGS, "<think>a</think>\n<think>b</think>\n"),
    ],
)
def test_only_the_leading_block_is_thinking(text: str, marks: ThinkingMarks, thinking: str) -> None:
    split = split_text(text, marks)
    assert (text[: split.num_chars], split.is_open, split.num_held) == (thinking, False, 0)
    for family in ("qwen", "llama3", "llama2"):  # spelt out in ordinary tokens; the last one strips a leading space
        tokenizer = tokenizer_of(family)
        ids = tokenizer.encode(text)
        found = split_ids(ids, text, marks, tokenizer)
        assert text[: found.num_chars] == thinking
        if found.num_tokens is not None and thinking:
            answer = Detokenizer(tokenizer, is_continuation=True)
            assert "".join(map(answer.add, ids[found.num_tokens :])).strip() == text[found.num_chars :].strip()


@pytest.mark.parametrize(
    ("text", "marks", "held"),
    [
        ("<", TAGS, "<"),
        ("\n<thin", TAGS, "<thin"),
        ("<think>", TAGS, ""),
        ("<thunk", TAGS, ""),
        ("<think>hm", TAGS, ""),
        ("<think>hm <", TAGS, "<"),
        ("<think>hm </thin", TAGS, "</thin"),
        ("<think>hm <<", TAGS, "<"),
        ("hm</t", OPENED, "</t"),
        ("<think>a</think>b <", TAGS, ""),
    ],
)
def test_half_a_mark_is_held_back(text: str, marks: ThinkingMarks, held: str) -> None:
    for split in (split_text(text, marks), split_ids(list(text.encode()), text, marks, _bytes())):
        assert text[len(text) - split.num_held :] == held
        if split.is_open:
            assert split.num_chars == len(text)


class _Bytes(Tokenizer):
    strips_leading_space = False

    def __init__(self) -> None: ...

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def _bytes() -> Tokenizer:
    return _Bytes()


PARTS = st.lists(
    st.sampled_from(["<think>", "</think>", "\n", "\n\n", " ", "hm", "yes ", "```\n", "<", "</", "think>", "😀", "灯"]),
    max_size=12,
)


@given(parts=PARTS, starts_open=st.booleans())
def test_a_growing_reply_never_shows_what_turns_out_to_be_a_mark(parts: list[str], starts_open: bool) -> None:
    """Character by character: what is shown of the answer only grows, and thinking never becomes answer."""
    text = "".join(parts)
    marks = OPENED if starts_open else TAGS
    final = split_text(text, marks)
    answer = text[final.num_chars :]
    for size in range(len(text) + 1):
        split = split_text(text[:size], marks)
        shown = text[: size - split.num_held][split.num_chars :].lstrip()
        assert answer.lstrip().startswith(shown) or not split.num_chars
        if not split.is_open and split.num_chars and split.num_held == 0:
            assert final.num_chars >= split.num_chars


@given(parts=PARTS, starts_open=st.booleans())
def test_by_ids_only_the_control_tokens_are_marks(parts: list[str], starts_open: bool) -> None:
    tokenizer = tokenizer_of("qwen")
    controls = tokenizer.special_tokens
    marks = ThinkingMarks("<think>", "</think>", starts_open, controls["<think>"], controls["</think>"])
    ids: list[int] = []
    for part in parts:
        ids += [controls[part]] if part in controls else tokenizer.encode(part)
    text = tokenizer.decode(ids)
    split = split_ids(ids, text, marks, tokenizer)
    assert split.num_tokens is not None
    assert not split.num_held
    assert text[: split.num_chars].strip() == tokenizer.decode(ids[: split.num_tokens]).strip()
    if split.num_chars and not split.is_open:
        assert text[: split.num_chars].rstrip().endswith("</think>")
    spelt = [token for part in parts for token in tokenizer.encode(part)]
    if not starts_open:
        assert split_ids(spelt, tokenizer.decode(spelt), marks, tokenizer) == ThinkingSplit()


def test_a_token_that_holds_the_end_of_the_mark_and_the_answer_has_no_boundary() -> None:
    class Wide(_Bytes):
        def token_bytes(self, token_id: int) -> bytes:
            return b">yes" if token_id == 0 else bytes([token_id])

    ids = [*b"<think>a</think", 0]
    split = split_ids(ids, "<think>a</think>yes", TAGS, Wide())
    assert (split.num_chars, split.num_tokens) == (len("<think>a</think>"), None)
