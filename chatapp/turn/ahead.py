"""How the next prompt of a conversation will begin, as far as that is known before it is asked for.

Made by the same rules as the prompt itself (see prompt.py), so that it is a prefix of it, token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chatapp import llm, selectors
from chatapp.models import Conversation
from chatapp.selectors import HistoryMessage
from chatapp.turn.prompt import Past, first_day, model_of, past_of, rules_of

_QUESTION = llm.ChatMessage("user", "?")
_LOOSE_TOKENS = 4  # at the end of a draft: most words have no more


def read(conversation: Conversation) -> list[HistoryMessage]:
    """What the next prompt can need of the branch on screen. Three queries. Raises EngineUnavailable, Invalid."""
    leaf = conversation.active_leaf
    if leaf is None:
        return []
    return past_of(conversation, leaf, selectors.generations_of([leaf.id]).get(leaf.id))


def history_of(conversation: Conversation, history: Sequence[HistoryMessage]) -> llm.Prompt:
    """What it begins with whatever is asked, unless that is long enough to move the window. Blocking.

    Raises EngineUnavailable, Invalid, WindowFull.
    """
    past = Past(conversation, history, [_QUESTION])
    fitted = past.fit(rules_of(conversation))
    return llm.build_history(
        past.messages_from(fitted.first)[:-1],
        model=model_of(conversation),
        today=first_day(conversation),
        is_thinking_off=conversation.is_thinking_off,
    )


def draft_of(conversation: Conversation, history: Sequence[HistoryMessage], text: str) -> llm.Prompt | None:
    """What it begins with if this is asked and the text may go on. As history_of.

    None: with nothing of the text, which is short, or will have in front of it what is recalled for it.

    The last tokens are left out: when a word goes on they become others. More may change than that, which costs some
    work and nothing else: what is reused is found by comparing tokens.
    """
    past = Past(conversation, history, [llm.ChatMessage("user", text)])
    fitted = past.fit(rules_of(conversation))
    if history and conversation.has_recall and past.num_outside(fitted.first):
        return None
    prompt = fitted.prompt
    start, stop = prompt.spans[-1]
    return replace(prompt, ids=prompt.ids[: stop - _LOOSE_TOKENS]) if stop - _LOOSE_TOKENS > start else None
