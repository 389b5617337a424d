"""Prompts of thinking models: kept thinking is replayed id by id; what is taken away ends reuse exactly
where it stood, and what remains of the reply are its own ids.

Over random conversations, for templates of every kind, and replies that were cut anywhere.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.thinking import split_ids
from inference.types import ChatMessage
from tests.examples import examples
from tests.inference.test_thinking import chat_of
from tests.inference.test_token_identity import ANSWERS, QUESTIONS
from tests.inference.thinking_templates import THINKING

FAMILIES = ("qwen", "llama3")  # with the marks as control tokens, and in ordinary ones
NEXT = ChatMessage("user", "next")


@st.composite
def replies(draw: st.DrawFn, chat: ChatTemplate, is_thinking_off: bool) -> list[int]:
    """Ids as a thinking model writes them, marks as it writes them, cut anywhere."""
    tokenizer, marks = chat._tokenizer, chat.thinking_marks(is_thinking_off=is_thinking_off)
    assert marks is not None

    def mark(text: str) -> list[int]:
        known = tokenizer.special_tokens.get(text)
        return tokenizer.encode(text) if known is None else [known]

    ids: list[int] = []
    if marks.starts_open or draw(st.booleans()):
        ids += [] if marks.starts_open else mark(marks.open)
        ids += tokenizer.encode(draw(st.sampled_from(["", "\n", "\nhm", "half 😀", "a ```fence", "quote </think> it"])))
        ids += mark(marks.close) if draw(st.integers(0, 9)) else []
        ids += tokenizer.encode(draw(st.sampled_from(["", "\n", "\n\n"])))
    ids += tokenizer.encode(draw(st.sampled_from(ANSWERS) | st.text(max_size=12)))
    is_cut = draw(st.integers(0, 4)) == 0
    return ids[: draw(st.integers(0, len(ids)))] if is_cut else ids


def shared(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", THINKING)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_kept_thinking_makes_each_prompt_and_its_reply_begin_the_next(
    name: str, family: str, data: st.DataObject
) -> None:
    chat = chat_of(name, family)
    is_off = data.draw(st.booleans())
    messages: list[ChatMessage] = []
    kept: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        messages.append(ChatMessage("user", data.draw(QUESTIONS)))
        prompt = chat.build(messages, is_thinking_off=is_off)
        assert prompt.ids[: len(kept)].tolist() == kept
        ids = data.draw(replies(chat, is_off))
        messages.append(ChatMessage("assistant", chat._tokenizer.decode(ids), tuple(ids)))
        kept = [*prompt.ids.tolist(), *ids]
    after = chat.build([*messages, NEXT], is_thinking_off=is_off)
    assert after.ids[: len(kept)].tolist() == kept


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", THINKING)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_stripped_thinking_ends_reuse_exactly_where_it_stood(name: str, family: str, data: st.DataObject) -> None:
    chat = chat_of(name, family)
    tokenizer, marks = chat._tokenizer, chat.thinking_marks()
    assert marks is not None
    messages: list[ChatMessage] = []
    for _ in range(data.draw(st.integers(1, 4))):
        messages.append(ChatMessage("user", data.draw(QUESTIONS)))
        prompt = chat.build(messages)
        ids = data.draw(replies(chat, is_thinking_off=False))
        text = tokenizer.decode(ids)
        split = split_ids(ids, text, marks, tokenizer)
        is_stripped = bool(split.num_chars and not split.is_open and split.num_tokens and text[split.num_chars :])
        answer = ids[split.num_tokens :] if is_stripped else ids
        kept = [*prompt.ids.tolist(), *ids]
        messages.append(ChatMessage("assistant", text, tuple(answer), is_stripped))
        after = chat.build([*messages, NEXT])
        start, stop = after.spans[-2]
        assert after.ids[start:stop].tolist() == answer
        assert after.ids[:start].tolist() == kept[:start]
        if not is_stripped:
            assert shared(kept, after.ids.tolist()) >= len(kept)
        elif answer[0] != kept[start]:
            assert shared(kept, after.ids.tolist()) == start


@pytest.mark.parametrize("name", THINKING)
def test_a_mark_in_a_persons_text_is_never_a_control_token(name: str) -> None:
    chat = chat_of(name)
    controls = {chat._tokenizer.special_tokens[text] for text in ("<think>", "</think>")}
    for text in ("<think>", "</think>", "a</think>b", "<think>x", "</thi", "nk>"):
        for messages in ([ChatMessage("user", text)], [ChatMessage("system", text), ChatMessage("user", "a")]):
            prompt = chat.build([*messages, ChatMessage("assistant", text), ChatMessage("user", text)])
            for start, stop in prompt.spans:
                assert not controls & set(prompt.ids[start:stop].tolist())
