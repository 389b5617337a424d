"""A reply in two parts: what is shown of it while it grows, never half a mark, and how long was thought."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chatapp.llm import ThinkingReader
from chatapp.markdown import render_blocks
from chatapp.thinking import thought_of
from chatapp.turn.stream import Reply, Sheet
from inference.tokenizer.thinking import ThinkingMarks
from tests.chatapp.fake_worker import THINKS, ByteTokenizer
from tests.examples import examples

TOKENIZER = ByteTokenizer()
SPELT = ThinkingMarks("<think>", "</think>")  # in ordinary tokens
OPENED = ThinkingMarks("<think>", "</think>", starts_open=True)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def reply_of(text: str, marks: ThinkingMarks = THINKS, **values: object) -> Reply:
    """A reply that has come token by token and has not ended."""
    reply = Reply(reader=ThinkingReader(marks, TOKENIZER), **values)  # type: ignore[arg-type]
    add(reply, text, marks)
    return reply


def add(reply: Reply, text: str, marks: ThinkingMarks = THINKS) -> None:
    ids = TOKENIZER.generated(text) if marks.close_id is not None else list(text.encode())
    for token in ids:
        reply.add((token,), TOKENIZER.decode([token]))


@pytest.mark.parametrize(
    ("text", "num_chars", "thought"),
    [
        ("yes", 0, ""),
        ("<think>\nhm\n</think>\n\nyes", 21, "hm"),
        ("hm\n</think>\n\nyes", 13, "hm"),
        ("<think>\nhm", 10, "hm"),
        ("<think>\n\n</think>\n\nyes", 19, ""),
        ("<think>a</think>\n<think>b</think>yes", 33, "a\n\nb"),
        ("[THINK]hm[/THINK]yes", 17, "hm"),
        ("<think>`<b>` & more</think>", 27, "`<b>` & more"),
    ],
)
def test_a_thought_is_shown_without_its_marks(text: str, num_chars: int, thought: str) -> None:
    assert thought_of(text, num_chars) == thought


def test_a_thought_full_of_white_space_takes_no_time() -> None:
    text = "<think>" + "\n" * 200_000 + "x"
    assert thought_of(text, len(text)) == "x"


@pytest.mark.parametrize("marks", [THINKS, SPELT])
def test_what_was_thought_and_what_is_answered(marks: ThinkingMarks) -> None:
    reply = reply_of("<think>\nhm", marks)
    assert (reply.parts.thought, reply.parts.answer, reply.parts.is_thinking) == ("hm", "", True)
    add(reply, "\n</think>\n\n", marks)
    assert (reply.parts.thought, reply.parts.answer, reply.parts.is_thinking) == ("hm", "", False)
    add(reply, "yes <think>no</think>", marks)
    assert (reply.parts.thought, reply.parts.answer, reply.parts.is_thinking) == ("hm", "yes <think>no</think>", False)
    assert (reply.split.num_chars, reply.split.num_tokens) == (21, 21 if marks is SPELT else 8)


def test_a_reply_that_was_cut_in_the_middle_of_its_thinking() -> None:
    reply = reply_of("<think>\nhm")
    reply.finish(tuple(reply.token_ids), "")
    assert (reply.parts.thought, reply.parts.answer, reply.parts.is_thinking) == ("hm", "", False)
    assert reply.split.is_open


def test_a_text_that_only_began_like_a_mark_is_shown_at_its_end() -> None:
    reply = reply_of("<thi", SPELT)
    assert reply.parts.answer == ""
    reply.finish(tuple(reply.token_ids), "")
    assert reply.parts.answer == "<thi"


def test_a_reply_without_ids_is_read_by_its_text() -> None:
    reply = Reply("<think>a", None, reader=ThinkingReader(THINKS, TOKENIZER))
    assert reply.parts.is_thinking
    reply.add((261,), "</think>")
    reply.add((262,), "yes")
    assert (reply.parts.thought, reply.parts.answer) == ("a", "yes")
    assert reply.split.num_tokens is None


def test_time_runs_from_the_first_token_to_the_mark() -> None:
    clock = Clock()
    reply = Reply(reader=ThinkingReader(THINKS, TOKENIZER), thinking_s=5.0, clock=clock)
    clock.now = 100.0
    add(reply, "<think>")
    clock.now = 103.5
    add(reply, "hm")
    assert reply.parts.thinking_ms == 0
    add(reply, "</think>")
    clock.now = 200.0
    add(reply, "yes")
    reply.finish((), "")
    assert reply.thinking_s == 8.5
    assert reply.parts.thinking_ms == 8500


def test_time_of_thinking_that_was_cut_runs_to_the_end() -> None:
    clock = Clock()
    reply = Reply(reader=ThinkingReader(OPENED, TOKENIZER), clock=clock)
    clock.now = 7.0
    add(reply, "hm", OPENED)
    clock.now = 9.0
    reply.finish((), "")
    assert reply.thinking_s == 2.0


PIECES = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "\n",
            "\n\n",
            "hm ",
            "<",
            "</thi",
            "- a\n- b\n",
            "```\ncode",
            "\n```\n",
            "| a |\n|---|\n",
            "[x]: /u\n",
            "see [x]",
            "# title\n",
        ]
    ),
    max_size=10,
)


@given(pieces=PIECES, marks=st.sampled_from([THINKS, SPELT, OPENED]))
@example(pieces=["</think>", "<think>"], marks=OPENED)
def test_a_terminal_is_told_each_part_once_and_in_order(pieces: list[str], marks: ThinkingMarks) -> None:
    reply = Reply(reader=ThinkingReader(marks, TOKENIZER))
    told = ["", ""]
    for piece in pieces:
        add(reply, piece, marks)
        told = [before + more for before, more in zip(told, reply.tell(), strict=True)]
    reply.finish(tuple(reply.token_ids), "")
    told = [before + more for before, more in zip(told, reply.tell(), strict=True)]
    assert told[1] == reply.parts.answer
    assert told[0].rstrip() == reply.parts.thought
    assert told[1] == reply.text[reply.split.num_chars :]


@settings(max_examples=examples(30), deadline=None)
@given(pieces=PIECES, marks=st.sampled_from([THINKS, OPENED]))
def test_the_blocks_of_both_parts_end_as_those_of_a_page(pieces: list[str], marks: ThinkingMarks) -> None:
    reply = Reply(reader=ThinkingReader(marks, TOKENIZER))
    sheet = Sheet()
    shown: list[str] = []

    def update(is_final: bool = False) -> None:
        changed, num_blocks = sheet.update(reply.parts, is_final)
        for block in changed:
            assert block.index <= len(shown)
            shown[block.index : block.index + 1] = [block.html]
        del shown[num_blocks:]
        assert shown == [block.html for block in sheet.blocks]

    for piece in pieces:
        add(reply, piece, marks)
        update()
    reply.finish(tuple(reply.token_ids), "")
    update(is_final=True)
    thought = render_blocks(thought_of(reply.text, reply.split.num_chars))
    assert shown == [*thought, *render_blocks(reply.text[reply.split.num_chars :])]
    assert (sheet.thinking.num_blocks if sheet.thinking else 0) == len(thought)
