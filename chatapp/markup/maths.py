"""TeX between $ $, $$ $$, \\( \\) and \\[ \\]: two rules for markdown-it, and the conversion to MathML.

A block of maths holds no blank line, and does not interrupt a paragraph (there the inline rule takes it): so what a
line means never depends on what may come after the next blank line, and a growing text can be cut into blocks.
"""

from __future__ import annotations

import re
from html import escape

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

MAX_TEX_CHARS = 2_000  # the converter takes 20 ms for these and grows faster than linear
MAX_TEX_LINES = 100
_CLOSING = {"$$": "$$", "\\[": "\\]", "\\(": "\\)", "$": "$"}
_ALIASES = re.compile(
    r"\\(begin|end)\{(?:aligned|gathered|gather\*?)\}"
)  # not known to the converter; align* looks alike
_UNKNOWN = re.compile(r"<mi>(?:\\|&</mi>)")  # how the converter shows a command or an environment it does not know


def add_rules(md: MarkdownIt) -> None:
    """Teach `md` the tokens math_inline and math_block: content is the TeX, markup the opening delimiter."""
    md.inline.ruler.before("escape", "math_inline", _math_inline)
    md.block.ruler.before("fence", "math_block", _math_block)


def tex_to_mathml(tex: str, *, is_display: bool) -> str | None:
    """MathML, not yet sanitised (the converter lets HTML in \\text through); None for TeX that it cannot convert."""
    if not tex.strip() or len(tex) > MAX_TEX_CHARS:
        return None
    try:
        mathml = str(convert(_ALIASES.sub(r"\\\1{align*}", tex), display="block" if is_display else "inline"))
    except Exception:  # noqa: BLE001  wrong TeX raises anything here, IndexError and RecursionError included
        return None
    return None if _UNKNOWN.search(mathml) else mathml


def maths_html(tex: str, markup: str) -> str:
    """MathML, or the source in a code span."""
    mathml = tex_to_mathml(tex, is_display=markup in ("$$", "\\["))
    return mathml or f'<code class="tex">{escape(markup + tex + _CLOSING[markup])}</code>'


def _math_inline(state: StateInline, silent: bool) -> bool:
    start = state.pos
    markup = next((opening for opening in _CLOSING if state.src.startswith(opening, start)), None)
    if markup is None:
        return False
    content = start + len(markup)
    end = _dollar_end(state.src, content) if markup == "$" else _end(state.src, markup, content)
    if end < 0 or end > state.posMax - len(_CLOSING[markup]) or not state.src[content:end].strip():
        return False
    if not silent:
        token = state.push("math_inline", "math", 0)
        token.content = state.src[content:end]
        token.markup = markup
    state.pos = end + len(_CLOSING[markup])
    return True


def _end(src: str, markup: str, start: int) -> int:
    return src.find(_CLOSING[markup], start, start + MAX_TEX_CHARS)


def _dollar_end(src: str, start: int) -> int:
    """Pandoc's rule, which leaves "$5 and $6" alone: no space inside the dollars, no digit behind them. Only the next
    dollar is tried: trying all of them from all of them is quadratic."""
    end = src.find("$", start, start + MAX_TEX_CHARS)
    while end > 0 and src[end - 1] == "\\":
        end = src.find("$", end + 1, start + MAX_TEX_CHARS)
    if end <= start or src[start].isspace() or src[end - 1].isspace() or "\n" in src[start:end]:
        return -1
    return -1 if src[end + 1 : end + 2].isdigit() else end


def _math_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """$$ or \\[ at the start of a line, up to its closing at the end of one. Without one yet, all up to the end."""
    if silent or state.is_code_block(start_line):
        return False
    first = state.bMarks[start_line] + state.tShift[start_line]
    markup = state.src[first : first + 2]
    if markup not in ("$$", "\\["):
        return False
    closing = _CLOSING[markup]
    parts: list[str] = []
    num_chars = 0
    for line in range(start_line, end_line):
        if line > start_line and (state.isEmpty(line) or state.sCount[line] < state.blkIndent):
            return False
        begin = first + 2 if line == start_line else state.bMarks[line] + state.tShift[line]
        text = state.src[begin : state.eMarks[line]]
        num_chars += len(text)
        if num_chars > MAX_TEX_CHARS or line - start_line >= MAX_TEX_LINES:
            return False  # many openings that are never closed would each be searched to the end
        tex, found, rest = text.partition(closing)
        parts.append(tex)
        if found:
            return not rest.strip() and _push(state, markup, parts, start_line, line + 1)
    return _push(state, markup, parts, start_line, end_line)


def _push(state: StateBlock, markup: str, parts: list[str], start_line: int, end_line: int) -> bool:
    token = state.push("math_block", "math", 0)
    token.block = True
    token.content = "\n".join(parts)
    token.markup = markup
    token.map = [start_line, end_line]
    state.line = end_line
    return True
