"""Which turns go into the prompt, and how much room the reply gets. Pure: rendering comes in as a function.

Every count is that of a rendered prompt, never an estimate. The system prompt and the newest turn are never dropped; if
they alone do not fit, the turn is refused. Turns leave whole and oldest first, and rarely: past the trigger so many
leave at once that the target is reached, so the prompts of the turns until then begin alike and their KV is reused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from chatapp.errors import WindowFull
from chatapp.llm import Prompt


@dataclass(frozen=True, slots=True)
class Rules:
    """How large a prompt may be, in tokens. window: prompt and reply together.

    is_cut: turns may leave; otherwise a prompt that is too large is refused. trigger, target: shares of the room; past
    the first, turns leave until the second is reached. recent_tokens: so many of the newest turns are enough; 0: all
    for which there is room.
    """

    window: int
    max_tokens: int
    is_cut: bool = False
    trigger: float = 0.85
    target: float = 0.55
    recent_tokens: int = 0

    @property
    def reserve(self) -> int:
        """Tokens kept free for the reply: what was asked for, but at most a quarter of the window."""
        return max(1, min(self.max_tokens, self.window // 4))

    @property
    def room(self) -> int:
        """The most that a prompt may have."""
        return self.window - self.reserve

    @property
    def limit(self) -> int:
        """How large a prompt gets before turns leave. With more of it, turns that have left come back."""
        if not self.is_cut:
            return self.room
        return min(self.recent_tokens or self.room, int(self.trigger * self.room))

    def marks(self, num_head: int) -> tuple[int, int]:
        """Trigger and target of a prompt whose first num_head tokens always stay, in tokens."""
        trigger, target = int(self.trigger * self.room), int(self.target * self.room)
        if 0 < self.recent_tokens < trigger - num_head:
            trigger = num_head + self.recent_tokens
            target = min(target, num_head + int(self.recent_tokens * self.target / self.trigger))
        return trigger, target


@dataclass(frozen=True, slots=True)
class Fit:
    """A prompt that fits: prompt + reply <= window. max_reply_tokens is what a reply may have of it.

    first: the first turn that is in it, as an index of what was given.
    """

    prompt: Prompt
    max_reply_tokens: int
    first: int


def fit(
    num_turns: int,
    build: Callable[[int], tuple[Prompt, Sequence[int]]],
    rules: Rules,
    first: int = 0,
    *,
    is_continued: bool = False,
) -> Fit:
    """The prompt of the turns from `first` on, or of fewer when the trigger has been passed.

    build(first): the prompt of the turns from there on, and for each of them the token at which it begins. It is called
    once when nothing has to leave, and mostly twice otherwise. is_continued: the prompt ends with a reply that is to go
    on. Raises WindowFull with the numbers.
    """
    prompt, starts = build(first)
    trigger, target = rules.marks(starts[0])
    if rules.is_cut and len(prompt.ids) > trigger:
        while first < num_turns - 1 and len(prompt.ids) > target:
            first += num_leaving(starts, len(prompt.ids) - target)
            prompt, starts = build(first)
    num_tokens = len(prompt.ids)
    if num_tokens > rules.room:
        raise _window_full(num_tokens, rules, is_last=first == num_turns - 1, is_continued=is_continued)
    return Fit(prompt, min(rules.max_tokens, rules.window - num_tokens), first)


def num_leaving(starts: Sequence[int], num_tokens: int) -> int:
    """How many of the first turns have so many tokens together; never all of them. starts: where each turn begins."""
    gained = (start - starts[0] for start in starts[1:])
    return next((num for num, gain in enumerate(gained, 1) if gain >= num_tokens), len(starts) - 1)


def _window_full(num_tokens: int, rules: Rules, *, is_last: bool, is_continued: bool) -> WindowFull:
    if is_continued and (rules.is_cut or is_last):
        sentence = _(
            "This reply cannot go on: with nothing but its question the prompt would have %(prompt)s tokens and "
            "%(reserve)s are kept for the rest, but the model's window holds %(window)s. What has been written stays. "
            "Go on with a new message, or choose a model with a longer window."
        )
    elif is_continued:
        sentence = _(
            "This reply cannot go on: the conversation would have %(prompt)s tokens and %(reserve)s are kept for the "
            "rest, but the model's window holds %(window)s. What has been written stays. Let the oldest turns leave "
            "the window, or choose a model with a longer one."
        )
    elif rules.is_cut or is_last:
        sentence = _(
            "This does not fit: without anything earlier the prompt would have %(prompt)s tokens and %(reserve)s are "
            "kept for the reply, but the model's window holds %(window)s. Nothing has been stored. Shorten the message."
        )
    else:
        sentence = _(
            "This does not fit: the conversation would have %(prompt)s tokens and %(reserve)s are kept for the reply, "
            "but the model's window holds %(window)s. Nothing has been stored. Shorten the message, edit an earlier "
            "one, let the oldest turns leave the window, or choose a model with a longer one."
        )
    values = {"prompt": f"{num_tokens:,}", "reserve": f"{rules.reserve:,}", "window": f"{rules.window:,}"}
    return WindowFull(
        sentence % values, num_prompt_tokens=num_tokens, num_reserved_tokens=rules.reserve, window=rules.window
    )
