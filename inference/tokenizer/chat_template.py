"""Messages to prompt ids through the model's own chat template."""

from __future__ import annotations

from collections.abc import Sequence

from inference.tokenizer.tokenizer import Tokenizer
from inference.types import ChatMessage, Prompt


class ChatTemplate:
    """Builds prompts. Raises TemplateError from the constructor when the template cannot be used at all."""

    stop_token_ids: tuple[int, ...]
    fingerprint: str

    def __init__(self, tokenizer: Tokenizer, source: str | None) -> None:
        raise NotImplementedError

    def build(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> Prompt:
        """Prompt ids, where each message lies in them, and how long the public head is."""
        raise NotImplementedError

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> str:
        """The text that the template makes of messages (token_ids are ignored)."""
        raise NotImplementedError
