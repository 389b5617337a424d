"""Run a chat template that nobody here wrote: it can neither reach outside, nor run for ever, nor fill the memory.

Jinja's own sandbox bounds neither time nor memory. Here what may be called is listed, and every loop pass, call, filter
and growing operator is charged to a budget before it happens. Knows nothing about tokens (chat_template).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from inference.errors import TemplateError
from inference.tokenizer.budget import BUDGET_KEY, MAX_INTEGER_BITS, Budget, BudgetExceeded, budget_of
from inference.tokenizer.sandbox_filters import (
    SAFE_FILTERS,
    SAFE_TESTS,
    WOVEN_FILTERS,
    finalize,
    joined,
    replaced,
)
from inference.tokenizer.sandbox_tree import is_transparent, weave

MAX_SOURCE_CHARS = 1 << 16
FILE_NAME = "<chat template>"

SLOW_METHODS = frozenset(("rfind", "rsplit", "rpartition", "strip", "lstrip", "rstrip"))

# What may be read of a value, by its exact type; str.format, int.to_bytes, __class__ and the rest are refused.
# fmt: off
SAFE_ATTRIBUTES: dict[type, frozenset[str]] = {
    str: frozenset((
        "strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace", "join", "startswith", "endswith",
        "split", "rsplit", "splitlines", "partition", "rpartition", "find", "rfind", "index", "count",
        "lower", "upper", "title", "capitalize", "isdigit", "isalpha", "isspace",
    )),
    dict: frozenset(("items", "keys", "values", "get")),
    LoopContext: frozenset((
        "index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0",
        "previtem", "nextitem", "changed", "cycle",
    )),
}
# fmt: on


class Sandbox:
    """One compiled template. render() may be called from several threads.

    is_transparent: contents are written out as they are and never looked at, so that rendering any other contents tells
    what stands around these.

    As in the reference implementation: trim_blocks, lstrip_blocks, loop controls, `generation` blocks,
    `raise_exception`, `tojson` without HTML escapes. `strftime_now` is there when the caller hands in a date (see
    dates): what was sent must be replayed, and a clock in front of the history would change it every day.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateError(f"{len(source)} characters, at most {MAX_SOURCE_CHARS} are allowed")
        environment = _Environment()
        try:
            tree = environment.parse(source)
            self.is_transparent = is_transparent(tree)  # before weaving, which changes the tree
            code = environment.compile(weave(tree), FILE_NAME, FILE_NAME)
        except TemplateSyntaxError as error:
            raise TemplateError(error.message or "syntax error", line=error.lineno) from error
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # from Python's own compiler
            raise TemplateError(f"it does not compile ({type(error).__name__})") from error
        self._template = environment.template_class.from_code(environment, code, environment.globals)

    def render(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        """The text that the template makes of the messages. Raises TemplateError with the line at fault."""
        num_chars = sum(len(message["content"]) for message in messages)
        budget = Budget(num_messages=len(messages), num_chars=num_chars)
        try:
            return self._template.render({**variables, "messages": messages, BUDGET_KEY: budget})
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            LookupError,
            ArithmeticError,
            AttributeError,
            RuntimeError,
            MemoryError,
        ) as error:  # all that an expression can raise
            raise TemplateError(str(error) or type(error).__name__, line=_line_of(error)) from error


def _line_of(error: BaseException) -> int:
    """The template line an error came from: Jinja rewrites tracebacks so that they show lines of the template."""
    line, entry = 0, error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == FILE_NAME:
            line = entry.tb_lineno
        entry = entry.tb_next
    return line


class _GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks what a model was trained on; in a prompt it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with lists of what is allowed instead of what is not, and with a price on everything."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # else constant expressions run in the compiler, where there is no budget yet
            extensions=[loopcontrols, _GenerationTag],
            finalize=finalize,
        )
        self.filters = SAFE_FILTERS | WOVEN_FILTERS
        self.tests = dict(SAFE_TESTS)
        self.globals = {
            "range": _range,
            "dict": dict,
            "namespace": Namespace,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": _raise_exception,
        }

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        allowed = SAFE_ATTRIBUTES.get(type(obj))
        if allowed is not None:
            return attr in allowed
        return isinstance(obj, Namespace | Cycler | Macro) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Jinja would hand out a str.format of its own here, which knows no limit."""
        return

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """A filter named in a text, as `map` takes it."""
        if name in WOVEN_FILTERS:
            raise SecurityError(f"there is no filter {name!r}")
        return super().call_filter(name, *args, **kwargs)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = budget_of(context)
        budget.charge(1)
        for value in (*args, *kwargs.values()):
            budget.charge_deep(value)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            budget.charge_chars(len(owner))
            if obj.__name__ in SLOW_METHODS and args:
                budget.charge_search(owner, args[0])
            if obj.__name__ == "replace":
                return replaced(budget, owner, *args)
            if obj.__name__ == "join":
                return joined(budget, owner, *args)
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, list):
            budget.charge_flat(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget: Budget = context.parent[BUDGET_KEY]
        if operator == "+" and type(left) is str and type(right) is str:  # most of what templates do
            budget.charge_chars(len(left) + len(right))
            return left + right
        _charge_operator(budget, operator, left, right)
        return super().call_binop(context, operator, left, right)


def _charge_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Refuse what would grow beyond bounds, before it is computed."""
    if operator == "*" and isinstance(left, int) and isinstance(right, str | list | tuple):
        left, right = right, left
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_INTEGER_BITS:
            raise BudgetExceeded(f"an integer of up to {bits} bits, at most {MAX_INTEGER_BITS} are allowed")
    elif isinstance(left, str | list | tuple):
        if operator == "%":
            raise SecurityError("the operator % is not offered for text")
        if operator == "*" and isinstance(right, int):
            size = len(left) * max(right, 0)
        else:
            size = len(left) + (len(right) if isinstance(right, str | list | tuple) else 0)
        if isinstance(left, str):
            budget.charge_chars(size)
        else:
            budget.charge(1 + size)


@pass_context
def _range(context: Context, *bounds: int) -> list[int]:
    """range() as a list, paid for by its length."""
    wanted = range(*bounds)
    budget_of(context).charge(1 + len(wanted))
    return list(wanted)


def _raise_exception(message: str) -> NoReturn:
    """What a template calls to refuse a conversation."""
    raise jinja2.TemplateError(message)
