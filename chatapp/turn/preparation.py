"""What the next prompt will begin with, computed before it is asked for.

When the thinking of a reply is taken out of later prompts, its answer stands at another place there, and its KV has to
be computed once more. That is done here, while the engine has nothing else to do; whoever asks earlier than that pays
for it.
"""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID, uuid4

from chatapp import executors, llm, selectors
from chatapp.errors import ChatError
from chatapp.turn.prompt import Plan, next_history
from chatapp.turn.stream import Reply

logger = logging.getLogger(__name__)

_running: dict[UUID, asyncio.Task[None]] = {}  # by conversation


def start(conversation_id: UUID, user_id: int, plan: Plan, reply: Reply) -> None:
    """Prepare for what follows this reply, in place of what was being prepared there."""
    cancel(conversation_id)
    if not reply.split.num_chars:
        return
    task = asyncio.create_task(_prepare(conversation_id, user_id, plan, reply))
    _running[conversation_id] = task
    task.add_done_callback(
        lambda done: _running.pop(conversation_id) if _running.get(conversation_id) is done else None
    )


def cancel(conversation_id: UUID) -> None:
    """It is no longer wanted: the conversation has gone on, or is gone."""
    if task := _running.pop(conversation_id, None):
        task.cancel()


def cancel_all() -> None:
    """The process is about to end."""
    for conversation_id in list(_running):
        cancel(conversation_id)


async def _prepare(conversation_id: UUID, user_id: int, plan: Plan, reply: Reply) -> None:
    try:
        prompt = await executors.render(next_history, plan, reply)
        if prompt is None:
            return
        await llm.prepare(
            user_id=user_id,
            request_id=f"prepare {uuid4()}",
            prompt=prompt,
            is_head_public=plan.is_head_public,
            model=plan.model,
            tags=(str(conversation_id),),
        )
        if not await executors.database(selectors.conversation_exists, conversation_id):
            llm.purge(conversation_id)  # the purge at its deletion came before this KV
    except ChatError as error:  # the model has left, or the next prompt will not fit: the next turn says so
        logger.info("conversation %s: nothing is prepared, %s", conversation_id, error.code)
