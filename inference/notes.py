"""What a person should know who runs a model: a code with its values, and our own English for it.

Applications that speak other languages translate by the code; str() is what the command line and the log say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class NoteCode(StrEnum):
    """values of each: see the sentences."""

    TENSORS_SKIPPED = "tensors_skipped"
    THINKING_REMOVED = "thinking_removed"
    HISTORY_TRIMMED = "history_trimmed"
    HISTORY_REWRITTEN = "history_rewritten"
    HISTORY_REWRITTEN_WITH_SYSTEM = "history_rewritten_with_system"  # only where there is a system prompt


_REWRITTEN = (
    "template writes differently about a message once others have followed: of a short turn of {total} tokens, "
    "{reread} are read again, and so is all behind them."
)
SENTENCES: Mapping[NoteCode, str] = {
    NoteCode.TENSORS_SKIPPED: "{num} tensors {names} are left out, text only.",
    NoteCode.THINKING_REMOVED: (
        "The template removes {mark} blocks from earlier replies; whether they are replayed nevertheless is for each "
        "preset to say."
    ),
    NoteCode.HISTORY_TRIMMED: (
        "The template trims spaces and line breaks around what was said; replies keep them here, because they are "
        "replayed as they were generated."
    ),
    NoteCode.HISTORY_REWRITTEN: f"The {_REWRITTEN}",
    NoteCode.HISTORY_REWRITTEN_WITH_SYSTEM: f"Where there is a system prompt, the {_REWRITTEN}",
}


@dataclass(frozen=True, slots=True)
class Note:
    """values: numbers and names that the sentence has a place for."""

    code: NoteCode
    values: Mapping[str, str | int] = field(default_factory=dict)

    def __str__(self) -> str:
        return SENTENCES[self.code].format_map(self.values)
