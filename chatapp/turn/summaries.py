"""A summary of the turns that will leave the window next, written before they do: nobody waits for one.

Once a conversation has come half the way from the target to the trigger, its model is asked for a summary, behind the
conversation itself: it reads little more than the instruction. When the window then moves, the summary stands right
after the system prompt; without one (the model has been busy, or wrote nothing of use) the turns leave as they do under
`truncate`, and the turn says so. What prompts begin with after the move is computed before it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from uuid import UUID

from chatapp import executors, hints, llm, selectors
from chatapp.models import ContextPolicy, MessageStatus, Role
from chatapp.services import summaries
from chatapp.text import is_blank
from chatapp.turn.context import num_leaving
from chatapp.turn.past import first_day, rules_of, summary_tokens
from chatapp.turn.preparation import preparation
from chatapp.turn.prompt import Plan, messages_after
from chatapp.turn.side_work import Question, SideWork
from chatapp.turn.stream import Reply
from chatapp.turn.summary_rules import accepted_summary, wording

logger = logging.getLogger(__name__)

_REPETITION_PENALTY = 1.15  # small models go round in circles
_MIN_TOKENS = 32  # less room is for no summary

work = SideWork("summary", patience_s=600.0)


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be summarised: everything up to message `until`. inside: the messages of the window."""

    until: UUID
    inside: tuple[UUID, ...]
    question: Question


def start(conversation_id: UUID, user_id: int, plan: Plan, reply: Reply, status: MessageStatus) -> None:
    """Have what leaves next summarised after this reply, if it is time; prepare for a summary that is there."""
    is_answered = status in (MessageStatus.DONE, MessageStatus.STOPPED) and not is_blank(reply.text)
    is_wanted = is_answered and plan.conversation.context_policy == ContextPolicy.SUMMARISE
    if is_wanted and not work.is_running(conversation_id):
        work.start(conversation_id, lambda: _follow(conversation_id, user_id, plan, reply))


async def _follow(conversation_id: UUID, user_id: int, plan: Plan, reply: Reply) -> None:
    due = await executors.render(summary_due, plan, reply)
    if due is None:
        return
    is_there = await executors.database(selectors.has_summary_until, due.inside, earlier_id=plan.window.summary)
    if is_there or await _summarise(conversation_id, user_id, plan, due):
        preparation.summarised(conversation_id, user_id)


async def _summarise(conversation_id: UUID, user_id: int, plan: Plan, due: Due) -> bool:
    """Whether there is a summary now. Raises ChatError."""
    written = await work.ask(conversation_id, user_id, plan, due.question)
    text = ""
    if written.finish_reason in (llm.FinishReason.STOP, llm.FinishReason.LENGTH):
        text = accepted_summary(written.text, is_cut=written.finish_reason == llm.FinishReason.LENGTH)
    logger.info("conversation %s: %s", conversation_id, "summarised" if text else "no summary")
    if not text:
        return False
    made = await executors.database(
        summaries.summary_create,
        until_id=due.until,
        text=text,
        model_name=plan.model,
        earlier_id=plan.window.summary,
        num_missing=plan.window.num_unsummarised,
    )
    if made is None:  # deleted meanwhile
        return False
    await hints.aconversation_changed(user_id, conversation_id)
    return True


def summary_due(plan: Plan, reply: Reply) -> Due | None:
    """What is to be summarised after this reply; None before it is time, and where the window has no room to ask.

    So much is summarised that the target is reached when the trigger will be, if the model writes all that it may.
    Blocking. Raises EngineUnavailable, Invalid.
    """
    rows, rules = plan.outline.rows, rules_of(plan.conversation)
    spans = plan.prompt.spans[len(plan.messages) - len(rows) :]
    turns = [index for index, row in enumerate(rows) if row.role == Role.USER]
    starts = [spans[index][0] for index in turns]
    trigger, target = rules.marks(starts[0])
    if len(turns) < 2 or 2 * (len(plan.prompt.ids) + len(reply.token_ids)) < trigger + target:
        return None
    said = [row.text for row in rows if row.role == Role.USER]
    asked, model = wording(said), plan.model
    is_thinking_off = plan.conversation.is_thinking_off
    prompt = llm.build_prompt(
        [*messages_after(plan, reply), llm.ChatMessage(Role.USER.value, asked.instruction)],
        model=model,
        today=first_day(plan.conversation),
        is_thinking_off=is_thinking_off,
    )
    num_lasting = prompt.spans[-1][0]
    prompt = llm.answer_begun(prompt, asked.beginning, model=model, is_thinking_off=is_thinking_off)
    max_tokens = summary_tokens(rules, num_head=starts[0], num_asked=len(prompt.ids))
    if max_tokens < _MIN_TOKENS:
        logger.info("conversation %s: no summary, its window has no room for one", plan.conversation.id)
        return None
    first_kept = turns[num_leaving(starts, trigger - target + max_tokens)]
    sampling = llm.SamplingParams(temperature=0.0, repetition_penalty=_REPETITION_PENALTY, max_tokens=max_tokens)
    question = Question(prompt, num_lasting, sampling)
    return Due(rows[first_kept - 1].id, tuple(row.id for row in rows), question)
