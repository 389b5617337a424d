"""What is computed while nobody waits, so that the next prompt finds it: the history of a conversation that is opened,
what is being written there, and an answer whose thinking is taken out of later prompts.

Every turn of anybody goes first (see inference.engine.scheduler). Whoever asks earlier than the work is done pays for
the rest only. Nothing is told but numbers, and nothing of it is stored, drafts least of all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from chatapp import executors, llm, selectors, window_rows, wire
from chatapp.errors import ChatError
from chatapp.models import OPEN_STATUSES, ContextPolicy, Conversation, User
from chatapp.services import turns
from chatapp.turn import ahead
from chatapp.turn.attention import Attention
from chatapp.turn.live import Live, LiveTurn, live
from chatapp.turn.past import model_of
from chatapp.turn.prompt import Plan, has_public_head, next_history
from chatapp.turn.remains import purge_if_gone
from chatapp.turn.spare_time import SpareTime
from chatapp.turn.stream import Reply

logger = logging.getLogger(__name__)

Tell = Callable[[wire.ServerFrame], None]

PAUSE_S = 0.2  # whoever leafs through the list has gone on by then, and nothing has been read


@dataclass(frozen=True, slots=True)
class _Known:
    """What decides how the next prompt begins, besides what never changes."""

    leaf_id: UUID | None
    model: str
    policy: tuple[str, int]

    @classmethod
    def of(cls, conversation: Conversation, leaf_id: UUID | None) -> _Known:
        policy = (conversation.context_policy, conversation.recent_tokens)
        return cls(leaf_id, model_of(conversation), policy)


class Preparation:
    """Told what happens, on the event loop; all its methods return at once."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._spare_time = SpareTime()
        self._attention = Attention()
        self._known: dict[UUID, _Known] = {}  # of open conversations: what has been prepared, or is being
        self._changes: dict[UUID, UUID | None] = {}  # of the same: the newest summary that a person has changed
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop itself holds tasks only weakly
        live.on_left = self._left

    @property
    def is_idle(self) -> bool:
        return self._spare_time.is_idle and not self._tasks

    # --- what happens -------------------------------------------------------------------------------------------------

    def opened(self, user: User, conversation: Conversation) -> None:
        """A tab shows a conversation. What has been put away is only read, most likely: it stays as it is."""
        if not self._live.is_open(conversation.id) or conversation.is_archived:
            return
        self._attention.opened(conversation.id)
        if conversation.active_leaf_id is not None and self._is_free(conversation.id):
            self._look(user, conversation.id)

    def changed(self, user: User, conversation_id: UUID) -> None:
        """Something about a conversation is different now: its branch, its model, or only its title."""
        if self._live.is_open(conversation_id) and self._is_free(conversation_id):
            self._look(user, conversation_id)

    def draft(self, user: User, frame: wire.DraftWarm, tell: Tell) -> None:
        """This is being written. Takes the place of what was written before. tell: of the tab where that is."""
        if frame.text is None:
            self.draft_left(user, frame.conversation)
        elif self._is_free(frame.conversation):
            self._put("draft", frame.conversation, user.pk, partial(self._prepare_draft, user, frame, tell))

    def draft_left(self, user: User, conversation_id: UUID) -> None:
        """Nothing is being written there any more, by this person."""
        self._spare_time.drop(("draft", conversation_id), user.pk)

    def turn_began(self, conversation_id: UUID) -> None:
        """From now on the turn computes what is needed."""
        self.drop(conversation_id)
        self._known.pop(conversation_id, None)
        if self._live.is_open(conversation_id):
            self._attention.opened(conversation_id)
        else:
            self._attention.used(conversation_id)

    def turn_ended(self, turn: LiveTurn, plan: Plan, reply: Reply) -> None:
        """All that the next prompt begins with has KV now, unless thinking is taken out of it there."""
        conversation_id = turn.conversation_id
        self._attention.used(conversation_id)
        if self._live.is_open(conversation_id):
            self._known[conversation_id] = _Known.of(plan.conversation, turn.message_id)
        if reply.split.num_chars and llm.prepares():
            work = partial(self._prepare_answer, turn.user_id, plan, reply)
            self._put("history", conversation_id, turn.user_id, work)

    def summarised(self, conversation_id: UUID, user_id: int) -> None:
        """A summary waits for the window to move: what prompts begin with then is computed before."""
        if self._is_free(conversation_id):
            self._put(
                "window", conversation_id, user_id, partial(self._prepare_behind_summary, user_id, conversation_id)
            )

    def drop(self, conversation_id: UUID) -> None:
        """It is no longer wanted: the conversation has gone on, or is gone. Whoever says so must be its owner."""
        for kind in ("look", "history", "draft", "window"):
            self._spare_time.drop((kind, conversation_id))

    def end(self) -> None:
        """The process is about to end."""
        self._spare_time.drop_all()
        self._attention.end()

    def _left(self, conversation_id: UUID) -> None:
        self.drop(conversation_id)
        self._known.pop(conversation_id, None)
        self._changes.pop(conversation_id, None)
        self._attention.left(conversation_id)

    def _is_free(self, conversation_id: UUID) -> bool:
        return llm.prepares() and self._live.in_conversation(conversation_id) is None

    def _put(
        self,
        kind: str,
        conversation_id: UUID,
        user_id: int,
        work: Callable[[], Coroutine[Any, Any, None]],
        *,
        after_s: float = 0.0,
    ) -> None:
        self._spare_time.put(
            (kind, conversation_id), user_id, partial(_quietly, conversation_id, work), after_s=after_s
        )

    def _look(self, user: User, conversation_id: UUID) -> None:
        self._put("look", conversation_id, user.pk, partial(self._look_again, user, conversation_id), after_s=PAUSE_S)

    # --- what is done -------------------------------------------------------------------------------------------------

    async def _look_again(self, user: User, conversation_id: UUID) -> None:
        """One small query says whether there is more to do."""
        conversation = await executors.database(selectors.conversation_get, user, conversation_id)
        if conversation.is_archived:
            self._known.pop(conversation_id, None)
            self._spare_time.drop(("history", conversation_id))
            self._attention.put_away(conversation_id)
            return
        if not self._live.is_open(conversation_id) or not self._is_free(conversation_id):
            return
        self._attention.opened(conversation_id)
        known = _Known.of(conversation, conversation.active_leaf_id)
        is_changed = await self._has_changed_summary(conversation)
        if known.leaf_id is not None and (is_changed or self._known.get(conversation_id) != known):
            self._known[conversation_id] = known
            self._put("history", conversation_id, user.pk, partial(self._prepare_history, user, conversation))
            if is_changed:  # perhaps the one that still waits
                self.summarised(conversation_id, user.pk)

    async def _has_changed_summary(self, conversation: Conversation) -> bool:
        """Whether a person has given it other words since this was asked last."""
        if conversation.context_policy != ContextPolicy.SUMMARISE:
            return False
        newest = await executors.database(window_rows.changed_summary_id, conversation.id)
        before = self._changes.get(conversation.id)
        self._changes[conversation.id] = newest
        return newest != before

    async def _prepare_history(self, user: User, conversation: Conversation) -> None:
        if await _is_there(conversation):
            past = await executors.database(ahead.read, conversation)
            if past.messages[-1].status in OPEN_STATUSES:  # another process writes there
                self._known.pop(conversation.id, None)
                return
            prompt = await executors.render(ahead.history_of, conversation, past)
            await self._compute(user.pk, conversation, prompt, model=model_of(conversation))

    async def _prepare_behind_summary(self, user_id: int, conversation_id: UUID) -> None:
        conversation = await executors.database(selectors.conversation_find, conversation_id)
        if conversation is not None and await _is_there(conversation):
            past = await executors.database(ahead.read, conversation)
            prompt = await executors.render(ahead.behind_summary_of, conversation, past)
            if prompt is not None:
                await self._compute(user_id, conversation, prompt, model=model_of(conversation))

    async def _prepare_draft(self, user: User, frame: wire.DraftWarm, tell: Tell) -> None:
        conversation = await executors.database(addressed, user, frame)
        if await _is_there(conversation):
            past = await executors.database(ahead.read, conversation)
            prompt = await executors.render(ahead.draft_of, conversation, past, frame.text or "")
            if prompt is not None:
                await self._compute(user.pk, conversation, prompt, model=model_of(conversation), tell=tell)

    async def _prepare_answer(self, user_id: int, plan: Plan, reply: Reply) -> None:
        prompt = await executors.render(next_history, plan, reply)
        if prompt is not None:
            await self._compute(user_id, plan.conversation, prompt, model=plan.model)

    async def _compute(
        self, user_id: int, conversation: Conversation, prompt: llm.Prompt, *, model: str, tell: Tell | None = None
    ) -> None:
        """tell: of a draft; what is stored is told to all tabs."""
        is_draft = tell is not None
        tell_tabs = tell or partial(self._live.tell, conversation.id)

        def on_progress(num_done: int, num_total: int) -> None:
            tell_tabs(wire.Prepared(conversation.id, num_done, num_total, is_draft))

        try:
            await llm.prepare(
                user_id=user_id,
                request_id=f"prepare {uuid4()}",
                prompt=prompt,
                is_head_public=has_public_head(conversation),
                model=model,
                tags=(str(conversation.id),),
                num_lasting_tokens=prompt.spans[-1][0] if is_draft else None,
                on_progress=on_progress,
            )
        finally:  # however it ends, cancelled above all: the purge at a deletion may have come before this KV
            if not conversation._state.adding and llm.prepares():
                task = asyncio.create_task(_quietly(conversation.id, partial(purge_if_gone, conversation.id)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)


async def _quietly(conversation_id: UUID, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A model that has left, a history that does not fit, a database that is away: the next turn will say so."""
    try:
        await work()
    except ChatError as error:
        logger.info("conversation %s: nothing is prepared, %s", conversation_id, error.code)


async def _is_there(conversation: Conversation) -> bool:
    """Whether its model is loaded, or comes without another one leaving."""
    return await executors.render(llm.load_if_free, model_of(conversation))


def addressed(user: User, frame: wire.DraftWarm | wire.WindowCount) -> Conversation:
    """The conversation that is written in; one that does not exist yet is as it would begin. Raises NotFound."""
    if not frame.is_new:
        return selectors.conversation_get(user, frame.conversation)
    selectors.conversation_id_check(user, frame.conversation)
    return turns.conversation_new(
        user=user, conversation_id=frame.conversation, preset_id=frame.preset, model=frame.model or ""
    )


preparation = Preparation(live)  # of this process
