"""Where messages lie in a prompt, which templates need not be shown them, and how much of a prompt is public."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.sandbox import Sandbox
from inference.types import ChatMessage
from tests.examples import examples
from tests.inference.test_chat_template_build import CHATS, hostile, ordinary, reply, user

# --- where messages lie -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["user", "assistant", "\n", "system", "a", "  padded  ", "", "？"])
def test_a_span_holds_its_message_and_not_the_like_of_it_in_the_template(text: str) -> None:
    chat = CHATS["ChatML"]
    prompt = chat.build([user(text), user("user"), reply([]), user(text)])
    tokenizer = chat._tokenizer
    found = [tokenizer.decode(prompt.ids[start:stop].tolist()) for start, stop in prompt.spans]
    assert found == [text, "user", "", text]
    assert list(prompt.spans) == sorted(prompt.spans)


def test_what_a_template_trims_or_leaves_out_has_a_shorter_span() -> None:
    chat = CHATS["trimming"]
    prompt = chat.build([user("  hello \n"), user("   "), user("x")])
    tokenizer = chat._tokenizer
    found = [tokenizer.decode(prompt.ids[start:stop].tolist()).strip() for start, stop in prompt.spans]
    assert found == ["hello", "", "x"]
    last_only = ChatTemplate(chat._tokenizer, "<|im_start|>{{ messages[-1].content }}<|im_end|>")
    spans = last_only.build([user("a"), user("hello")]).spans
    assert spans[0][0] == spans[0][1]
    assert spans[1] == (1, 2)


@pytest.mark.parametrize("name", ["ChatML", "Zephyr"])
@settings(max_examples=examples(200), deadline=None)
@given(
    messages=st.lists(
        st.builds(
            ChatMessage,
            role=st.sampled_from(["system", "user", "assistant"]),
            content=hostile | st.text(" \nab", max_size=5),
            token_ids=st.none() | st.just((50, 2, 51)) | st.just(()),
        ),
        min_size=1,
        max_size=6,
    ),
    add_generation_prompt=st.booleans(),
)
def test_not_showing_contents_to_a_template_that_ignores_them_changes_nothing(
    name: str, messages: list[ChatMessage], add_generation_prompt: bool
) -> None:
    quick = CHATS[name]
    careful = ChatTemplate(quick._tokenizer, quick.source)
    careful._sandbox.is_transparent = False
    assert quick._sandbox.is_transparent
    ours, theirs = (chat.build(messages, add_generation_prompt=add_generation_prompt) for chat in (quick, careful))
    assert ours.ids.tolist() == theirs.ids.tolist()
    assert ours.spans == theirs.spans
    assert ours.num_public_tokens == theirs.num_public_tokens


LOOKING = [
    "{% for m in messages %}{{ m.content | trim }}{% endfor %}",
    "{% for m in messages %}{% if m.content %}x{% endif %}{% endfor %}",
    "{% for m in messages %}{{ 'x' if 'a' in m.content }}{% endfor %}",
    "{% for m in messages %}{% set c = m.content %}{{ c }}{% endfor %}",
    "{% for m in messages %}{{ m.content[1:] }}{% endfor %}",
    "{% for m in messages %}{{ m.content * 2 }}{% endfor %}",
    "{% for m in messages %}{{ m.content.strip() }}{% endfor %}",
    "{% for m in messages %}{{ m['con' + 'tent'] | upper }}{% endfor %}",
    "{% for m in messages %}{{ m }}{% endfor %}",
    "{% for m in messages %}{{ loop.previtem.content | upper }}{% endfor %}",
    "{% for m in messages %}{% filter upper %}{{ m.content }}{% endfilter %}{% endfor %}",
    "{% for m in messages %}{% set x %}{{ m.content }}{% endset %}{{ x }}{% endfor %}",
    "{% macro f(m) %}{{ m.content }}{% endmacro %}{% for m in messages %}{{ f(m) }}{% endfor %}",
    "{% for m in messages[1:] %}{{ m.content | trim }}{% endfor %}",
    "{% set ms = messages %}{% for m in ms %}{{ m.content | trim }}{% endfor %}",
    "{% for m in messages | reverse %}{{ m.content | trim }}{% endfor %}",
    "{% for m in messages %}{% set m = 'x' %}{{ m }}{% endfor %}",
    "{{ messages[0].content | trim }}",
    "{{ messages | tojson }}",
    "{% for k, v in messages[0].items() %}{{ v | trim }}{% endfor %}",
]


@pytest.mark.parametrize("source", LOOKING)
def test_a_template_that_looks_at_contents_is_shown_them(source: str) -> None:
    assert not Sandbox(source).is_transparent


# --- what is public ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHATS)
@settings(max_examples=examples(100), deadline=None)
@given(first=hostile, others=st.lists(hostile, max_size=3), system=st.none() | ordinary)
def test_the_public_head_is_the_same_for_everybody(
    name: str, first: str, others: list[str], system: str | None
) -> None:
    chat = CHATS[name]
    leading = [] if system is None else [ChatMessage("system", system)]
    mine = chat.build([*leading, user("hello")])
    theirs = chat.build([*leading, user(first), *(ChatMessage("assistant", text) for text in others)])
    num_public = mine.num_public_tokens
    assert theirs.num_public_tokens == num_public
    assert theirs.ids[:num_public].tolist() == mine.ids[:num_public].tolist()
    assert num_public <= mine.spans[len(leading)][0]
    if leading:
        assert num_public >= mine.spans[0][1]


def test_the_public_head_ends_before_the_role_of_the_first_private_message() -> None:
    chat = CHATS["ChatML"]
    prompt = chat.build([ChatMessage("system", "Be kind."), user("hello")])
    assert chat._tokenizer.decode(prompt.ids[: prompt.num_public_tokens].tolist()) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>"
    )
    written = dataclasses.replace(ChatMessage("system", "x"), token_ids=(50,))
    assert chat.build([written, user("hello")]).num_public_tokens == 0


def test_a_private_system_prompt_makes_no_public_head() -> None:
    chat = CHATS["ChatML"]
    system = ChatMessage("system", "Be brief.")
    shared = chat.build([system, user("Hi")])
    private = chat.build([dataclasses.replace(system, is_private=True), user("Hi")])
    assert shared.num_public_tokens > 0
    assert private.num_public_tokens == 0
    assert private.ids.tolist() == shared.ids.tolist()


@pytest.mark.parametrize(
    ("source", "takes"),
    [
        (CHATS["ChatML"].source, True),
        ("{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.content }}{% endfor %}", False),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}", False),
    ],
)
def test_whether_there_is_a_place_for_a_system_prompt_is_found_out(source: str, takes: bool) -> None:
    assert ChatTemplate(CHATS["ChatML"]._tokenizer, source).takes_system_prompt is takes
