"""Text shown as it is: what a reader gets when a block is too large, too deep or too slow to be rendered.

Linear in the text and without a grammar, so it is safe in the server's own process.
"""

from __future__ import annotations

import re
from html import escape

NEWLINE = re.compile(r"\r\n?|\n")  # what Markdown calls a line ending; str.splitlines knows many more
_UNSHOWABLE = re.compile("[\x00\ud800-\udfff]")  # cannot stand in HTML, or not in UTF-8
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)")
MAX_LABEL_CHARS = 32


def normalise(text: str) -> str:
    """`text` with line ends as \\n and without what HTML in UTF-8 cannot hold."""
    return _UNSHOWABLE.sub("\ufffd", NEWLINE.sub("\n", text))


def code_label(info: str) -> str:
    """The language that the info string of a fence names, as shown and as counted by the circuit breaker."""
    words = info.split(maxsplit=1)
    return words[0][:MAX_LABEL_CHARS].lower() if words else ""


def code_figure(label: str, code_html: str) -> str:
    """A code block. `code_html` is finished HTML, `label` is not."""
    return f'<figure class="code"><figcaption>{escape(label)}</figcaption><pre><code>{code_html}</code></pre></figure>'


def plain_block(source: str) -> str:
    """One block as its source: a fence still as a code block, anything else with its lines kept."""
    lines = source.strip("\n").split("\n")
    fence = _FENCE.match(lines[0])
    if fence is None:
        return f'<pre class="plain">{escape(source.strip(chr(10)))}</pre>'
    body = lines[1:]
    if body and _closes(body[-1], fence[1]):
        body.pop()
    return code_figure(code_label(fence[2]), escape("\n".join(body)))


def plain_blocks(text: str) -> tuple[str, ...]:
    """All of `text` as plain blocks, cut at blank lines and around fences."""
    blocks: list[list[str]] = [[]]
    fence = ""
    for line in normalise(text).split("\n"):
        opening = _FENCE.match(line)
        if fence:
            blocks[-1].append(line)
            if _closes(line, fence):
                fence = ""
                blocks.append([])
        elif opening:
            fence = opening[1]
            blocks.append([line])
        elif line.strip():
            blocks[-1].append(line)
        else:
            blocks.append([])
    return tuple(plain_block("\n".join(lines)) for lines in blocks if lines)


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and mark == fence[0] * len(mark)
