"""Where a template rewrites what was said, no more is read again than what it rewrites, and the reason is recorded."""

from __future__ import annotations

from functools import cache
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.tokenizer import Tokenizer
from inference.types import ChatMessage
from tests.examples import examples
from tests.inference.test_token_identity import DAY, MISTRAL, PHI3, replies
from tests.inference.trained_tokenizers import spec_of

LAST_IS_MARKED = PHI3.replace("+ m.content +", "+ m.content + (' (new)' if loop.last else '') +")
COUNTS = "{{ '<|begin|>' }}{{ messages | length }} messages" + PHI3
REWRITING = {  # tokenizer and template, and from where on a later prompt differs
    "moves the system prompt": ("metaspace", MISTRAL, "the newest question"),
    "marks the newest message": ("phi3", LAST_IS_MARKED, "the newest question"),
    "counts the messages": ("llama3", COUNTS, "the head"),
}


@cache
def chat_of(name: str) -> ChatTemplate:
    family, source, _ = REWRITING[name]
    return ChatTemplate(Tokenizer(spec_of(family)), source)


def num_shared(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@pytest.mark.parametrize("name", REWRITING)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_what_stands_before_the_rewritten_place_is_kept(name: str, data: st.DataObject) -> None:
    chat = chat_of(name)
    tokenizer = chat._tokenizer
    controls = set(tokenizer.special_tokens.values())
    messages = [ChatMessage("system", "Be kind.")]
    for _ in range(data.draw(st.integers(1, 4))):
        messages.append(ChatMessage("user", data.draw(st.text("abc ", min_size=1, max_size=9))))
        prompt = chat.build(messages, today=DAY)
        ids = data.draw(replies(tokenizer, chat.stop_token_ids))
        messages.append(ChatMessage("assistant", tokenizer.decode(ids), tuple(ids)))
    kept = [*prompt.ids.tolist(), *ids]
    later = chat.build([*messages, ChatMessage("user", "next")], today=DAY).ids.tolist()
    shared = num_shared(kept, later)
    if REWRITING[name][2] == "the head":
        assert not controls & set(kept[1:shared])
    elif len(prompt.spans) > 2:  # of the turns before the newest question nothing
        assert shared >= prompt.spans[-2][1]
        assert shared < len(kept)


@pytest.mark.parametrize("name", REWRITING)
def test_the_reason_is_recorded_with_its_price(name: str) -> None:
    chat = chat_of(name)
    assert not chat.is_prefix_stable
    assert any("are read again" in str(note) for note in chat.history_notes)
