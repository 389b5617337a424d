"""What a model is asked for a summary, how it stands in a prompt, and which of its answers are used. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from chatapp.text import is_blank

_CHINESE = re.compile("[\u4e00-\u9fff]")
_KANA = re.compile("[\u3040-\u30ff]")
_SENTENCE_END = re.compile(r"[.!?…](?=\s|$)|[。！？]|\n")
_MIN_WORDS = 5  # fewer summarise nothing
_MAX_REPEATS = 3  # of one sentence, and of all words on average: a small model that goes round in circles


@dataclass(frozen=True, slots=True)
class Wording:
    """instruction: the message behind the conversation. beginning: of the answer. heading: what a prompt says before
    the summary, right after the system prompt."""

    instruction: str
    beginning: str
    heading: str


_ENGLISH = Wording(
    "Summarise everything we have talked about so far in one short paragraph, so that we can go on from it. "
    "Keep names, numbers, facts, decisions and open questions. Write nothing else.",
    "Summary:",
    "Summary of the earlier part of this conversation, which is no longer shown:",
)
_IN_CHINESE = Wording(
    "请用一小段话总结我们到目前为止谈过的全部内容，以便据此继续对话。保留人名、数字、事实、决定和未解决的问题。不要写其他内容。",
    "摘要：",
    "本次对话较早部分的摘要（原文不再显示）：",
)


def wording(said: Sequence[str]) -> Wording:
    """How to ask for a summary of what a person has said."""
    text = "".join(said)
    return _IN_CHINESE if 3 * len(_CHINESE.findall(text)) > len(text) and not _KANA.search(text) else _ENGLISH


def system_part(system_prompt: str, summary: str) -> str:
    """A system prompt with the summary behind it, in the language of the summary."""
    part = f"{wording([summary]).heading}\n{summary}"
    return f"{system_prompt}\n\n{part}" if system_prompt else part


def accepted_summary(written: str, *, is_cut: bool) -> str:
    """A summary from what the model has written, "" if that is none. One that was cut ends with its last sentence."""
    text = written.strip()
    if is_cut:
        ends = [match.end() for match in _SENTENCE_END.finditer(text)]
        text = text[: ends[-1]].strip() if ends else ""
    sentences = [part.strip() for part in _SENTENCE_END.split(text) if part.strip()]
    repeats = max((sentences.count(sentence) for sentence in sentences), default=0)
    words = [*text.casefold().split(), *(text[i : i + 2] for i in range(len(text)) if _CHINESE.match(text, i))]
    is_circling = repeats > _MAX_REPEATS or (
        len(words) > _MAX_REPEATS**2 and len(words) > _MAX_REPEATS * len(set(words))
    )
    return "" if is_blank(text) or len(words) < _MIN_WORDS or is_circling else text
