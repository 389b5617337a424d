"""Text made to freeze or to break the renderer, all the way: markdown, jail, sanitiser.

Promised for each: the other threads of the server never stand still for long, what is shown holds the text, and the
next message is rendered as if nothing had been.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import pytest

from chatapp.jail import Jail
from chatapp.markdown import BlockStream, Renderer
from tests.chatapp.watchdog import going_on

BOMB = '```scala\n"' + "\\" * 40


def code(language: str, body: str) -> str:
    return f"```{language}\n{body}\n```"


HANGING_CODE = {
    "scala": BOMB,
    "typescript": code("typescript", "a." * 8000),
    "java": code("java", "a " * 5000 + "("),
    "makefile": code("makefile", "a" * 19_000),
    "console": code("console", "a" * 19_000),
    "javascript": code("javascript", "a." * 9000),
}
HOSTILE = {
    "images": "![" * 20_000,
    "links": "[a](" * 20_000,
    "emphasis": "*a_ " * 20_000,
    "brackets": "[" * 20_000,
    "images within the cap": "![" * 9_999,
    "links within the cap": "[a](" * 4_999,
    "brackets within the cap": "[" * 19_999,
    "backticks": "".join("`" * i + " " for i in range(190)),
    "quotes": ">" * 19_999,
    "quotes, a level a line": "\n".join(">" * i + " x" for i in range(1, 190)),
    "wide table": "|" + "a|" * 3000 + "\n|" + "-|" * 3000 + "\n" + "|\n" * 900,
    "definitions": "".join(f"[a{i}]: https://x.org/{i}\n" for i in range(3500)) + "\n[a1]",
    "unclosed maths": "\\[\n# h\n" * 2500 + "\n",
    "addresses": "http://a" * 2_400,
    "colons": "http://" * 2_800,
    "dollars": "$a " * 6_600,
    "long TeX": "$" + "a" * 1990 + "$",
    "oversized TeX": "$$" + "a" * 20_000 + "$$",
    "deep TeX": "$" + "{" * 990 + "}" * 990 + "$",
    "TeX macro": "$\\newcommand{\\x}{\\x\\x}\\x$",
    "deep HTML": "<div>" * 3_999,
    "many paragraphs": "a\n\n" * 10_000,
    "many lines": "a\n" * 9_999,
    "line ends": "\r" * 99_999 + "x",
    "one long word": "a" * 100_000,
    "lone surrogates": "a\ud800" * 5_000,
}


@pytest.fixture(scope="module")
def jail() -> Iterator[Jail]:
    jail = Jail()
    Renderer(jail).render_many(["started"])
    yield jail
    jail.close()


@pytest.fixture
def watchdog() -> Iterator[None]:
    with going_on():
        yield


def shown(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html))


@pytest.mark.usefixtures("watchdog")
@pytest.mark.parametrize("name", HANGING_CODE)
def test_code_that_hangs_the_highlighter_is_shown_plain(jail: Jail, name: str) -> None:
    before = jail.stats()
    text = f"before\n\n{HANGING_CODE[name]}"
    first, block = Renderer(jail).render_many([text])[0]
    assert first == "<p>before</p>"
    body = HANGING_CODE[name].partition("\n")[2].removesuffix("\n```")
    assert block.startswith(f'<figure class="code"><figcaption>{name}</figcaption><pre><code>')
    assert shown(block) == name + body
    assert jail.stats().num_timeouts == before.num_timeouts + 1
    assert Renderer(jail).render_many(["*next*"]) == [("<p><em>next</em></p>",)]


@pytest.mark.usefixtures("watchdog")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_shown_in_bounded_time(jail: Jail, name: str) -> None:
    htmls = Renderer(jail).render_many([HOSTILE[name]])[0]
    assert htmls
    assert shown("".join(htmls)).strip()
    "".join(htmls).encode()
    assert Renderer(jail).render_many(["*next*"]) == [("<p><em>next</em></p>",)]


@pytest.mark.usefixtures("watchdog")
def test_bomb_that_is_written_letter_by_letter_costs_few_kills(jail: Jail) -> None:
    before = jail.stats().num_kills
    text = f"before *it*\n\n{BOMB}\n```\n\nafter *it*"
    blocks = BlockStream(Renderer(jail))
    for end in range(len(text)):
        blocks.update(text[:end])
    blocks.update(text, is_final=True)
    assert [shown(block.html) for block in blocks.blocks] == ["before it", 'scala"' + "\\" * 40, "after it"]
    assert blocks.blocks[2].html == "<p>after <em>it</em></p>"
    assert jail.stats().num_kills - before == 1


@pytest.mark.usefixtures("watchdog")
def test_language_of_many_bombs_is_switched_off(jail: Jail) -> None:
    before = jail.stats().num_kills
    renderer = Renderer(jail)
    for i in range(6):
        renderer.render_many([f"{i}\n\n{BOMB}"])
    assert jail.stats().num_kills - before == 3
