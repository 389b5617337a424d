"""strftime_now for chat templates: a date that does not change, written the same everywhere.

Python's strftime asks the C library, which knows other directives on every system, speaks the language of the process,
and fills a gigabyte for "%999999999d".
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context

from inference.tokenizer.budget import budget_of

MAX_FORMAT_CHARS = 256
_DIRECTIVE = re.compile(r"%(-?)(.?)", re.DOTALL)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_WRITE: dict[str, Callable[[datetime.date], str]] = {
    "d": lambda day: f"{day.day:02}",
    "e": lambda day: f"{day.day:2}",
    "m": lambda day: f"{day.month:02}",
    "y": lambda day: f"{day.year % 100:02}",
    "Y": lambda day: f"{day.year}",
    "j": lambda day: f"{day.timetuple().tm_yday:03}",
    "a": lambda day: _DAYS[day.weekday()][:3],
    "A": lambda day: _DAYS[day.weekday()],
    "b": lambda day: _MONTHS[day.month - 1][:3],
    "B": lambda day: _MONTHS[day.month - 1],
    "F": lambda day: day.isoformat(),
    "H": lambda day: "00",  # a date has no time of day; a template that asks for one gets midnight
    "I": lambda day: "12",
    "M": lambda day: "00",
    "S": lambda day: "00",
    "p": lambda day: "AM",
    "%": lambda day: "%",
}


def strftime_of(today: datetime.date) -> Callable[..., str]:
    """What a template may call as strftime_now: it always answers with that day."""

    @pass_context
    def strftime_now(context: Context, pattern: Any) -> str:
        if not isinstance(pattern, str) or len(pattern) > MAX_FORMAT_CHARS:
            raise SecurityError(f"strftime_now with something else than up to {MAX_FORMAT_CHARS} characters")
        budget_of(context).charge_chars(len(pattern))
        return _DIRECTIVE.sub(lambda found: _written(today, found[1], found[2]), pattern)

    return strftime_now


def _written(today: datetime.date, flag: str, letter: str) -> str:
    if letter not in _WRITE:
        raise SecurityError(f"strftime_now does not know %{flag}{letter}")
    text = _WRITE[letter](today)
    return text.lstrip("0 ") or "0" if flag else text
