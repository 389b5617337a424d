"""The plan of a turn with all that it takes from the database: the path, what is recalled, what was sent before."""

from __future__ import annotations

from functools import partial

from chatapp import search, turn_rows
from chatapp.services import turns
from chatapp.turn.numbers import compared
from chatapp.turn.past import Past, past_of
from chatapp.turn.prompt import Plan, plan_turn


def planned(rows: turns.TurnRows, *, is_asked: bool) -> Plan:
    """The prompt of rows that are about to be committed, and what is compared with it when the turn has ended.

    is_asked: the question is new; one that was asked before has its context already. What is recalled for a new one is
    stored with it. Inside the transaction of the rows: what does not fit leaves none. Cost: as much as the window
    holds, however long the conversation is. Raises WindowFull, Invalid, EngineUnavailable.
    """
    conversation, question = rows.conversation, rows.user_message
    near = turn_rows.sent_near(question)
    before = turn_rows.newest_of(near, question, rows.assistant_message)
    past = Past(conversation, past_of(conversation, question, before))
    find = partial(search.related, conversation, question) if is_asked and conversation.has_recall else None
    plan = compared(plan_turn(past, rows.assistant_message, before=before, find=find), question, near)
    if plan.recalled is not None:
        turns.context_add(question, text=plan.recalled.text, sources=plan.recalled.sources)
    return plan
