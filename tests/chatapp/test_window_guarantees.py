"""What holds for every prompt: conversations, tokenizers, templates, windows and policies by chance.

The rows are made in memory; the planning is that of a turn.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import event, given
from hypothesis import strategies as st

from chatapp import llm
from chatapp.errors import WindowFull
from chatapp.models import ContextPolicy, Conversation, Message, Role
from chatapp.search import Hit
from chatapp.selectors import HistoryMessage, SummaryText
from chatapp.turn.past import Past, Read, rules_of
from chatapp.turn.prompt import Plan, plan_turn
from inference.engine.worker import Worker
from inference.tokenizer.chat_template import ChatTemplate
from inference.tokenizer.tokenizer import Tokenizer
from tests.data.texts import CORPUS
from tests.inference.trained_tokenizers import FAMILIES, spec_of

CHATML = (
    "{% for m in messages %}{{ '<|turn|>' + m.role + '\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant\n' }}{% endif %}"
)
WITH_A_PROMPT_OF_ITS_OWN = "{% if messages[0].role != 'system' %}<|turn|>system\nBe kind.<|end|>\n{% endif %}" + CHATML
TRIMMING = (
    "{{ bos_token }}{% for m in messages %}{{ '[' + m.role + '] ' + m.content | trim + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
)
SYSTEM_IN_THE_FIRST_QUESTION = (
    "{% if messages[0].role == 'system' %}{% set head = messages[0].content + '\n\n' %}{% set talk = messages[1:] %}"
    "{% else %}{% set head = '' %}{% set talk = messages %}{% endif %}{{ bos_token }}{% for m in talk %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + (head if loop.first else '') + m.content | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content | trim + eos_token }}{% endif %}{% endfor %}"
)
TEMPLATES = (CHATML, WITH_A_PROMPT_OF_ITS_OWN, TRIMMING, SYSTEM_IN_THE_FIRST_QUESTION)
SAID = [text for text in CORPUS if text.strip() and "\0" not in text]  # in many languages and scripts
TEXTS = st.tuples(st.sampled_from(SAID), st.integers(1, 12)).map(lambda said: " ".join([said[0]] * said[1]))
MODEL = "by chance"


@dataclass(frozen=True)
class Talk:
    """A conversation and its newest question, as they are read from the database."""

    conversation: Conversation
    read: Read
    hits: list[Hit]

    @property
    def question(self) -> str:
        return self.read.messages[-1].text

    def plan(self) -> Plan:
        reply = Message(role=Role.ASSISTANT, position=len(self.read.messages))
        is_recalled = self.conversation.has_recall
        return plan_turn(Past(self.conversation, self.read), reply, find=self.found if is_recalled else None)

    def found(self, num_outside: int) -> list[Hit]:
        return [hit for hit in self.hits if hit.position < num_outside]


@cache
def tokenizer_of(family: str) -> Tokenizer:
    return Tokenizer(spec_of(family))


@cache
def chat_template(family: str, template: str) -> ChatTemplate:
    return ChatTemplate(tokenizer_of(family), template)


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    """Behind the door: a model of which only tokenizer, template and window are looked at, each time anew."""
    model: Any = SimpleNamespace(name=MODEL, is_current=True, memory_bytes=0)
    llm.shutdown()
    llm.start(Worker(lambda name: model, max_bytes=1 << 30), default_model=MODEL)
    yield model
    assert llm.shutdown()
    llm.host.handle.worker = None


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    turns = draw(st.lists(st.tuples(TEXTS, TEXTS), max_size=30))
    texts = [text for turn in turns for text in turn] + [draw(TEXTS)]
    rows = [
        HistoryMessage(uuid.uuid4(), at, Role.ASSISTANT if at % 2 else Role.USER, text, "done", None, "", 0, 0, None)
        for at, text in enumerate(texts)
    ]
    ends = draw(st.lists(st.integers(0, max(0, len(turns) - 1)), max_size=2, unique=True).map(sorted)) if turns else []
    conversation = Conversation(
        id=uuid.uuid4(),
        created_at=timezone.now(),
        system_prompt=draw(st.just("") | TEXTS),
        sampling={"max_tokens": draw(st.integers(1, 700))},
        context_policy=draw(st.sampled_from(ContextPolicy.values)),
        recent_tokens=draw(st.integers(16, 2000)),
        has_recall=draw(st.booleans()),
    )
    return Talk(
        conversation,
        Read(rows, [SummaryText(uuid.uuid4(), rows[2 * end + 1].id, 2 * end + 1, draw(TEXTS)) for end in ends]),
        [Hit(row.id, row.position, row.role, row.text, 1.0 + row.position % 3) for row in rows[:-1]],
    )


@given(talks(), st.sampled_from(sorted(FAMILIES)), st.sampled_from(TEMPLATES), st.integers(200, 4000))
def test_every_prompt_leaves_room_for_its_reply_or_is_refused_with_true_numbers(
    opened: Any, talk: Talk, family: str, template: str, window: int
) -> None:
    opened.tokenizer, opened.chat_template = tokenizer_of(family), chat_template(family, template)
    opened.max_model_len = window
    rules = rules_of(talk.conversation)
    try:
        plan = talk.plan()
    except WindowFull as error:
        event("refused")
        check_refusal(talk, error, window)
        return
    event(f"{talk.conversation.context_policy}: {'cut' if plan.window.num_outside else 'whole'}")
    event(f"recalled: {plan.recalled is not None}, summary: {plan.window.summary is not None}")
    built = llm.build_prompt(plan.messages, model=MODEL, today=timezone.localdate(talk.conversation.created_at))
    assert plan.prompt.ids.tolist() == built.ids.tolist(), "counted is what is rendered"
    assert len(plan.prompt.ids) + rules.reserve <= window
    assert rules.reserve <= plan.sampling.max_tokens <= window - len(plan.prompt.ids)
    assert plan.is_clipped == (plan.sampling.max_tokens < talk.conversation.sampling["max_tokens"])
    check_messages(talk, plan)


def check_messages(talk: Talk, plan: Plan) -> None:
    """The system prompt and the question are whole; between them stand whole turns, the newest ones, none left out."""
    rows, outside = talk.read.messages, plan.window.num_outside
    assert outside % 2 == 0
    if talk.conversation.context_policy == ContextPolicy.FULL:
        assert outside == 0
    head, sent = [], list(plan.messages)
    if sent[0].role == "system":
        head = [sent.pop(0).content]
    if talk.conversation.system_prompt:
        assert head[0].startswith(talk.conversation.system_prompt)
    assert [message.role for message in sent] == [row.role for row in rows[outside:]]
    assert all(message.content.endswith(row.text) for message, row in zip(sent, rows[outside:], strict=True))
    assert all(message.content == row.text for message, row in zip(sent[1:-1], rows[outside + 1 : -1], strict=True))
    if plan.recalled is not None:
        places = {row.id: row.position for row in rows}
        assert all(places[source] < outside for source in plan.recalled.sources)
        assert plan.recalled.text in sent[-1].content


def check_refusal(talk: Talk, error: WindowFull, window: int) -> None:
    """Nothing that the policy lets leave would have helped."""
    is_cut = talk.conversation.context_policy != ContextPolicy.FULL
    rows = talk.read.messages[-1:] if is_cut else talk.read.messages
    system = talk.conversation.system_prompt
    least = llm.build_prompt(
        [
            *([llm.ChatMessage("system", system)] if system else []),
            *(llm.ChatMessage(row.role, row.text) for row in rows),
        ],
        model=MODEL,
        today=timezone.localdate(talk.conversation.created_at),
    )
    assert error.detail["window"] == window
    assert error.detail["num_prompt_tokens"] == len(least.ids)
    assert len(least.ids) + error.detail["num_reserved_tokens"] > window
