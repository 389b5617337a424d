"""The story of a turn: reserve, store, choose, render, generate, show, save, end.

`start` returns once the question is stored, durably; the turn goes on by itself, whoever leaves. It ends in exactly one
of done, stopped, interrupted and failed, in the database first and then on the wire.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from django.conf import settings
from django.utils.translation import gettext as _

from chatapp import executors, hints, llm, locks, selectors, storage, wire
from chatapp.errors import ChatError, Conflict, StorageUnavailable
from chatapp.markdown import render_blocks
from chatapp.models import Message, MessageStatus, PrefixBreak, User
from chatapp.services import turns
from chatapp.turn import recall, side_work, summaries, titles
from chatapp.turn.encoding import encoding
from chatapp.turn.live import Live, LiveTurn
from chatapp.turn.numbers import numbers_of, turn_stats
from chatapp.turn.planning import TurnFrame, made_ready, planned
from chatapp.turn.preparation import preparation
from chatapp.turn.prompt import Plan
from chatapp.turn.stream import Publisher, Reply
from chatapp.turn.writer import Ending, Writer

logger = logging.getLogger(__name__)

Accept = Callable[[wire.TurnAccepted], None]
OnText = Callable[[str, str], None]  # more of the thinking, more of the answer; one of them may be empty
OnPlan = Callable[[Plan], None]
T = TypeVar("T")

_tasks: set[asyncio.Task[Any]] = set()  # the event loop itself holds tasks only weakly


# --- beginning --------------------------------------------------------------------------------------------------------


async def start(
    live: Live,
    user: User,
    frame: TurnFrame,
    *,
    accept: Accept | None = None,
    on_text: OnText | None = None,
    on_plan: OnPlan | None = None,
) -> LiveTurn | None:
    """Store what was asked and set the reply going. Returns the running turn; None for a send whose turn is over.

    accept is called before anything about the turn is published, and so is on_plan, with what the engine will get.
    Raises ChatError, and then nothing has been stored. A caller that is cancelled takes nothing back: what was stored
    is answered.
    """
    return await asyncio.shield(_spawn(_start(live, user, frame, accept, on_text, on_plan)))


async def _start(
    live: Live,
    user: User,
    frame: TurnFrame,
    accept: Accept | None,
    on_text: OnText | None,
    on_plan: OnPlan | None,
) -> LiveTurn | None:
    ticket = llm.reserve(user.pk)
    try:
        text = frame.text if isinstance(frame, wire.TurnSend | wire.TurnEdit) else ""
        html = "".join(await executors.render(render_blocks, text)) if text and accept else ""
        meaning = await made_ready(user, frame)
        rows, plan = await executors.database(_admit, user, frame, meaning)
    except BaseException:
        ticket.release()
        raise
    # From here to the task nothing awaits: a stored turn always runs.
    if accept is not None:
        accept(_accepted(frame, rows, html, plan.recalled if plan else None))
    if plan is None:
        ticket.release()
        return live.get(rows.assistant_message.id)
    if on_plan is not None:
        on_plan(plan)
    # From the clock: a reply that is continued, even after a restart, goes on above the seqs that tabs have seen of it.
    first_seq = int(1000 * time.time())
    turn = LiveTurn(rows.conversation.id, rows.assistant_message.id, user.pk, on_text, seq=first_seq)
    preparation.turn_began(turn.conversation_id)
    live.add(turn)
    turn.task = _spawn(_run_turn(live, turn, plan, rows.thinking_s, ticket))
    _spawn(hints.aconversation_changed(user.pk, rows.conversation.id, title=rows.conversation.title))
    return turn


def _admit(user: User, frame: TurnFrame, meaning: llm.Meaning | None) -> tuple[turns.TurnRows, Plan | None]:
    """The rows, committed, and the plan; no plan for a duplicate.

    The prompt is made inside the transaction: it is counted once, on the very rows, and what does not fit leaves none.
    """
    plan: Plan | None = None
    is_asked = isinstance(frame, wire.TurnSend | wire.TurnEdit)

    def check(rows: turns.TurnRows) -> None:
        nonlocal plan
        plan = planned(rows, is_asked=is_asked, meaning=meaning)

    return _open_rows(user, frame, check), plan


def _open_rows(user: User, frame: TurnFrame, check: turns.Check) -> turns.TurnRows:
    conversation_id = frame.conversation
    match frame:
        case wire.TurnSend():
            return turns.send_create(
                user=user,
                conversation_id=conversation_id,
                client_id=frame.client_id,
                text=frame.text,
                parent_id=frame.parent,
                is_new=frame.is_new,
                preset_id=frame.preset,
                model=frame.model or "",
                check=check,
            )
        case wire.TurnEdit():
            return turns.edit_create(
                user=user,
                conversation_id=conversation_id,
                message_id=frame.message,
                client_id=frame.client_id,
                text=frame.text,
                check=check,
            )
        case wire.TurnRegenerate():
            return turns.regenerate_create(
                user=user,
                conversation_id=conversation_id,
                message_id=frame.message,
                client_id=frame.client_id,
                check=check,
            )
        case wire.TurnContinue():
            return turns.continue_open(
                user=user, conversation_id=conversation_id, message_id=frame.message, check=check
            )


def _accepted(frame: TurnFrame, rows: turns.TurnRows, html: str, recalled: recall.Recalled | None) -> wire.TurnAccepted:
    has_question = isinstance(frame, wire.TurnSend | wire.TurnEdit)
    return wire.TurnAccepted(
        conversation=rows.conversation.id,
        client_id=None if isinstance(frame, wire.TurnContinue) else frame.client_id,
        user_message=rows.user_message.id if has_question else None,
        user_html=html,
        user_text=rows.user_message.text if has_question else "",
        message=rows.assistant_message.id,
        title=rows.conversation.title,
        recalled=_told(recalled) if recalled else None,
        is_duplicate=rows.is_duplicate,
    )


def _told(recalled: recall.Recalled) -> wire.Recalled:
    places = zip(recalled.sources, recalled.positions, strict=True)
    return wire.Recalled(recalled.text, tuple(wire.RecalledMessage(name, position) for name, position in places))


async def stop(live: Live, user: User, frame: wire.TurnStop) -> None:
    """End a running reply within one step; the text so far is kept. A turn that has ended already stays as it is.

    A turn of this process needs no database for it. Raises NotFound, and Conflict for a turn of another process.
    """
    turn = live.get(frame.message)
    if turn is None or (turn.user_id, turn.conversation_id) != (user.pk, frame.conversation):
        message = await executors.database(selectors.message_get, user, frame.conversation, frame.message)
        turn = live.get(message.id)
        if turn is None and message.is_open:
            await _stop_elsewhere(user, message)
    if turn is not None:
        turn.is_stopping = True
        llm.cancel(turn.request_id)


async def _stop_elsewhere(user: User, message: Message) -> None:
    """A turn of another process. Raises Conflict while that may live; one that was killed holds up nobody."""
    if not await executors.database(locks.recover_abandoned, settings.RECOLLECT_DATA, message.id):
        raise Conflict(_("This reply is being written by another process and can only be stopped there."))
    await hints.aconversation_changed(user.pk, message.conversation_id)


# --- the turn ---------------------------------------------------------------------------------------------------------


async def _run_turn(live: Live, turn: LiveTurn, plan: Plan, thinking_s: float, ticket: llm.Ticket) -> None:
    reply = Reply(plan.text, plan.token_ids, reader=plan.reader, thinking_s=thinking_s)
    publisher = Publisher(live, turn, reply)
    writer = Writer(turn.message_id, reply, plan.token_fingerprint, on_gone=lambda: llm.cancel(turn.request_id))
    with ticket:
        ending = await _answer(turn, plan, ticket, reply, publisher, writer)

    async def tell(error: StorageUnavailable) -> None:
        await publisher.not_stored_yet(storage.not_yet(error))

    is_closed = await writer.close(ending, on_problem=tell)
    await _publish_end(live, turn, publisher, ending)
    if not is_closed:
        logger.warning("message %s had been closed or deleted before its turn ended", turn.message_id)
        llm.purge(turn.conversation_id)  # the purge at its deletion came before the last of its KV
    else:
        preparation.turn_ended(turn, plan, reply)
        titles.start(turn.conversation_id, turn.user_id, plan, reply, ending.status)
        summaries.start(turn.conversation_id, turn.user_id, plan, reply, ending.status)
        encoding.wake(turn.message_id)
    await hints.aconversation_changed(turn.user_id, turn.conversation_id)


async def _answer(
    turn: LiveTurn, plan: Plan, ticket: llm.Ticket, reply: Reply, publisher: Publisher, writer: Writer
) -> Ending:
    """Generate, showing and saving on the way. Raises nothing: whatever goes wrong becomes an ending."""
    try:
        async with _in_background(publisher.run()), _in_background(writer.run()):
            finished = await _generate(turn, plan, ticket, reply, publisher)
        return _ending(turn, plan, reply, finished)
    except ChatError as error:  # the engine refused at the last moment
        logger.warning("turn %s in conversation %s: %s", turn.message_id, turn.conversation_id, error.code)
        return Ending(MessageStatus.FAILED, error=error.message)
    except Exception:
        logger.exception("turn %s in conversation %s failed", turn.message_id, turn.conversation_id)
        return Ending(MessageStatus.FAILED, error=_("Something went wrong on the server; its log says what."))


async def _generate(
    turn: LiveTurn, plan: Plan, ticket: llm.Ticket, reply: Reply, publisher: Publisher
) -> llm.FinishedEvent:
    if turn.is_stopping:  # before the engine knew of it
        return llm.FinishedEvent(turn.request_id, llm.FinishReason.CANCELLED, llm.RequestStats())
    events = llm.generate(
        ticket=ticket,
        request_id=turn.request_id,
        prompt=plan.prompt,
        sampling=plan.sampling,
        is_head_public=plan.is_head_public,
        model=plan.model,
        is_continuation=bool(plan.text),
        tags=(str(turn.conversation_id),),
    )
    async with aclosing(events):
        async for event in events:
            match event:
                case llm.ProgressEvent():
                    publisher.progress(event)
                case llm.TokenEvent():
                    reply.add(event.token_ids, event.text)
                case llm.FinishedEvent():
                    reply.finish(event.token_ids, event.text)
            if isinstance(event, llm.TokenEvent | llm.FinishedEvent) and event.text:
                publisher.text_changed()
                if turn.on_text is not None:
                    turn.on_text(*reply.tell())
            if isinstance(event, llm.FinishedEvent):
                return event
    raise AssertionError("a request ends with a FinishedEvent")


def _ending(turn: LiveTurn, plan: Plan, reply: Reply, finished: llm.FinishedEvent) -> Ending:
    status = {
        llm.FinishReason.STOP: MessageStatus.DONE,
        llm.FinishReason.LENGTH: MessageStatus.DONE,
        # Cancelled, but not by a person: the server is about to stop.
        llm.FinishReason.CANCELLED: MessageStatus.STOPPED if turn.is_stopping else MessageStatus.INTERRUPTED,
        llm.FinishReason.ERROR: MessageStatus.FAILED,
    }[finished.finish_reason]
    numbers = numbers_of(plan, reply, finished, user_id=turn.user_id)
    if numbers.prefix_break == PrefixBreak.UNKNOWN:
        logger.warning("turn %s: nobody knows why no more of its prompt was reused", turn.message_id)
    return Ending(status, error=finished.error, generation=numbers)


async def _publish_end(live: Live, turn: LiveTurn, publisher: Publisher, ending: Ending) -> None:
    """The end, on every screen and in the log: ids and numbers, never text."""
    blocks = await publisher.final_blocks()
    numbers = ending.generation
    live.publish_end(
        turn,
        status=ending.status.value,
        blocks=blocks,
        stats=turn_stats(numbers) if numbers else None,
        error=ending.error,
        thinking=publisher.thinking if blocks else None,
    )
    stats = turn_stats(numbers or turns.GenerationNumbers(model_name=""))
    logger.info(
        "turn %s conversation %s user %s model %s: %s %s, prompt %d = %d ram + %d disk + %d computed%s, generated %d, "
        "queue %.0f ms, ttft %.0f ms, %.1f tok/s",
        turn.message_id,
        turn.conversation_id,
        turn.user_id,
        stats.model or "-",
        ending.status.value,
        stats.finish_reason or "refused",
        stats.prompt_tokens,
        stats.reused_ram,
        stats.reused_disk,
        stats.computed,
        f" ({stats.cause})" if stats.cause else "",
        stats.generated,
        1000 * numbers.queue_s if numbers else 0,
        stats.ttft_ms,
        stats.decode_tok_s,
    )


# --- the end of the process -------------------------------------------------------------------------------------------


async def drain(live: Live, *, grace_s: float = 8.0) -> None:
    """Let running turns end, interrupt and store the rest, close every socket. New ones must be refused already."""
    llm.drain()
    preparation.end()
    encoding.end()
    side_work.cancel_all()
    live.broadcast(wire.ServerDraining())
    await _wait(grace_s)
    for turn in live.turns:
        llm.cancel(turn.request_id)
    await _wait(1.0)
    for turn in live.turns:
        logger.error("turn %s did not end in time; the next start will mark it interrupted", turn.message_id)
    live.close_all()


async def _wait(timeout_s: float) -> None:
    if _tasks:
        await asyncio.wait(_tasks, timeout=timeout_s)


def _spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


@asynccontextmanager
async def _in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` beside the body and end it with the body; then its own failure, if any, is raised.

    Not a TaskGroup: that would wrap the body's ChatError.
    """
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
