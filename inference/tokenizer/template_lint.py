"""What a chat template does to what has been said already, in sentences for whoever runs the model.

Found out by rendering probes, not by reading the source: templates reach the same end in many ways. Knows nothing about
tokens beyond their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference.types import ChatMessage

THOUGHT, ANSWER = "Sirius", "Procyon"  # words that no template writes by itself
_REPLAYED = "replies keep them here, because they are replayed as they were generated"


@dataclass(frozen=True, slots=True)
class TurnCost:
    """Tokens of a short turn and its reply, and how many of them the next turn's prompt does not begin with."""

    num_tokens: int
    num_reread: int
    has_system_prompt: bool


def history_notes(render: Callable[[Sequence[ChatMessage]], str], costs: Sequence[TurnCost]) -> tuple[str, ...]:
    """Sentences about what the template rewrites; none for one that leaves the history alone. costs: of the same turn,
    without a system prompt first."""

    def rendered(reply: str) -> str:
        return render([ChatMessage("user", "1"), ChatMessage("assistant", reply), ChatMessage("user", "2")])

    notes = []
    for before, after in (("<think>\n", "\n</think>\n\n"), ("[THINK]", "[/THINK]")):
        shown = rendered(f"{before}{THOUGHT}{after}{ANSWER}")
        if ANSWER in shown and THOUGHT not in shown:
            notes.append(f"the template removes {before.strip()} blocks from earlier replies; {_REPLAYED}")
    padded = f"  {ANSWER} \n\n"
    if padded not in rendered(padded):
        notes.append(f"the template trims spaces and line breaks around what was said; {_REPLAYED}")
    cost = next((cost for cost in costs if cost.num_reread), None)
    if cost is not None:
        condition = "where there is a system prompt, " if cost.has_system_prompt else ""
        notes.append(
            f"{condition}the template writes differently about a message once others have followed: "
            f"of a short turn of {cost.num_tokens} tokens, {cost.num_reread} are read again, and so is all behind them"
        )
    return tuple(notes)
