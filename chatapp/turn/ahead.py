"""How the next prompt of a conversation will begin, as far as that is known before it is asked for.

Made by the same rules as the prompt itself (see prompt.py), so that it is a prefix of it, token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chatapp import llm, selectors
from chatapp.models import Conversation
from chatapp.storage import translated
from chatapp.turn.past import Past, Read, first_day, fitted, model_of, past_of, rules_of

_QUESTION = llm.ChatMessage("user", "?")
_LOOSE_TOKENS = 4  # at the end of a draft: most words have no more


@translated()
def read(conversation: Conversation) -> Read:
    """What the next prompt can need of the branch on screen. A few queries.

    Raises EngineUnavailable, Invalid, StorageUnavailable.
    """
    leaf = conversation.active_leaf
    if leaf is None:
        return Read(())
    return past_of(conversation, leaf, selectors.generations_of([leaf.id]).get(leaf.id))


def history_of(conversation: Conversation, past: Read) -> llm.Prompt:
    """What it begins with whatever is asked, unless that is long enough to move the window. Blocking.

    Raises EngineUnavailable, Invalid, WindowFull.
    """
    turns, fit = fitted(Past(conversation, past, [_QUESTION]), rules_of(conversation))
    return _history(conversation, turns.messages_from(fit.first))


def _history(conversation: Conversation, messages: Sequence[llm.ChatMessage]) -> llm.Prompt:
    """What a prompt of these messages begins with, whatever the last one is."""
    return llm.build_history(
        messages[:-1],
        model=model_of(conversation),
        today=first_day(conversation),
        is_thinking_off=conversation.is_thinking_off,
    )


def behind_summary_of(conversation: Conversation, past: Read) -> llm.Prompt | None:
    """What it will begin with once the window moves; None without a summary that waits for that. As history_of."""
    turns = Past(conversation, past, [_QUESTION]).behind_summary()
    return _history(conversation, turns.messages_from(0)) if turns is not None else None


def draft_of(conversation: Conversation, past: Read, text: str) -> llm.Prompt | None:
    """What it begins with if this is asked and the text may go on. As history_of.

    None: with nothing of the text, which is short, or will have in front of it what is recalled for it.

    The last tokens are left out: when a word goes on they become others. More may change than that, which costs some
    work and nothing else: what is reused is found by comparing tokens.
    """
    turns, fit = fitted(Past(conversation, past, [llm.ChatMessage("user", text)]), rules_of(conversation))
    if past.messages and conversation.has_recall and turns.num_outside(fit.first):
        return None
    prompt = fit.prompt
    start, stop = prompt.spans[-1]
    return replace(prompt, ids=prompt.ids[: stop - _LOOSE_TOKENS]) if stop - _LOOSE_TOKENS > start else None
