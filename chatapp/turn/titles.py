"""A title by the model, once a new conversation has a reply.

Until there is one that is good enough, the conversation is called by its first words. What a person chose stays.
"""

from __future__ import annotations

import logging
from uuid import UUID

from django.conf import settings

from chatapp import executors, hints, llm, selectors
from chatapp.models import MessageStatus, Role
from chatapp.services import conversations
from chatapp.text import is_blank
from chatapp.turn.past import first_day
from chatapp.turn.prompt import Plan, messages_after
from chatapp.turn.side_work import Question, SideWork
from chatapp.turn.stream import Reply
from chatapp.turn.title_rules import MAX_TOKENS, Wording, accepted_title, wording

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3  # after the first reply, and the next two

work = SideWork("title", patience_s=300.0)


def start(conversation_id: UUID, user_id: int, plan: Plan, reply: Reply, status: MessageStatus) -> None:
    """Have the conversation named after this reply, if it is one of its first and nobody has named it yet.

    An attempt that still waits is left alone: it gives way to turns by itself.
    """
    is_early = not plan.window.num_outside and len(_said(plan, Role.ASSISTANT)) < MAX_ATTEMPTS
    is_answered = status in (MessageStatus.DONE, MessageStatus.STOPPED) and not is_blank(reply.parts.answer)
    if settings.RECOLLECT_TITLES and is_early and is_answered and not work.is_running(conversation_id):
        work.start(conversation_id, lambda: _name(conversation_id, user_id, plan, reply))


async def _name(conversation_id: UUID, user_id: int, plan: Plan, reply: Reply) -> None:
    if not await executors.database(selectors.title_is_wanted, conversation_id, max_attempts=MAX_ATTEMPTS):
        return
    title = await _title(conversation_id, user_id, plan, reply)
    if not title:
        return
    is_named = await executors.database(conversations.conversation_name, conversation_id=conversation_id, title=title)
    if is_named:
        await hints.aconversation_changed(user_id, conversation_id, title=title)


async def _title(conversation_id: UUID, user_id: int, plan: Plan, reply: Reply) -> str:
    """What the model calls it; "" if that is no good, or there is no room for the question. Raises ChatError."""
    said = _said(plan, Role.USER)
    asked = await executors.render(question, plan, reply, wording(said))
    if asked is None:
        logger.info("conversation %s: no title, its window is full", conversation_id)
        return ""
    written = await work.ask(conversation_id, user_id, plan, asked)
    title = ""
    if written.finish_reason == llm.FinishReason.STOP:  # else it is cut
        title = accepted_title(written.text, said=said, answered=[*_said(plan, Role.ASSISTANT), reply.parts.answer])
    logger.info("conversation %s: %s", conversation_id, "named" if title else "no title")
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
