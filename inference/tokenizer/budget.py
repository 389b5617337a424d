"""What one rendering of a chat template may still do: work and characters, both in proportion to its input.

Work is charged before it is done. Knows nothing about Jinja beyond the context that carries the budget.
"""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.utils import Namespace

BASE_WORK = 300_000  # one unit is one loop pass, call or list item, or 16 characters: under a microsecond
WORK_PER_MESSAGE = 500
WORK_PER_CHAR = 1
CHARS_PER_UNIT = 16
COMPARISONS_PER_UNIT = 1 << 10  # of characters, inside one search
BASE_CHARS = 1 << 18  # no string, and no output, may be longer than this plus four times the input ...
CHARS_PER_MESSAGE = 1 << 10  # ... plus this for what stands around each message
MAX_INTEGER_BITS = 1 << 8  # so arithmetic and printing take no time worth counting
VIEWS = (KeysView, ValuesView, ItemsView)
BUDGET_KEY = "budget of this rendering"  # has spaces, so no template can name it


class BudgetExceeded(SecurityError):
    """The template does more than its input can explain."""


class Budget:
    """Counts down. Every method raises BudgetExceeded when it would fall below nothing."""

    def __init__(self, *, num_messages: int, num_chars: int) -> None:
        self.work = BASE_WORK + WORK_PER_MESSAGE * num_messages + WORK_PER_CHAR * num_chars
        self.max_chars = BASE_CHARS + CHARS_PER_MESSAGE * num_messages + 4 * num_chars
        self.output_chars = self.max_chars  # over everything written, captured blocks and macros included

    def charge(self, work: int) -> None:
        assert work >= 0, work
        self.work -= work
        if self.work < 0:
            raise BudgetExceeded("the template does not come to an end")

    def charge_chars(self, num_chars: int) -> None:
        """A string of so many characters is about to be made or read."""
        if num_chars > self.max_chars:
            raise BudgetExceeded(f"a string of {num_chars} characters, at most {self.max_chars} are allowed")
        self.charge(1 + num_chars // CHARS_PER_UNIT)

    def charge_deep(self, value: Any) -> None:
        """The value is about to be printed, compared or copied with all that is in it. A list that holds another one
        many times costs what it would print, not what it takes: [x, x] nested forty times ends here."""
        if isinstance(value, str):
            self.charge_chars(len(value))
            return
        self.charge(1)
        if isinstance(value, Namespace):  # prints all that is in it
            value = value._Namespace__attrs
        if isinstance(value, Mapping):
            for key, item in value.items():
                self.charge_deep(key)
                self.charge_deep(item)
        elif isinstance(value, (list, tuple, *VIEWS)):
            for item in value:
                self.charge_deep(item)

    def charge_search(self, text: str, wanted: Any) -> None:
        """Python's searches from the right, and stripping, compare every character of one with every one of the other
        when it comes to the worst."""
        self.charge(len(text) * len(str(wanted)) // COMPARISONS_PER_UNIT)

    def charge_flat(self, value: Any) -> None:
        """The items of the value are about to be walked or copied, and not looked into."""
        self.charge(1 + (len(value) if isinstance(value, (str, list, tuple, Mapping, *VIEWS)) else 0))

    def check_integer(self, value: Any) -> None:
        """Raises BudgetExceeded for an integer that is too large to compute with."""
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise BudgetExceeded(f"an integer of {value.bit_length()} bits, at most {MAX_INTEGER_BITS} are allowed")

    def charge_output(self, num_chars: int) -> None:
        self.output_chars -= num_chars
        if self.output_chars < 0:
            raise BudgetExceeded(f"more than {self.max_chars} characters of output")


def budget_of(context: Context) -> Budget:
    """The budget that render() put into the context."""
    budget = context.parent[BUDGET_KEY]
    assert isinstance(budget, Budget)
    return budget
