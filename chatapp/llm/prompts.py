"""What a model makes of messages and texts, and of its own output: needs no weights, only the opened model."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import numpy as np
from django.utils.translation import gettext as _

from chatapp.errors import Invalid
from chatapp.llm.host import opened_model
from inference.errors import TemplateError
from inference.tokenizer.thinking import ThinkingReader
from inference.types import ChatMessage, Prompt, SamplingParams


def window(model: str = "") -> int:
    """How many tokens prompt and reply may have together. Blocking. Raises EngineUnavailable."""
    return opened_model(model).max_model_len


def token_fingerprint(model: str = "") -> str:
    """What stored token ids depend on: tokenizer and template. Blocking. Raises EngineUnavailable."""
    return opened_model(model).chat_template.fingerprint


def build_prompt(
    messages: Sequence[ChatMessage],
    *,
    model: str = "",
    today: datetime.date | None = None,
    is_thinking_off: bool = False,
) -> Prompt:
    """The rendered conversation, ready for a reply. Blocking: use a thread. Raises EngineUnavailable, Invalid.

    today: what a template is told that asks for the date; the same for all prompts of a conversation.
    is_thinking_off: the model is told to answer at once, if its template knows how.
    """
    with _template_errors():
        return opened_model(model).chat_template.build(messages, today=today, is_thinking_off=is_thinking_off)


def open_prompt(
    messages: Sequence[ChatMessage],
    *,
    model: str = "",
    today: datetime.date | None = None,
    is_thinking_off: bool = False,
) -> Callable[[str], Prompt]:
    """What build_prompt makes of these messages with another text in the last one, at the cost of that text alone where
    the template allows it. As build_prompt, and so is what is returned."""
    with _template_errors():
        template = opened_model(model).chat_template
        opened = template.open(messages, today=today, is_thinking_off=is_thinking_off)

    def prompt(text: str) -> Prompt:
        with _template_errors():
            return opened.prompt(text)

    return prompt


def build_history(
    messages: Sequence[ChatMessage],
    *,
    model: str = "",
    today: datetime.date | None = None,
    is_thinking_off: bool = False,
) -> Prompt:
    """What a prompt begins with when a question follows these messages, whatever it is. As build_prompt."""
    with _template_errors():
        return opened_model(model).chat_template.build_history(messages, today=today, is_thinking_off=is_thinking_off)


@contextmanager
def _template_errors() -> Iterator[None]:
    try:
        yield
    except TemplateError as error:  # some templates refuse what others take: a system prompt, two questions in a row
        raise Invalid(_("The model cannot be given this conversation: %(error)s.") % {"error": error}) from error


def strips_thinking(model: str = "") -> bool:
    """Whether the model's template leaves the thinking out of earlier replies. Blocking. Raises EngineUnavailable."""
    return opened_model(model).chat_template.strips_thinking


def takes_system_prompt(model: str = "") -> bool:
    """Whether the model's template has a place for a system prompt. Blocking. Raises EngineUnavailable."""
    return opened_model(model).chat_template.takes_system_prompt


def thinking_reader(model: str = "", *, is_thinking_off: bool = False) -> ThinkingReader | None:
    """Tells a model's thinking from its answers; None for one that is not known to think. As strips_thinking."""
    opened = opened_model(model)
    marks = opened.chat_template.thinking_marks(is_thinking_off=is_thinking_off)
    return ThinkingReader(marks, opened.tokenizer) if marks is not None else None


def extended(prompt: Prompt, ids: Sequence[int]) -> Prompt:
    """The same prompt with the beginning of the reply behind it: the model goes on from there."""
    return replace(prompt, ids=np.concatenate([prompt.ids, np.asarray(ids, dtype=np.int32)]))


def answer_begun(prompt: Prompt, text: str, *, model: str = "", is_thinking_off: bool = False) -> Prompt:
    """The same prompt with the beginning of an answer behind it: whoever thinks has done so.

    Blocking. Raises EngineUnavailable.
    """
    opened = opened_model(model)
    marks = opened.chat_template.thinking_marks(is_thinking_off=is_thinking_off)
    ids = opened.tokenizer.encode(text)
    if marks is not None and marks.starts_open:
        close = opened.tokenizer.encode(marks.close) if marks.close_id is None else [marks.close_id]
        ids = [*close, *opened.tokenizer.encode("\n\n"), *ids]
    return extended(prompt, ids)


def encode(text: str, *, model: str = "") -> list[int]:
    """Token ids of plain text; never a control token. Blocking. Raises EngineUnavailable."""
    return opened_model(model).tokenizer.encode(text)


def decode(ids: Sequence[int], *, model: str = "") -> str:
    """Text of token ids. Blocking. Raises EngineUnavailable."""
    return opened_model(model).tokenizer.decode(list(ids))


def sampling_params(values: dict[str, Any]) -> SamplingParams:
    """Stored sampling values, checked. Raises Invalid naming what is unknown or out of range."""
    legal = [known.name for known in fields(SamplingParams)]
    if unknown := sorted(set(values) - set(legal)):
        raise Invalid(
            _("There is no sampling value named %(unknown)s; legal are %(legal)s.")
            % {"unknown": ", ".join(map(repr, unknown)), "legal": ", ".join(legal)}
        )
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        return SamplingParams(**plain)
    except ValueError as error:
        raise Invalid(
            _("The sampling values of this conversation cannot be used: %(error)s") % {"error": error}
        ) from error
