"""Which messages go into the prompt, and how much room the reply gets. Pure: counting comes in as a function.

The count is that of the rendered prompt, never an estimate. The system prompt and the newest message are never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from chatapp.errors import WindowFull
from chatapp.llm import ChatMessage, Prompt


@dataclass(frozen=True, slots=True)
class Fit:
    """A prompt that fits: prompt + reply <= window. max_reply_tokens is what a reply may have of it."""

    prompt: Prompt
    max_reply_tokens: int


def reply_reserve(*, window: int, max_tokens: int) -> int:
    """Tokens kept free for the reply: what was asked for, but at most a quarter of the window."""
    return max(1, min(max_tokens, window // 4))


def fit_full(
    messages: Sequence[ChatMessage], *, build: Callable[[Sequence[ChatMessage]], Prompt], window: int, max_tokens: int
) -> Fit:
    """The policy `full`: everything or nothing. Raises WindowFull with the numbers."""
    prompt = build(messages)
    num_tokens = len(prompt.ids)
    reserve = reply_reserve(window=window, max_tokens=max_tokens)
    if num_tokens + reserve > window:
        raise WindowFull(
            _(
                "This does not fit: the conversation would have %(prompt)s tokens and %(reserve)s are kept for the "
                "reply, but the model's window holds %(window)s. Nothing has been stored. Shorten the message, edit an "
                "earlier one, or start a new conversation."
            )
            % {"prompt": f"{num_tokens:,}", "reserve": f"{reserve:,}", "window": f"{window:,}"},
            num_prompt_tokens=num_tokens,
            num_reserved_tokens=reserve,
            window=window,
        )
    return Fit(prompt, min(max_tokens, window - num_tokens))
