"""The prompt of a turn: what of the path is sent, what is recalled, where a continued reply is taken up, how it is
sampled. What each message contributes is decided in past."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from django.conf import settings

from chatapp import llm
from chatapp.models import Conversation, Message, Role
from chatapp.search import Hit
from chatapp.turn.causes import Earlier
from chatapp.turn.context import Fit, Rules
from chatapp.turn.past import (
    Before,
    Past,
    Window,
    answer_of,
    first_day,
    fitted,
    model_of,
    rules_of,
    stored_ids,
    strips_thinking,
)
from chatapp.turn.recall import Recalled, quote
from chatapp.turn.sent import Outline, Part, outline_of
from chatapp.turn.stream import Reply
from chatapp.words import telling_words

logger = logging.getLogger(__name__)

REPLACEMENT = "\ufffd"  # what half a character decodes to
_MAX_HALF_TOKENS = 3  # a character has four bytes at most
_MAX_SEAM_TOKENS = 8  # two texts together may have more tokens than each by itself


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the engine needs for a turn. text and token_ids are the reply so far, empty unless it is continued.

    token_ids None: no ids stand for exactly that text, so none can be stored for the whole reply either.
    summary: what stands for the turns before, "" if nothing does. is_clipped: the window has less room for the reply
    than it may have. reader: tells thinking from the answer. outline: where the parts of the prompt lie, and what they
    are; earlier: what it is compared with, once the turn has ended.
    """

    conversation: Conversation
    messages: Sequence[llm.ChatMessage]  # what the prompt was made of
    prompt: llm.Prompt
    sampling: llm.SamplingParams
    is_head_public: bool
    token_fingerprint: str
    model: str
    outline: Outline
    num_reencoded: int = 0  # earlier replies that had to be encoded again
    text: str = ""
    token_ids: tuple[int, ...] | None = ()
    reader: llm.ThinkingReader | None = None
    window: Window = field(default_factory=Window)
    summary: str = ""
    is_clipped: bool = False
    recalled: Recalled | None = None  # to be stored with the question
    earlier: tuple[Earlier, ...] = ()


def plan_turn(
    past: Past,
    reply: Message,
    *,
    before: Before | None = None,
    find: Callable[[int], Sequence[Hit]] | None = None,
) -> Plan:
    """The prompt of a path to the question, and after it what `reply` holds already.

    before: what the turn goes on from. find: what among so many first messages of the path the question is about, if
    that is to be recalled.
    Blocking; touches no database but by `find`. Raises WindowFull, Invalid, EngineUnavailable.
    """
    conversation = past.conversation
    model = model_of(conversation)
    fingerprint = llm.token_fingerprint(model)
    sampling = llm.sampling_params(conversation.sampling)
    begun = _begun(reply, model, fingerprint) if reply.text else _Begun()
    rules = rules_of(conversation)
    past, fit = fitted(past, rules, begun.ids)
    window = past.window_from(fit.first, rules, before)
    recalled = _recalled(model, past.question.text, find(window.num_outside), rules, fit) if find else None
    if recalled is not None:
        past = past.with_context(recalled.text)
        fit = past.fit(replace(rules, is_cut=False), begun.ids, first=fit.first)
    messages = past.messages_from(fit.first)
    return Plan(
        conversation=conversation,
        messages=messages,
        prompt=fit.prompt,
        sampling=replace(
            sampling,
            max_tokens=fit.max_reply_tokens,
            seed=secrets.randbits(32) if sampling.seed is None else sampling.seed,
        ),
        is_head_public=has_public_head(conversation),
        token_fingerprint=fingerprint,
        model=model,
        outline=outline_of(
            fit.prompt,
            messages,
            past.rows_from(fit.first),
            begun=Part(reply.id, reply.position, is_encoded=not begun.is_replayed) if begun.ids else None,
            num_begun=len(begun.ids),
            dropped=begun.dropped,
            window_start=window.start,
            summary=window.summary,
        ),
        num_reencoded=past.num_reencoded,
        text=begun.text,
        # Of marks that were encoded again it cannot be told any more that they are some.
        token_ids=begun.ids
        if llm.decode(begun.ids, model=model) == begun.text and (begun.is_replayed or not reply.thinking_chars)
        else None,
        reader=llm.thinking_reader(model, is_thinking_off=conversation.is_thinking_off),
        window=window,
        summary=past.summary.text if past.summary is not None else "",
        is_clipped=fit.max_reply_tokens < rules.max_tokens,
        recalled=recalled,
    )


def _recalled(model: str, question: str, hits: Sequence[Hit], rules: Rules, fit: Fit) -> Recalled | None:
    """What is quoted in front of the question: as much as may be, and as there is room for."""
    max_tokens = min(settings.RECOLLECT_RECALL_TOKENS, rules.room - len(fit.prompt.ids) - _MAX_SEAM_TOKENS)
    count: Callable[[str], int] = lambda text: len(llm.encode(text, model=model))
    return quote(question, hits, telling_words(question), count=count, max_tokens=max_tokens)


def next_history(plan: Plan, reply: Reply) -> llm.Prompt | None:
    """What the next prompt of the conversation begins with, if thinking is taken out of this reply there.

    None if it is not: then all that has KV already. Blocking. Raises EngineUnavailable, Invalid.
    """
    conversation = plan.conversation
    if not reply.split.num_chars:
        return None
    messages = messages_after(plan, reply)
    if not messages[-1].is_stripped:
        return None
    return llm.build_history(
        messages,
        model=plan.model,
        today=first_day(conversation),
        is_thinking_off=conversation.is_thinking_off,
    )


def messages_after(plan: Plan, reply: Reply) -> list[llm.ChatMessage]:
    """A turn's messages and its reply as later prompts hold them. Blocking. Raises EngineUnavailable."""
    ids, split = tuple(reply.token_ids) or None, reply.split
    if ids is None or strips_thinking(plan.conversation):
        message = answer_of(reply.text, ids, split.num_chars, split.num_tokens or 0)
    else:
        message = llm.ChatMessage(Role.ASSISTANT.value, reply.text, ids)
    return [*plan.messages, message]


def has_public_head(conversation: Conversation) -> bool:
    """Whether its system prompt is everybody's. Without one the head is the template's own, the same for all."""
    return conversation.system_prompt_is_public or not conversation.system_prompt


@dataclass(frozen=True, slots=True)
class _Begun:
    """A reply that is continued: its text, and the ids that the model is given for it.

    is_replayed: it wrote these ids itself. dropped: ids that it wrote behind them, and will write again.
    """

    text: str = ""
    ids: tuple[int, ...] = ()
    is_replayed: bool = True
    dropped: tuple[int, ...] = ()


def _begun(reply: Message, model: str, fingerprint: str) -> _Begun:
    """What a reply holds already.

    Half a character at the end, where max_tokens had cut it, is left out: the model will write it again, whole.
    """
    ids = stored_ids(reply, model, fingerprint)
    is_replayed = ids is not None
    if ids is None:
        logger.info("message %s: continued from its text, its token ids are missing or another tokenizer's", reply.id)
        ids = tuple(llm.encode(reply.text, model=model))
    if reply.text.endswith(REPLACEMENT):
        for num_dropped in range(1, 1 + min(_MAX_HALF_TOKENS, len(ids))):
            kept, dropped = ids[: len(ids) - num_dropped], ids[len(ids) - num_dropped :]
            text = llm.decode(kept, model=model)
            if not text.endswith(REPLACEMENT) and reply.text.startswith(text):
                return _Begun(text, kept, is_replayed, dropped)
    return _Begun(reply.text, ids, is_replayed)
