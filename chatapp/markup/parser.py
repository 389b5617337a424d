"""The dialect: CommonMark with tables, strikethrough, task lists and maths; HTML is text, images are links.

One rule departs from CommonMark: a link reference definition is one line. Over several lines, it can swallow paragraphs
that were complete before it was, and then no block of a growing text would ever be finished.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference, unescapeAll
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from chatapp.markup.code import highlight_code
from chatapp.markup.maths import add_rules, maths_html
from chatapp.markup.plain import code_figure, code_label

MAX_NESTING = 40  # levels of tokens: 20 nested lists
MAX_HIGHLIGHT_CHARS = 20_000
_CHECKED, _UNCHECKED = "\u2611", "\u2610"  # ballot boxes
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_DEFINITION = re.compile(
    r"""\[((?:[^\[\]\\]|\\.){1,200})\]:[ \t]*(?:<([^<>]*)>|([^\s<]\S*))"""
    r"""(?:[ \t]+(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'))?[ \t]*$"""
)


class HtmlRenderer(RendererHTML):
    """HTML of tokens. Reads from env: max_highlight_chars, plain_languages (labels that are not highlighted)."""

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        code = tokens[idx].content.removesuffix("\n")
        label = fence_label(tokens[idx])
        is_plain = not label or label in env["plain_languages"] or len(code) > env["max_highlight_chars"]
        return code_figure(label, escape(code) if is_plain else highlight_code(code, label))

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return code_figure("", escape(tokens[idx].content.removesuffix("\n")))

    def math_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return maths_html(tokens[idx].content, tokens[idx].markup)

    def math_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"<p>{maths_html(tokens[idx].content, tokens[idx].markup)}</p>"

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """A link to the image: loading it would tell its server that this was read. Inside a link only its text."""
        token = tokens[idx]
        source = str(token.attrGet("src") or "")
        text = escape(self.renderInlineAsText(token.children, options, env) or source)
        return text if env.get("is_in_link") else f'<a href="{escape(source)}">{text}</a>'

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        env["is_in_link"] = True
        return self.renderToken(tokens, idx, options, env)

    def link_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        env["is_in_link"] = False
        return self.renderToken(tokens, idx, options, env)

    def list_item_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        item = self.renderToken(tokens, idx, options, env)
        if "checked" not in tokens[idx].meta:
            return item
        return f'{item}<span class="task">{_CHECKED if tokens[idx].meta["checked"] else _UNCHECKED}</span> '

    def th_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Alignment as a class: the content security policy allows no inline style."""
        align = str(tokens[idx].attrGet("style") or "").removeprefix("text-align:")
        return f'<{tokens[idx].tag} class="align-{align}">' if align else f"<{tokens[idx].tag}>"

    td_open = th_open


def build_parser() -> MarkdownIt:
    """The one parser of the child; making it takes a few milliseconds."""
    options: dict[str, Any] = {
        "html": False,
        "breaks": True,  # in a chat, a line break is meant
        "tasklists": True,
        "xhtmlOut": False,
        "maxNesting": MAX_NESTING,
    }
    md = MarkdownIt("commonmark", options, renderer_cls=HtmlRenderer).enable(["table", "strikethrough"])
    md.disable(["html_block", "html_inline"])
    md.block.ruler.at("reference", _definition)
    add_rules(md)
    md.validateLink = _is_link  # type: ignore[method-assign]
    return md


def fence_label(token: Token) -> str:
    """The language that a fence names."""
    return code_label(unescapeAll(token.info))


def _is_link(url: str) -> bool:
    return _LINK.match(url) is not None


def _definition(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """[label]: destination "title", on one line; the first of a label counts."""
    if silent or state.is_code_block(start_line):
        return False
    line = state.src[state.bMarks[start_line] + state.tShift[start_line] : state.eMarks[start_line]]
    match = _DEFINITION.match(line)
    label = normalizeReference(match[1]) if match else ""
    if match is None or not label:
        return False
    href = state.md.normalizeLink(unescapeAll(match[2] or match[3] or ""))
    if not state.md.validateLink(href):
        return False
    title = unescapeAll(match[4] or match[5] or "")
    state.env.setdefault("references", {}).setdefault(label, {"href": href, "title": title})
    state.line = start_line + 1
    return True
