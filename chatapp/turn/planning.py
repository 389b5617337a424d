"""The plan of a turn with all that it takes from the database: the path, what is recalled, what was sent before.

What takes long and needs no rows is done ahead (made_ready): no lock is held while a model computes.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from chatapp import executors, llm, model_catalogue, search, selectors, turn_rows, vectors, wire
from chatapp.errors import EngineUnavailable, Invalid, NotFound
from chatapp.models import User
from chatapp.services import turns
from chatapp.turn.numbers import compared
from chatapp.turn.past import Past, model_of, past_of
from chatapp.turn.prompt import Plan, plan_turn

TurnFrame = wire.TurnSend | wire.TurnEdit | wire.TurnRegenerate | wire.TurnContinue


async def made_ready(user: User, frame: TurnFrame) -> llm.Meaning | None:
    """What the question means, where it may be compared with something; and the files of the model have been read.

    Changes nothing, and refuses nothing: the turn itself does, in its order. One query. Raises StorageUnavailable.
    """
    with suppress(NotFound, Invalid, EngineUnavailable):
        model, question = await executors.database(_asked, user, frame)
        return await executors.render(_computed, model, question)
    return None


def _asked(user: User, frame: TurnFrame) -> tuple[str, str]:
    """Which model will answer, and the question if it may be about what has left the window; "" if not."""
    if isinstance(frame, wire.TurnSend) and frame.is_new:
        return (model_catalogue.get(frame.model).name if frame.model else llm.default_model()), ""
    conversation = selectors.conversation_get(user, frame.conversation)
    if isinstance(frame, wire.TurnSend | wire.TurnEdit) and conversation.has_recall:
        return model_of(conversation), frame.text
    return model_of(conversation), ""


def _computed(model: str, question: str) -> llm.Meaning | None:
    llm.window(model)  # opens it, up to a second: from then on that is done
    return vectors.meaning_of(question) if question else None


def planned(rows: turns.TurnRows, *, is_asked: bool, meaning: llm.Meaning | None = None) -> Plan:
    """The prompt of rows that are about to be committed, and what is compared with it when the turn has ended.

    is_asked: the question is new; one that was asked before has its context already. What is recalled for a new one is
    stored with it. meaning: of its text, from made_ready(). Inside the transaction of the rows: what does not fit
    leaves none. Cost: as much as the window holds, however long the conversation is. Raises WindowFull, Invalid,
    EngineUnavailable.
    """
    conversation, question = rows.conversation, rows.user_message
    near = turn_rows.sent_near(question)
    before = turn_rows.newest_of(near, question, rows.assistant_message)
    past = Past(conversation, past_of(conversation, question, before))
    is_recalled = is_asked and conversation.has_recall
    find = partial(search.related, conversation, question, meaning=meaning) if is_recalled else None
    plan = compared(plan_turn(past, rows.assistant_message, before=before, find=find), question, near)
    if plan.recalled is not None:
        turns.context_add(question, text=plan.recalled.text, sources=plan.recalled.sources)
    return plan
