"""The dialect: CommonMark, tables, strikethrough, task lists, maths, bare addresses; HTML is text, images are links."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import unescapeAll
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from chatapp.markup import links, maths
from chatapp.markup.code import highlight_code
from chatapp.markup.plain import code_figure, code_label

MAX_NESTING = 40  # levels of tokens: 20 nested lists
MAX_HIGHLIGHT_CHARS = 20_000
_CHECKED, _UNCHECKED = "\u2611", "\u2610"  # ballot boxes


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
        return maths.maths_html(tokens[idx].content, tokens[idx].markup)

    def math_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"<p>{maths.maths_html(tokens[idx].content, tokens[idx].markup)}</p>"

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
    links.add_rules(md)
    maths.add_rules(md)
    return md


def fence_label(token: Token) -> str:
    """The language that a fence names."""
    return code_label(unescapeAll(token.info))
