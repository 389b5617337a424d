"""The filters and tests that a chat template may use, each paid for before it runs.

A list of what is allowed: what is not here (center, format, wordwrap, batch, round, xmlattr, ...) can make a gigabyte
or an hour out of one number, or is of no use in a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Context, Undefined
from jinja2.tests import TESTS

from inference.tokenizer.budget import Budget, budget_of

MAX_INDENT = 8
MAX_SEPARATOR_CHARS = 8
MAX_PATH_PARTS = 16  # of an attribute: "a.b.c" is looked up part by part, for every item


# Where filters take the name of an attribute when it is not given by name.
_PATH_AT = {
    FILTERS[name]: position
    for name, position in (
        ("selectattr", 0), ("rejectattr", 0), ("sum", 0), ("unique", 1), ("min", 1), ("max", 1), ("sort", 2),
    )
}  # fmt: skip


def charged(function: Callable[..., Any], charge: Callable[[Budget, Any], None]) -> Callable[..., Any]:
    """The filter or test, paid for by its input, its arguments and the list it makes; lazy ones item by item."""
    wanted = getattr(function, "jinja_pass_arg", None)
    path_at = _PATH_AT.get(function)

    @pass_context
    def charged_function(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = budget_of(context)
        if isinstance(value, Iterator):
            value = list(counted(budget, value, 1))
        charge(budget, value)
        for argument in (*args, *kwargs.values()):
            budget.charge_deep(argument)
        _check_path(kwargs.get("attribute"))
        _check_path(args[path_at] if path_at is not None and len(args) > path_at else None)
        passed = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        first = () if wanted is None else (passed[wanted.name],)
        result = function(*first, value, *args, **kwargs)
        if isinstance(result, Iterator):
            return counted(budget, result, 1)
        if isinstance(result, list):
            budget.charge_flat(result)
        return result

    return charged_function


def _check_path(attribute: Any) -> None:
    """It is looked up in every item anew."""
    if attribute is not None and not isinstance(attribute, str | int):
        raise SecurityError("an attribute that is neither a name nor a number")
    if isinstance(attribute, str) and attribute.count(".") + attribute.count(",") >= MAX_PATH_PARTS:
        raise SecurityError(f"an attribute of more than {MAX_PATH_PARTS} parts")


def counted(budget: Budget, items: Any, cost: int) -> Iterator[Any]:
    """The items, each paid for as it passes."""
    for item in items:
        budget.charge(cost)
        yield item


def replaced(budget: Budget, text: str, old: Any, new: Any, count: Any = None) -> str:
    """str.replace, with the size of the result known beforehand."""
    old, new = str(old), str(new)
    num_found = text.count(old)
    budget.charge_chars(len(text) + num_found * len(new))
    return text.replace(old, new, -1 if count is None else int(count))


def joined(budget: Budget, separator: str, items: Any) -> str:
    """str.join over whatever the items print as."""
    items = list(counted(budget, items, 1))
    budget.charge_deep(items)
    parts = [str(item) for item in items]
    budget.charge_chars(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


@pass_context
def _replace(context: Context, value: Any, old: Any, new: Any, count: Any = None) -> str:
    budget = budget_of(context)
    budget.charge_deep(value)
    return replaced(budget, str(value), old, new, count)


@pass_context
def _join(context: Context, items: Any, separator: Any = "", attribute: Any = None) -> str:
    budget = budget_of(context)
    if attribute is not None:
        _check_path(attribute)
        items = (context.environment.getitem(item, attribute) for item in items)
    return joined(budget, str(separator), items)


@pass_context
def _safe(context: Context, value: Any) -> Any:
    """Nothing is escaped in a prompt, so nothing need be marked as safe."""
    return value


def _measure(value: Any) -> tuple[int, int]:
    """Items and depth of nested lists and objects."""
    if not isinstance(value, Mapping | list | tuple):
        return 1, 0
    inside = [_measure(item) for item in (value.values() if isinstance(value, Mapping) else value)]
    return 1 + sum(lines for lines, _ in inside), 1 + max((depth for _, depth in inside), default=0)


@pass_context
def _trim(context: Context, value: Any, chars: Any = None) -> str:
    budget = budget_of(context)
    budget.charge_deep(value)
    if chars is not None:
        budget.charge_search(str(value), chars)
    return str(value).strip(chars)


@pass_context
def _sum(context: Context, items: Any, attribute: Any = None, start: Any = 0) -> Any:
    """Numbers only: adding up lists copies the first ones again and again."""
    if not isinstance(start, int | float):
        raise SecurityError("sum of something else than numbers")
    return _SUM(context, items, attribute, start)


@pass_context
def _int(context: Context, value: Any, default: Any = 0, base: Any = 10) -> Any:
    """Digits to the base of 16 are read however many they are."""
    number = _INT(context, value, default, base)
    budget_of(context).check_integer(number)
    return number


@pass_context
def _indent(context: Context, value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    """The text with so many spaces, or with that text, in front of its lines."""
    space = " " * width if isinstance(width, int) and 0 <= width <= MAX_INDENT else width
    if not isinstance(space, str) or len(space) > MAX_INDENT:
        raise SecurityError(f"indent by more than {MAX_INDENT} characters")
    text = str(value)
    budget_of(context).charge_chars(len(text) * (1 + len(space)))
    return str(FILTERS["indent"](text, space, first, blank))


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the reference implementation writes it: not escaped for HTML."""
    if indent is not None and not 0 <= int(indent) <= MAX_INDENT:
        raise SecurityError(f"tojson with indent {indent}, legal are 0 to {MAX_INDENT}")
    if separators is not None and any(len(separator) > MAX_SEPARATOR_CHARS for separator in separators):
        raise SecurityError(f"tojson with separators of more than {MAX_SEPARATOR_CHARS} characters")
    budget = budget_of(context)
    budget.charge_deep(value)
    if indent is not None:
        num_lines, depth = _measure(value)
        budget.charge_chars(num_lines * depth * int(indent))
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    budget.charge_chars(len(text))
    return text


