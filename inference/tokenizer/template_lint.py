"""What a chat template does to what has been said already, as notes for whoever runs the model.

Found out by rendering probes, not by reading the source: templates reach the same end in many ways. Knows nothing about
tokens beyond their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference.notes import Note, NoteCode
from inference.tokenizer.thinking import PAIRS
from inference.types import ChatMessage

THOUGHT, ANSWER = "Sirius", "Procyon"  # words that no template writes by itself


@dataclass(frozen=True, slots=True)
class TurnCost:
    """Tokens of a short turn and its reply, and how many of them the next turn's prompt does not begin with."""

    num_tokens: int
    num_reread: int
    has_system_prompt: bool


Render = Callable[[Sequence[ChatMessage]], str]


def history_notes(render: Render, costs: Sequence[TurnCost]) -> tuple[Note, ...]:
    """What the template rewrites; nothing for one that leaves the history alone. costs: of the same turn, without a
    system prompt first."""

    notes = []
    for opening, closing in PAIRS:
        if removes_thinking(render, opening, closing):
            notes.append(Note(NoteCode.THINKING_REMOVED, {"mark": opening}))
            break
    padded = f"  {ANSWER} \n\n"
    if padded not in _as_earlier_reply(render, padded):
        notes.append(Note(NoteCode.HISTORY_TRIMMED))
    cost = next((cost for cost in costs if cost.num_reread), None)
    if cost is not None:
        code = NoteCode.HISTORY_REWRITTEN_WITH_SYSTEM if cost.has_system_prompt else NoteCode.HISTORY_REWRITTEN
        notes.append(Note(code, {"total": cost.num_tokens, "reread": cost.num_reread}))
    return tuple(notes)


def removes_thinking(render: Render, opening: str, closing: str) -> bool:
    """Whether the template leaves a block between these marks out of an earlier reply, and the answer in."""
    shown = _as_earlier_reply(render, f"{opening}\n{THOUGHT}\n{closing}\n\n{ANSWER}")
    return ANSWER in shown and THOUGHT not in shown


def _as_earlier_reply(render: Render, reply: str) -> str:
    return render([ChatMessage("user", "1"), ChatMessage("assistant", reply), ChatMessage("user", "2")])
