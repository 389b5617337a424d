"""Code -> HTML with Pygments class names; no style of its own.

Some lexers run for ever on 40 bytes and hold the interpreter while they do: only ever called in the jail.
"""

from __future__ import annotations

from html import escape

from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

_FORMATTER = HtmlFormatter(nowrap=True)


def highlight_code(code: str, label: str) -> str:
    """HTML of `code` in the language `label`; escaped text where Pygments does not know it."""
    try:
        lexer = get_lexer_by_name(label, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return escape(code)
    return str(highlight(code, lexer, _FORMATTER))