@pass_context
def finalize(context: Context, value: Any) -> str:
    """Called for every {{ ... }}."""
    budget = budget_of(context)
    if not isinstance(value, str):
        budget.charge_deep(value)
        value = str(value)
    budget.charge_output(len(value))
    return str(value)


# --- woven into every template by sandbox_tree ------------------------------------------------------------------------


@pass_context
def _loop(context: Context, items: Any, cost: int) -> Any:
    """Around what a `for` walks: each pass costs as much as its body is large."""
    return items if isinstance(items, Undefined) else counted(budget_of(context), items, cost)


@pass_context
def _enter(context: Context, cost: int, num_chars: int) -> None:
    """At the head of a loop, macro or block: pays for its statements and its literal text."""
    budget = budget_of(context)
    budget.charge(cost)
    budget.charge_output(num_chars)


@pass_context
def _deep(context: Context, value: Any) -> Any:
    """Around what is compared or searched."""
    budget_of(context).charge_deep(value)
    return value


@pass_context
def _flat(context: Context, value: Any) -> Any:
    """Around what is sliced."""
    budget_of(context).charge_flat(value)
    return value


@pass_context
def _concat(context: Context, parts: list[Any]) -> str:
    """The operator ~."""
    return joined(budget_of(context), "", parts)


def _cheap(budget: Budget, value: Any) -> None:
    budget.charge(1)


_DEEP = (
    "abs",
    "capitalize",
    "d",
    "default",
    "dictsort",
    "float",
    "lower",
    "max",
    "min",
    "sort",
    "string",
)
_DEEP_TOO = ("title", "unique", "upper")
_FLAT = ("items", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr")
_CHEAP = ("count", "first", "last", "length")
_COMPARING = (
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
)

_INT = charged(FILTERS["int"], Budget.charge_deep)
_SUM = charged(FILTERS["sum"], Budget.charge_deep)
SAFE_FILTERS: dict[str, Callable[..., Any]] = {
    **{name: charged(FILTERS[name], Budget.charge_deep) for name in _DEEP + _DEEP_TOO},
    **{name: charged(FILTERS[name], Budget.charge_flat) for name in _FLAT},
    **{name: charged(FILTERS[name], _cheap) for name in _CHEAP},
    "join": _join,
    "replace": _replace,
    "safe": _safe,
    "indent": _indent,
    "int": _int,
    "sum": _sum,
    "trim": _trim,
    "tojson": _tojson,
}
# Woven into every template by sandbox_tree. A template can not write these names, and the sandbox looks none up that a
# template hands to `map` as text: a pass that costs less than nothing would be the end of all bounds.
WOVEN_FILTERS: dict[str, Callable[..., Any]] = {
    "<loop>": _loop,
    "<enter>": _enter,
    "<deep>": _deep,
    "<flat>": _flat,
    "<concat>": _concat,
}
_TESTS: dict[str, Any] = dict(TESTS)
SAFE_TESTS: dict[str, Callable[..., Any]] = {
    **_TESTS,
    **{name: charged(_TESTS[name], Budget.charge_deep) for name in (*_COMPARING, "in", "lower", "upper")},
}
