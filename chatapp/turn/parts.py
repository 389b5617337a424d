"""What the tokens of a prompt are of, for whoever wants to know where the window goes."""

from __future__ import annotations

from dataclasses import dataclass

from chatapp import llm
from chatapp.turn.prompt import Plan


@dataclass(frozen=True, slots=True)
class Parts:
    """Tokens by what they are of, together those of the prompt. new: the question, and the header of its reply."""

    system: int
    summary: int
    history: int
    recalled: int
    new: int

    @property
    def total(self) -> int:
        return self.system + self.summary + self.history + self.recalled + self.new


def parts_of(plan: Plan, num_tokens: int | None = None) -> Parts:
    """Of a planned prompt, or of so many of its tokens. Blocking. Raises EngineUnavailable."""
    spans, end = plan.prompt.spans, len(plan.prompt.ids) if num_tokens is None else num_tokens
    head = spans[len(plan.messages) - len(plan.outline.rows)][0]  # with what the template writes between them
    question = spans[-1][0]
    summary = len(llm.encode(plan.summary, model=plan.model)) if plan.summary else 0
    is_in_head = plan.messages[0].role == "system"  # or in front of the first question
    recalled = len(llm.encode(plan.recalled.text, model=plan.model)) if plan.recalled is not None else 0
    system, history, new = head, question - head, end - question - recalled
    if is_in_head:
        system -= summary
    elif history:
        history -= summary
    elif new:  # that one is the question; without it the summary is no part of what is counted as new
        new -= summary
    return Parts(system=system, summary=summary, history=history, recalled=recalled, new=new)
