"""A title by the model, once a new conversation has a reply: written beside the turns, and never in their way.

The model is given what the next turn will begin with and one instruction behind it, so it reads little more than that,
and the next turn finds all of its history as it was. Nobody waits for a title and nobody hears of one that fails: until
there is one that is good enough, the conversation is called by its first words. What a person chose stays.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID, uuid4

from django.conf import settings

from chatapp import executors, hints, llm, selectors
from chatapp.errors import ChatError, StorageUnavailable
from chatapp.models import MessageStatus, Role
from chatapp.services import conversations
from chatapp.text import is_blank
from chatapp.turn.past import first_day
from chatapp.turn.prompt import Plan, messages_after
from chatapp.turn.remains import purge_if_gone
from chatapp.turn.stream import Reply
from chatapp.turn.title_rules import MAX_TOKENS, Wording, accepted_title, wording

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3  # after the first reply, and the next two
PATIENCE_S = 300.0  # for a server that is never idle: the next reply brings another attempt

_running: dict[UUID, asyncio.Task[None]] = {}  # by conversation


@dataclass(frozen=True, slots=True)
class Question:
    """What the model is asked. num_lasting_tokens of the prompt are the conversation's."""

    prompt: llm.Prompt
    num_lasting_tokens: int
    sampling: llm.SamplingParams


def start(conversation_id: UUID, user_id: int, plan: Plan, reply: Reply, status: MessageStatus) -> None:
    """Have the conversation named after this reply, if it is one of its first and nobody has named it yet.

    An attempt that still waits is left alone: it gives way to turns by itself.
    """
    is_early = not plan.window.num_outside and len(_said(plan, Role.ASSISTANT)) < MAX_ATTEMPTS
    is_answered = status in (MessageStatus.DONE, MessageStatus.STOPPED) and not is_blank(reply.parts.answer)
    if not (settings.RECOLLECT_TITLES and is_early and is_answered) or conversation_id in _running:
        return
    task = asyncio.create_task(_name(conversation_id, user_id, plan, reply))
    _running[conversation_id] = task
    task.add_done_callback(lambda done: _running.pop(conversation_id, None))


def cancel_all() -> None:
    """The process is about to end."""
    for task in list(_running.values()):
        task.cancel()


async def _name(conversation_id: UUID, user_id: int, plan: Plan, reply: Reply) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            if not await executors.database(selectors.title_is_wanted, conversation_id, max_attempts=MAX_ATTEMPTS):
                return
            title = await _title(conversation_id, user_id, plan, reply)
        is_named = bool(title) and await executors.database(
            conversations.conversation_name, conversation_id=conversation_id, title=title
        )
        if is_named:
            await hints.aconversation_changed(user_id, conversation_id, title=title)
    except TimeoutError:
        logger.info("conversation %s: no title, the engine had no time", conversation_id)
    except ChatError as error:
        logger.info("conversation %s: no title, %s", conversation_id, error.code)
    finally:
        with suppress(StorageUnavailable):  # then the server finds it on disk (see kv_keeper)
            await purge_if_gone(conversation_id)


async def _title(conversation_id: UUID, user_id: int, plan: Plan, reply: Reply) -> str:
    """What the model calls it; "" if that is no good, or there is no room for the question. Raises ChatError."""
    said = _said(plan, Role.USER)
    asked = await executors.render(question, plan, reply, wording(said))
    if asked is None:
        logger.info("conversation %s: no title, its window is full", conversation_id)
        return ""
    written = await llm.aside(
        user_id=user_id,
        request_id=f"title {uuid4()}",
        prompt=asked.prompt,
        num_lasting_tokens=asked.num_lasting_tokens,
        sampling=asked.sampling,
        is_head_public=plan.is_head_public,
        model=plan.model,
        is_continuation=True,
        tags=(str(conversation_id),),
    )
    title = ""
    if written.finish_reason == llm.FinishReason.STOP:  # else it is cut
        title = accepted_title(written.text, said=said, answered=[*_said(plan, Role.ASSISTANT), reply.parts.answer])
    logger.info(
        "conversation %s: %s, prompt %d = %d ram + %d disk + %d computed, generated %d, %s",
        conversation_id,
        "named" if title else "no title",
        written.stats.num_prompt_tokens,
        written.stats.num_reused_ram,
        written.stats.num_reused_disk,
        written.stats.num_computed,
        written.stats.num_generated,
        written.finish_reason.value,
    )
    return title


def question(plan: Plan, reply: Reply, asked: Wording) -> Question | None:
    """The conversation and the instruction, the answer begun; None when the window has no room for them and a title.

    Without thinking, if that changes nothing about the conversation's part: some templates write the switch in front.
    Blocking. Raises EngineUnavailable, Invalid.
    """
    conversation = plan.conversation
    messages = [*messages_after(plan, reply), llm.ChatMessage(Role.USER.value, asked.instruction)]

    def build(is_thinking_off: bool) -> llm.Prompt:
        return llm.build_prompt(
            messages, model=plan.model, today=first_day(conversation), is_thinking_off=is_thinking_off
        )

    is_thinking_off = conversation.is_thinking_off
    prompt = build(is_thinking_off)
    num_lasting = prompt.spans[-1][0]
    quiet = build(True)
    if quiet.ids[:num_lasting].tolist() == prompt.ids[:num_lasting].tolist():
        prompt, is_thinking_off = quiet, True
    prompt = llm.answer_begun(prompt, asked.beginning, model=plan.model, is_thinking_off=is_thinking_off)
    if len(prompt.ids) + MAX_TOKENS > llm.window(plan.model):
        return None
    sampling = llm.SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, stop=asked.stop)
    return Question(prompt, num_lasting, sampling)


def _said(plan: Plan, role: Role) -> list[str]:
    return [message.content for message in plan.messages if message.role == role.value]
