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
    text: str = ""
    token_ids: tuple[int, ...] | None = ()


def plan_turn(conversation: Conversation, history: Sequence[HistoryMessage], reply: Message) -> Plan:
    """The prompt of `history` (first message to the question) and, after it, what `reply` holds already.

    Blocking, touches no database. Raises WindowFull, Invalid, EngineUnavailable.
    """
    fingerprint = llm.token_fingerprint()
    sampling = llm.sampling_params(conversation.sampling)
    text, begun = _begun(reply, fingerprint) if reply.text else ("", ())
    # For templates that write the date in front of the history: another day there, and none of it could be reused.
    started_on = timezone.localdate(conversation.created_at, timezone.get_default_timezone())

    def build(messages: Sequence[llm.ChatMessage]) -> llm.Prompt:
        prompt = llm.build_prompt(messages, today=started_on)
        return llm.extended(prompt, begun) if begun else prompt

    fit = fit_full(
        _chat_messages(conversation, history, fingerprint),
        build=build,
        window=llm.window(),
        max_tokens=sampling.max_tokens,
    )
    return Plan(
        prompt=fit.prompt,
        sampling=replace(
            sampling,
            max_tokens=fit.max_reply_tokens,
            seed=secrets.randbits(32) if sampling.seed is None else sampling.seed,
        ),
        # Without a system prompt the head is the template's own, the same for everybody.
        is_head_public=conversation.system_prompt_is_public or not conversation.system_prompt,
        token_fingerprint=fingerprint,
        text=text,
        token_ids=begun if llm.decode(begun) == text else None,
    )


def _chat_messages(
    conversation: Conversation, history: Sequence[HistoryMessage], fingerprint: str
) -> list[llm.ChatMessage]:
    messages = [llm.ChatMessage("system", conversation.system_prompt)] if conversation.system_prompt else []
    num_reencoded = 0
    for message in history:
        ids = _stored_ids(message, fingerprint) if message.role == Role.ASSISTANT else None
        num_reencoded += message.role == Role.ASSISTANT and ids is None and bool(message.text)
        messages.append(llm.ChatMessage(message.role, message.text, ids))
    if num_reencoded:
        logger.info(
            "conversation %s: %d of %d messages encoded again, their token ids are missing or another tokenizer's",
            conversation.id,
            num_reencoded,
            len(history),
        )
    return messages


def _begun(reply: Message, fingerprint: str) -> tuple[str, tuple[int, ...]]:
    """The text of a reply that is continued, and the ids that the model is given for it.

    Half a character at the end, where max_tokens had cut it, is left out: the model will write it again, whole.
    """
    ids = _stored_ids(reply, fingerprint)
    if ids is None:
        logger.info("message %s: continued from its text, its token ids are missing or another tokenizer's", reply.id)
        ids = tuple(llm.encode(reply.text))
    if reply.text.endswith(REPLACEMENT):
        for num_dropped in range(1, 1 + min(_MAX_HALF_TOKENS, len(ids))):
            kept = ids[: len(ids) - num_dropped]
            text = llm.decode(kept)
            if not text.endswith(REPLACEMENT) and reply.text.startswith(text):
                return text, kept
    return reply.text, ids


def _stored_ids(message: HistoryMessage | Message, fingerprint: str) -> tuple[int, ...] | None:
    """The ids that the model generated for this text; None when they are missing or stand for something else."""
    ids = message.ids if message.token_fingerprint == fingerprint else None
    if ids is None:
        return None
    if message.status in (MessageStatus.DONE, MessageStatus.STOPPED):
        return ids  # the engine vouched for them
    # Saved in mid-reply: ids run ahead of the text by what was held back (half a character, half a stop string).
    for num_dropped in range(min(_MAX_HELD_BACK, len(ids))):
        kept = ids[: len(ids) - num_dropped]
        if llm.decode(kept) == message.text:
            return kept
    return None
