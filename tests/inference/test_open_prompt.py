"""A prompt whose last message is being written equals the one that is built as a whole, token for token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.tokenizer import Tokenizer
from inference.types import ChatMessage, Prompt
from tests.examples import examples
from tests.inference import tiny_models as tiny
from tests.inference.test_chat_template_build import CHATS, CONTROLS, default_chat, reply, user
from tests.inference.thinking_templates import SWITCHED
from tests.inference.tiny_tokenizers import byte_level_spec, sentencepiece_spec

__all__ = ["default_chat"]  # a fixture
# Nothing but text around the messages; a system prompt in the first question, as Llama 2 has it.
PLAIN = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}{{ 'assistant:' }}"
FOLDED = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ bos_token + '<|im_start|>[' + m.content + '] ' }}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
)
REVERSED = "{% for m in messages | reverse %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}"
ALL = {
    **CHATS,
    "plain": ChatTemplate(Tokenizer(sentencepiece_spec()), PLAIN),
    "folded": ChatTemplate(Tokenizer(byte_level_spec()), FOLDED),
    "reversed": ChatTemplate(Tokenizer(byte_level_spec()), REVERSED),
    "thinking": ChatTemplate(Tokenizer(byte_level_spec()), SWITCHED),
}
texts = st.text(st.sampled_from("ab <|>\n\té界\ue000"), max_size=12) | st.text(max_size=20)
texts |= st.lists(st.sampled_from([*CONTROLS, " ", "x", "\n", "界", "\ue0000\ue000"]), max_size=5).map("".join)
turns = st.lists(st.tuples(texts, st.lists(st.integers(3, 40), max_size=5)), max_size=4)


def same(found: Prompt, expected: Prompt) -> bool:
    return (
        np.array_equal(found.ids, expected.ids)
        and found.ids.dtype == expected.ids.dtype
        and found.spans == expected.spans
        and found.num_public_tokens == expected.num_public_tokens
    )


@pytest.mark.parametrize("name", ALL)
@given(system=st.none() | texts, said=turns, drafts=st.lists(texts, min_size=1, max_size=4), is_private=st.booleans())
@settings(max_examples=examples(150))
def test_any_draft_gives_the_prompt_of_all_messages(
    name: str, system: str | None, said: Any, drafts: list[str], is_private: bool
) -> None:
    chat = ALL[name]
    head = [] if system is None else [ChatMessage("system", system, is_private=is_private)]
    earlier = [*head, *(message for text, ids in said for message in (user(text), reply(ids)))]
    opened = chat.open([*earlier, user("?")])
    for draft in drafts:
        assert same(opened.prompt(draft), chat.build([*earlier, user(draft)])), draft


@pytest.mark.model
@given(said=turns, draft=texts)
@example([("Hello", [5, 6])], "What")
@settings(max_examples=examples(50))
def test_on_the_default_model_a_draft_costs_no_rendering(default_chat: ChatTemplate, said: Any, draft: str) -> None:
    earlier = [ChatMessage("system", "Be kind."), *(m for text, ids in said for m in (user(text), reply(ids)))]
    opened = default_chat.open([*earlier, user("?")])
    assert opened.is_cheap
    assert same(opened.prompt(draft), default_chat.build([*earlier, user(draft)]))


def test_where_others_are_encoded_along_with_it_all_is_built_anew() -> None:
    cheap = {name for name, chat in ALL.items() if chat.open([user("a"), reply([5]), user("?")]).is_cheap}
    assert cheap == {"ChatML", "Zephyr", "folded", "plain"}
    assert not ALL["plain"].open([user("a"), user("?")]).is_cheap
    system = ChatMessage("system", tiny.TEMPLATE)
    assert not ALL["folded"].open([system, user("?")]).is_cheap
