"""Rows to a prompt: which text or ids each message contributes, where a continued reply is taken up, how it is sampled.

A reply contributes the ids that the model generated, as long as tokenizer and template are those that made them:
encoding its text again gives other ids often enough to lose the cached KV of everything behind it. Text of people is
encoded as plain text by the template's room; control tokens in it stay text.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

from django.utils import timezone

from chatapp import llm
from chatapp.models import Conversation, Message, MessageStatus, Role
from chatapp.selectors import HistoryMessage
from chatapp.turn.context import fit_full

logger = logging.getLogger(__name__)

REPLACEMENT = "\ufffd"  # what half a character decodes to
_MAX_HALF_TOKENS = 3  # a character has four bytes at most
_MAX_HELD_BACK = 64  # tokens whose text was not shown yet when a reply was cut off; more than any stop string has


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the engine needs for a turn. text and token_ids are the reply so far, empty unless it is continued.

    token_ids None: no ids stand for exactly that text, so none can be stored for the whole reply either.
    """

    prompt: llm.Prompt
    sampling: llm.SamplingParams
    is_head_public: bool
    token_fingerprint: str
    model: str
    is_model_changed: bool = False  # another one answered before
    num_reencoded: int = 0  # earlier replies that had to be encoded again
    text: str = ""
    token_ids: tuple[int, ...] | None = ()


def plan_turn(
    conversation: Conversation, history: Sequence[HistoryMessage], reply: Message, *, model_before: str = ""
) -> Plan:
    """The prompt of `history` (first message to the question) and, after it, what `reply` holds already.

    model_before: whose KV it could build on; "": nobody's.
    Blocking, touches no database. Raises WindowFull, Invalid, EngineUnavailable.
    """
    model = model_of(conversation)
    fingerprint = llm.token_fingerprint(model)
    sampling = llm.sampling_params(conversation.sampling)
    text, begun = _begun(reply, model, fingerprint) if reply.text else ("", ())
    replayed = replay(conversation, history)

    def build(messages: Sequence[llm.ChatMessage]) -> llm.Prompt:
        prompt = llm.build_prompt(messages, model=model, today=first_day(conversation))
        return llm.extended(prompt, begun) if begun else prompt

    fit = fit_full(
        replayed.messages,
        build=build,
        window=llm.window(model),
        max_tokens=sampling.max_tokens,
    )
    return Plan(
        prompt=fit.prompt,
        sampling=replace(
            sampling,
            max_tokens=fit.max_reply_tokens,
            seed=secrets.randbits(32) if sampling.seed is None else sampling.seed,
        ),
        is_head_public=has_public_head(conversation),
        token_fingerprint=fingerprint,
        model=model,
        is_model_changed=model_before not in ("", model),
        num_reencoded=replayed.num_reencoded,
        text=text,
        token_ids=begun if llm.decode(begun, model=model) == text else None,
    )


def model_of(conversation: Conversation) -> str:
    """The name of the model that answers."""
    return conversation.model_name or llm.default_model()


def first_day(conversation: Conversation) -> date:
    """For templates that write the date in front of the history: another day there, and none of it could be reused."""
    return timezone.localdate(conversation.created_at, timezone.get_default_timezone())


def has_public_head(conversation: Conversation) -> bool:
    """Whether its system prompt is everybody's. Without one the head is the template's own, the same for all."""
    return conversation.system_prompt_is_public or not conversation.system_prompt


@dataclass(frozen=True, slots=True)
class Replay:
    """The history as a model is given it. num_reencoded: replies whose ids are missing or another tokenizer's."""

    messages: list[llm.ChatMessage]
    num_reencoded: int


def replay(conversation: Conversation, history: Sequence[HistoryMessage]) -> Replay:
    """What the conversation's model is given of it. Blocking. Raises EngineUnavailable."""
    model = model_of(conversation)
    fingerprint = llm.token_fingerprint(model)
    messages = [llm.ChatMessage("system", conversation.system_prompt)] if conversation.system_prompt else []
    num_reencoded = 0
    for message in history:
        ids = _stored_ids(message, model, fingerprint) if message.role == Role.ASSISTANT else None
        num_reencoded += message.role == Role.ASSISTANT and ids is None and bool(message.text)
        messages.append(llm.ChatMessage(message.role, message.text, ids))
    if num_reencoded:
        logger.info(
            "conversation %s: %d of %d messages encoded again, their token ids are missing or another tokenizer's",
            conversation.id,
            num_reencoded,
            len(history),
        )
    return Replay(messages, num_reencoded)


def _begun(reply: Message, model: str, fingerprint: str) -> tuple[str, tuple[int, ...]]:
    """The text of a reply that is continued, and the ids that the model is given for it.

    Half a character at the end, where max_tokens had cut it, is left out: the model will write it again, whole.
    """
    ids = _stored_ids(reply, model, fingerprint)
    if ids is None:
        logger.info("message %s: continued from its text, its token ids are missing or another tokenizer's", reply.id)
        ids = tuple(llm.encode(reply.text, model=model))
    if reply.text.endswith(REPLACEMENT):
        for num_dropped in range(1, 1 + min(_MAX_HALF_TOKENS, len(ids))):
            kept = ids[: len(ids) - num_dropped]
            text = llm.decode(kept, model=model)
            if not text.endswith(REPLACEMENT) and reply.text.startswith(text):
                return text, kept
    return reply.text, ids


def _stored_ids(message: HistoryMessage | Message, model: str, fingerprint: str) -> tuple[int, ...] | None:
    """The ids that the model generated for this text; None when they are missing or stand for something else."""
    ids = message.ids if message.token_fingerprint == fingerprint else None
    if ids is None:
        return None
    if message.status in (MessageStatus.DONE, MessageStatus.STOPPED):
        return ids  # the engine vouched for them
    # Saved in mid-reply: ids run ahead of the text by what was held back (half a character, half a stop string).
    for num_dropped in range(min(_MAX_HELD_BACK, len(ids))):
        kept = ids[: len(ids) - num_dropped]
        if llm.decode(kept, model=model) == message.text:
            return kept
    return None
