"""How amounts are written in a terminal, which speaks English only; the pages have formats/ and filters for that.

Text out of files or from a server goes through logs.escaped before it is written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import TextIO

REFRESH_S = 0.1
INTERVAL_S = 30.0


def size(num_bytes: int) -> str:
    """Three digits in powers of ten, as disks are sold: 98.4 MB."""
    return _scaled(num_bytes, ("B", "kB", "MB", "GB", "TB"))


def count(number: int) -> str:
    """Three digits, as models are named by their parameters: 135 M, 1.71 B."""
    return _scaled(number, ("", "K", "M", "B", "T"))


def _scaled(number: int, units: tuple[str, ...]) -> str:
    value, power = float(number), 0
    while value >= 999.5 and power < len(units) - 1:
        value /= 1000
        power += 1
    digits = f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"
    return f"{digits} {units[power]}".strip()


def columns(lines: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> list[str]:
    """Lines in columns as wide as they need to be. The first one has the headings; those in `right` are of numbers."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    aligned = [
        [
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, width, heading in zip(line, widths, lines[0], strict=True)
        ]
        for line in lines
    ]
    return ["  ".join(cells).rstrip() for cells in aligned]


class ProgressLine:
    """How far something is: one line that rewrites itself on a terminal, elsewhere a line now and then."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._is_terminal = stream.isatty()
        self._started: dict[str, tuple[float, int]] = {}  # what -> when it began, and with how many bytes
        self._written_at = -math.inf if self._is_terminal else clock()
        self._width = 0  # of what stands in the line

    def show(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        began_at, first = self._started.setdefault(what, (now, done))
        is_end = done >= total
        if now - self._written_at < (REFRESH_S if self._is_terminal else INTERVAL_S) and not is_end:
            return
        self._written_at = now
        text = f"{what} {100 * done // max(total, 1):3d} %, {size(done)} of {size(total)}"
        if (seconds := now - began_at) > 1 and done > first and not is_end:
            speed = (done - first) / seconds
            text += f", {size(int(speed))}/s, {_duration((total - done) / speed)} left"
        if self._is_terminal:
            self._stream.write("\r" + text.ljust(self._width) + ("\n" if is_end else ""))
            self._width = 0 if is_end else len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """What is written next begins on a line of its own."""
        if self._width:
            self._stream.write("\n")
            self._width = 0


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
