"""The day that a prompt names stays the conversation's; what a template does to the history is found out and said."""

from __future__ import annotations

import datetime

import pytest

from inference.errors import TemplateError
from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.tokenizer import Tokenizer
from inference.types import ChatMessage
from tests.inference import tiny_models as tiny
from tests.inference.test_chat_template_build import CHATS, reply, user
from tests.inference.tiny_tokenizers import byte_level_spec

DATED = "<|im_start|>system\nToday is {{ strftime_now('%d %B %Y') }}.<|im_end|>\n" + tiny.TEMPLATE.replace("\n", "\\n")
STRIPPING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% set c = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in c %}{% set c = c.split('</think>')[-1].lstrip() %}{% endif %}"
    "{{ c }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_the_day_stays_that_of_the_conversation() -> None:
    chat = ChatTemplate(Tokenizer(byte_level_spec()), DATED)
    day, messages = datetime.date(2025, 3, 7), [user("q"), reply([50]), user("r")]
    first = chat.build(messages[:1], today=day)
    second = chat.build(messages, today=day)
    assert second.ids[: len(first.ids) + 1].tolist() == [*first.ids.tolist(), 50]
    assert "Today is 07 March 2025." in chat.render(messages, today=day)
    assert chat.is_prefix_stable
    with pytest.raises(TemplateError, match="strftime_now"):
        chat.build(messages)


def test_the_public_head_is_that_of_the_day() -> None:
    chat = ChatTemplate(Tokenizer(byte_level_spec()), DATED)
    for day in (datetime.date(2025, 3, 7), datetime.date(2025, 11, 30), datetime.date(2025, 3, 7)):
        prompt = chat.build([user("q")], today=day)
        head = chat._tokenizer.decode(prompt.ids[: prompt.num_public_tokens].tolist())
        assert head == f"<|im_start|>system\nToday is {day:%d %B %Y}.<|im_end|>\n<|im_start|>"


def test_a_template_without_a_day_is_not_changed_by_one() -> None:
    for chat in CHATS.values():
        messages = [user("q"), reply([50]), user("r")]
        plain, dated = chat.build(messages), chat.build(messages, today=datetime.date(2025, 3, 7))
        assert plain.ids.tolist() == dated.ids.tolist()
        assert plain.num_public_tokens == dated.num_public_tokens


def test_what_a_template_does_to_the_history_is_said_in_sentences() -> None:
    tokenizer = Tokenizer(byte_level_spec())
    assert CHATS["ChatML"].history_notes == ()
    (trims,) = CHATS["trimming"].history_notes
    assert "trims" in str(trims)
    stripping = ChatTemplate(tokenizer, STRIPPING)
    (strips,) = stripping.history_notes
    assert "<think>" in str(strips)
    assert "replayed" in str(strips)
    ids = tokenizer.encode("<think>\nhm\n</think>\n\nyes")
    assert stripping.is_prefix_stable  # ids are never looked into ...
    prompt = stripping.build([user("q"), reply(ids), user("r")])
    assert prompt.ids[slice(*prompt.spans[1])].tolist() == ids
    text = stripping.build([user("q"), ChatMessage("assistant", "<think>\nhm\n</think>\n\nyes"), user("r")])
    assert tokenizer.decode(text.ids[slice(*text.spans[1])].tolist()) == "yes"  # ... and text is the template's


def test_a_template_that_rewrites_says_how_much_is_read_again() -> None:
    source = tiny.TEMPLATE.replace("m['content'] +", "m['content'] + ('!' if loop.last else '') +")
    chat = ChatTemplate(Tokenizer(byte_level_spec()), source)
    (note,) = chat.history_notes
    size = len(chat.build([user("1")]).ids) + 1
    shared = len(chat._tokenizer.encode("user\n1")) + 1  # up to the "!"
    assert f"of a short turn of {size} tokens, {size - shared} are read again" in str(note)
