"""Pages of history: one call for many messages, each rendered once, and what slow ones cost."""

from __future__ import annotations

from chatapp.markdown import MAX_TEXT_CHARS, Renderer
from tests.chatapp.inline_jail import InlineJail

SCALA = "before\n\n```scala\nx\n```\n\n*after*"


def test_page_of_messages_is_one_call() -> None:
    jail = InlineJail()
    texts = [f"message *{i}*" for i in range(50)]
    assert Renderer(jail).render_many(texts) == [(f"<p>message <em>{i}</em></p>",) for i in range(50)]
    assert len(jail.payloads) == 1


def test_large_page_is_cut_into_calls_so_that_others_get_their_turn() -> None:
    jail = InlineJail()
    texts = [f"{i} " + "word " * 4000 for i in range(10)]
    assert all(len(htmls) == 1 for htmls in Renderer(jail).render_many(texts))
    assert [len(payload["items"]) for payload in jail.payloads] == [3, 3, 3, 1]


def test_text_is_rendered_once() -> None:
    jail = InlineJail()
    renderer = Renderer(jail)
    assert renderer.render_many(["a", "b", "a"]) == [("<p>a</p>",), ("<p>b</p>",), ("<p>a</p>",)]
    assert renderer.render_many(["b", "c"]) == [("<p>b</p>",), ("<p>c</p>",)]
    assert [[item["text"] for item in payload["items"]] for payload in jail.payloads] == [["a", "b"], ["c"]]


def test_cache_forgets_the_least_recently_used_beyond_its_bytes() -> None:
    jail = InlineJail()
    renderer = Renderer(jail, max_cache_bytes=700)
    for text in ("a", "b", "a", "c", "a", "b"):
        renderer.render_many([text])
    assert [payload["items"][0]["text"] for payload in jail.payloads] == ["a", "b", "c", "b"]


def test_text_larger_than_the_cache_is_not_kept() -> None:
    jail = InlineJail()
    renderer = Renderer(jail, max_cache_bytes=1000)
    renderer.render_many(["a"])
    renderer.render_many(["x" * 2000])
    renderer.render_many(["a"])
    assert len(jail.payloads) == 2


def test_slow_block_loses_its_highlighting_only() -> None:
    jail = InlineJail(faults=[(2, "timeout")])  # the cut and one block; then the code block takes too long
    htmls = Renderer(jail).render_many([SCALA, "next"])
    assert htmls[0][0] == "<p>before</p>"
    assert htmls[0][1] == '<figure class="code"><figcaption>scala</figcaption><pre><code>x</code></pre></figure>'
    assert htmls[0][2] == "<p><em>after</em></p>"
    assert htmls[1] == ("<p>next</p>",)
    assert jail.payloads[1]["items"][0]["is_bare"]


def test_block_that_is_slow_without_highlighting_is_plain() -> None:
    jail = InlineJail(faults=[(2, "timeout"), (1, "died"), (1, "failed")])
    htmls = Renderer(jail).render_many([SCALA])[0]
    assert htmls[1] == '<figure class="code"><figcaption>scala</figcaption><pre><code>x</code></pre></figure>'
    assert htmls[2] == '<pre class="plain">*after*</pre>'


def test_text_that_cannot_be_cut_in_time_is_plain_and_the_next_one_is_not() -> None:
    jail = InlineJail(faults=[(0, "timeout")])
    assert Renderer(jail).render_many(["*a*\n\nb", "*c*"]) == [
        ('<pre class="plain">*a*</pre>', '<pre class="plain">b</pre>'),
        ("<p><em>c</em></p>",),
    ]


def test_language_that_was_too_slow_three_times_is_not_highlighted_for_a_while() -> None:
    jail = InlineJail(faults=[(1, "timeout"), None] * 3)
    renderer = Renderer(jail)
    for i in range(3):
        renderer.render_many([f"```scala\nx{i}\n```"])
    renderer.render_many(["```scala\nx\n```"])
    assert jail.payloads[-1]["plain_languages"] == ["scala"]
    assert not any(payload["plain_languages"] for payload in jail.payloads[:5])


def test_slow_text_is_not_tried_again_with_every_view() -> None:
    jail = InlineJail(faults=[(1, "timeout")])
    renderer = Renderer(jail)
    first = renderer.render_many(["*a*"])
    assert first == [('<pre class="plain">*a*</pre>',)]
    assert renderer.render_many(["*a*"]) == first
    assert len(jail.payloads) == 1


def test_oversized_text_is_plain_and_asks_nothing_of_the_jail() -> None:
    jail = InlineJail()
    big = "*a*\n\n" * (MAX_TEXT_CHARS // 5 + 1)
    htmls, small = Renderer(jail).render_many([big, "*b*"])
    assert htmls[0] == '<pre class="plain">*a*</pre>'
    assert len(htmls) == MAX_TEXT_CHARS // 5 + 1
    assert small == ("<p><em>b</em></p>",)
    assert [len(payload["items"]) for payload in jail.payloads] == [1]


def test_page_whose_time_is_up_is_plain() -> None:
    jail = InlineJail()
    (rendering,) = Renderer(jail).render(["*a*"], budget_s=0)
    assert rendering.htmls == ('<pre class="plain">*a*</pre>',)
    assert jail.payloads == []


def test_text_that_is_plain_for_want_of_a_jail_is_tried_again() -> None:
    jail = InlineJail(faults=[(0, "unavailable"), (0, "busy")])
    renderer = Renderer(jail)
    plain = [('<pre class="plain">*a*</pre>',)]
    assert [renderer.render_many(["*a*"]) for _ in range(3)] == [plain, plain, [("<p><em>a</em></p>",)]]
