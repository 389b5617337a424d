"""What a chat template does to what has been said already, in sentences for whoever runs the model.

Found out by rendering probes, not by reading the source: templates reach the same end in many ways. Knows nothing about
tokens beyond their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inference.types import ChatMessage

THOUGHT, ANSWER = "Sirius", "Procyon"  # words that no template writes by itself
_REPLAYED = "replies keep them here, because they are replayed as they were generated"


def history_notes(
    render: Callable[[Sequence[ChatMessage]], str], *, num_turn_tokens: int, num_reread: int
) -> tuple[str, ...]:
    """Sentences about what the template rewrites; none for one that leaves the history alone.

    num_reread of the num_turn_tokens of a short turn, its reply included, are read again by the next turn.
    """

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
    if num_reread:
        notes.append(
            "the template writes differently about a message once others have followed: "
            f"of a short turn of {num_turn_tokens} tokens, {num_reread} are read again, and so is all behind them"
        )
    return tuple(notes)
