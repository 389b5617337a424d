"""Which links there are: three schemes, definitions of one line, and bare addresses in the text.

CommonMark lets a definition run over several lines; such a one can swallow paragraphs that were complete before it was,
and then no block of a growing text would ever be finished.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference, unescapeAll
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_DEFINITION = re.compile(
    r"""\[((?:[^\[\]\\]|\\.){1,200})\]:[ \t]*(?:<([^<>]*)>|([^\s<]\S*))"""
    r"""(?:[ \t]+(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'))?[ \t]*$"""
)
_SCHEME = re.compile(r"(?<![A-Za-z0-9])https?\Z", re.IGNORECASE)  # Chinese puts no space before an address
_ADDRESS = re.compile(r"""://[^\s<>\[\]`\\"|\u3000-\u303f\uff00-\uff65]{1,2000}""")  # ends at Chinese punctuation, too
_TRAILING = "?!.,:;*_~'"  # belongs to the sentence, as on GitHub


def add_rules(md: MarkdownIt) -> None:
    """Teach `md` what is a link here."""
    md.validateLink = _is_link  # type: ignore[method-assign]
    md.block.ruler.at("reference", _definition)
    md.inline.ruler.before("autolink", "bare_address", _bare_address)


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


def _bare_address(state: StateInline, silent: bool) -> bool:
    """https://... in running text. Called at the colon, the first character here at which markdown-it looks up."""
    match = None if silent or state.linkLevel else _ADDRESS.match(state.src, state.pos, state.posMax)
    scheme = _SCHEME.search(state.pending[-6:]) if match else None  # six: "https" and what is before it
    if match is None or scheme is None:
        return False
    address = _trim(match[0])
    text = scheme[0] + address
    href = state.md.normalizeLink(text)
    if len(address) <= len("://") or not state.md.validateLink(href):
        return False
    state.pending = state.pending[: -len(scheme[0])]
    state.push("link_open", "a", 1).attrs = {"href": href}
    state.push("text", "", 0).content = state.md.normalizeLinkText(text)
    state.push("link_close", "a", -1)
    state.pos += len(address)
    return True


def _trim(address: str) -> str:
    """Without the sentence's punctuation, and without brackets that were opened before the address."""
    num_open = address.count("(") - address.count(")")
    while address and (address[-1] in _TRAILING or (address[-1] == ")" and num_open < 0)):
        num_open += address[-1] == ")"
        address = address[:-1]
    return address
