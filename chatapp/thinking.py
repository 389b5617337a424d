"""A reply as a person sees it: what was thought, and the answer. What is stored stays as it was generated.

Where the thinking ends is known to whoever wrote the reply (Message.thinking_chars); here its marks are taken off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from chatapp import llm

_OPENING, _CLOSING = ("|".join(map(re.escape, marks)) for marks in zip(*llm.THINKING_PAIRS, strict=True))
_HEAD = re.compile(rf"\s*(?:(?:{_OPENING})\s*)*")
_SEAM = re.compile(rf"(?:{_CLOSING})\s*(?:{_OPENING})\s*")


@dataclass(frozen=True, slots=True)
class Parts:
    """thinking_ms: how long it has thought; 0 while it still thinks, and where nobody has measured it."""

    thought: str
    answer: str
    is_thinking: bool = False
    thinking_ms: int = 0


def thought_of(text: str, thinking_chars: int) -> str:
    """What was thought, without its marks: `thinking_chars` at the head of the text hold it."""
    opened = _HEAD.match(text, 0, thinking_chars)
    assert opened is not None, "it matches nothing as well"
    thought = text[opened.end() : thinking_chars].rstrip()
    for _opening, closing in llm.THINKING_PAIRS:
        if thought.endswith(closing):
            thought = thought.removesuffix(closing).rstrip()
            break
    return _SEAM.sub("\n\n", thought).strip()  # a block without thought leaves nothing of its seam
