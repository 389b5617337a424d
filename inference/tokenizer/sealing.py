"""Seal what a chat template must not touch or create: token ids, and text that looks like a control token.

A seal is a number between two copies of a private-use character that occurs in no message and not in the template.
The template carries it through like any other text; afterwards the rendered text is cut at the control tokens, which
only the template itself can have written, and at the seals, whose originals are put back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inference.tokenizer.vocabulary import ControlToken

PRIVATE_USE = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))  # the first ones keep strings narrow


class Piece(NamedTuple):
    """A control token, an original that had been sealed, or ordinary text."""

    control: ControlToken | None = None
    original: str | tuple[int, ...] | None = None
    text: str = ""


class Sealer:
    """Knows the control tokens; gives out the seals of one prompt at a time."""

    def __init__(self, controls: Sequence[ControlToken]) -> None:
        by_length = sorted(controls, key=lambda control: -len(control.text))
        self._controls = {control.text: control for control in controls}
        self._whole = re.compile(_alternatives(re.escape(control.text) for control in by_length))
        self._in_rendered = _alternatives(
            (r"\s*" if control.strips_left else "") + re.escape(control.text) + (r"\s*" if control.strips_right else "")
            for control in by_length
        )
        cuts = [(text, cut) for text in self._controls for cut in range(1, len(text))]
        self._heads = frozenset(text[:cut] for text, cut in cuts)
        self._tails = frozenset(text[cut:] for text, cut in cuts)
        self._all = "\0".join(self._controls)
        self._edge_chars = sorted({char for text in self._controls for char in (text[0], text[-1])})
        self._max_chars = max(map(len, self._controls), default=0)

    def open_seals(self, texts: Iterable[str], template: str) -> Seals:
        """Seals for a prompt made of these texts."""
        texts = [template, *texts]
        mark = next(char for char in map(chr, PRIVATE_USE) if not any(char in text for text in texts))
        return Seals(self, mark)

    def unsafe_spans(self, text: str) -> list[tuple[int, int]]:
        """Where the text holds a control token, or a part of one that could become whole beside other text: a head
        at its end, a tail at its beginning, a middle that is all of it."""
        core = text.strip()
        if len(core) <= self._max_chars and core and core in self._all:
            start = text.index(core)
            return [(start, start + len(core))]
        if not any(char in text for char in self._edge_chars):
            return []
        spans = [match.span() for match in self._whole.finditer(text)]
        first, last = (spans[0][0], spans[-1][1]) if spans else (len(text), 0)
        start, stop = len(text) - len(text.lstrip()), len(text.rstrip())
        for size in range(min(self._max_chars, first - start), 0, -1):
            if text[start : start + size] in self._tails:
                spans.insert(0, (start, start + size))
                last = max(last, start + size)
                break
        for size in range(min(self._max_chars, stop - last), 0, -1):
            if text[stop - size : stop] in self._heads:
                spans.append((stop - size, stop))
                break
        return spans

    def cut(self, text: str, seals: Seals) -> list[Piece]:
        """The pieces of rendered text, in order."""
        pieces, position = [], 0
        for match in re.finditer(f"{seals.mark}([0-9]+){seals.mark}|{self._in_rendered}", text):
            if match.start() > position:
                pieces.append(Piece(text=text[position : match.start()]))
            position = match.end()
            if match[1] is not None:
                pieces.append(Piece(original=seals.originals[int(match[1])]))
            else:
                found = self._controls.get(match[0]) or self._controls[match[0].strip()]
                pieces.append(Piece(control=found))
        if position < len(text):
            pieces.append(Piece(text=text[position:]))
        return pieces


class Seals:
    """The seals of one prompt."""

    def __init__(self, sealer: Sealer, mark: str) -> None:
        self.mark = mark
        self.originals: list[str | tuple[int, ...]] = []
        self._sealer = sealer

    def seal(self, original: str | tuple[int, ...]) -> str:
        """Text that stands for the original in what the template sees."""
        self.originals.append(original)
        return f"{self.mark}{len(self.originals) - 1}{self.mark}"

    def seal_text(self, text: str) -> str:
        """The text with its dangerous parts sealed; almost always the text itself."""
        position, parts = 0, []
        for start, stop in self._sealer.unsafe_spans(text):
            parts += [text[position:start], self.seal(text[start:stop])]
            position = stop
        return "".join((*parts, text[position:])) if parts else text

    def cut(self, text: str) -> list[Piece]:
        """The pieces of rendered text, in order: what only a template can have written, and what had been sealed."""
        return self._sealer.cut(text, self)

    def open(self, text: str) -> list[Piece]:
        """The pieces of a message as it was rendered: no control token can be in it, only seals."""
        if self.mark not in text:
            return [Piece(text=text)] if text else []
        parts = re.split(f"{self.mark}([0-9]+){self.mark}", text)
        pieces = [
            Piece(original=self.originals[int(part)]) if index % 2 else Piece(text=part)
            for index, part in enumerate(parts)
        ]
        return [piece for piece in pieces if piece.text or piece.original is not None]


def _alternatives(patterns: Iterable[str]) -> str:
    return "|".join(patterns) or r"(?!)"  # nothing matches nothing
