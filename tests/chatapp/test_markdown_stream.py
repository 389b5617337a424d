"""A growing text, shown block by block, ends as what render_blocks makes of the whole of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chatapp.markdown import BlockStream, Renderer, StreamUpdate
from tests.chatapp.inline_jail import InlineJail
from tests.examples import examples

FRAGMENTS = [
    *["\n", "\n\n", "\n\n", "\r\n", "\r", " ", "  ", "    ", "\t", "\x00", "\ud800", "\u2028"],
    *["word", "a b", "2", "1", ".", ")", "x\n", "\\"],
    *["# ", "#", "## head\n", "===", "---", "***", "- ", "* ", "+ ", "-", "1. ", "2. ", "10) ", "> ", ">", "- [x] "],
    *["```", "```python\n", "~~~", "`", "``", "*", "**", "_", "~~", "[", "]", "(", ")", "![", "<", "<b>", "&amp;"],
    *["| a | b |\n", "|---|---|\n", "|--", "|", ":-:", "a | b\n", "--|--\n"],
    *[
        "[a]: https://x.org\n",
        "[a]",
        "[a]:",
        "[b][a]",
        " 'title",
        "'\n",
        "<https://x.org>",
        "https:",
        "//x.org/a",
        "[t](https://x.org)",
    ],
    *["$$", "$", "\n$$\n", "\\[", "\\]", "\\(", "\\)", "x^2", "\\frac{a}{b}", "\\text{<b>}"],
]
MARKDOWN = st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join)
RAW = st.text(alphabet="ab1.)-*+_#>`~|:=[]()!<&$\\ \t\n\r'\"/", max_size=60)


def show(shown: list[str], update: StreamUpdate) -> list[str]:
    """What a tab does with an update."""
    for block in update.blocks:
        assert block.index <= len(shown)
        shown[block.index : block.index + 1] = [block.html]
    return shown[: update.num_blocks]


def stream(text: str, cuts: Sequence[int]) -> tuple[list[str], InlineJail]:
    """What a tab shows after all updates; checks on the way that done means done."""
    jail = InlineJail()
    blocks = BlockStream(Renderer(jail))
    shown: list[str] = []
    done: list[str] = []
    for cut in sorted(cuts):
        shown = show(shown, blocks.update(text[:cut]))
        assert shown == [block.html for block in blocks.blocks]
        now_done = [block.html for block in blocks.blocks if block.is_done]
        assert now_done[: len(done)] == done, "a block that was done has changed"
        assert [block.is_done for block in blocks.blocks] == sorted((b.is_done for b in blocks.blocks), reverse=True)
        done = now_done
    shown = show(shown, blocks.update(text, is_final=True))
    assert all(block.is_done for block in blocks.blocks)
    return shown, jail


def render_blocks(text: str) -> list[str]:
    return list(Renderer(InlineJail()).render_many([text])[0])


@settings(max_examples=examples(400), deadline=None)
@given(text=st.one_of(MARKDOWN, RAW), data=st.data())
def test_stream_ends_as_the_whole_text(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert stream(text, cuts)[0] == render_blocks(text)


@settings(max_examples=examples(150), deadline=None)
@given(text=st.one_of(MARKDOWN, RAW))
@example("1. a\n\n2. b\n\nend")
@example("para\n\n---x\n\n#\n#x")
@example("a\n| x | y |\n|---|---|\n| 1 | 2 |\n\nb")
@example("[a]: /u\n'title\n===\nx\ny'\n\n[a]")
@example("$$\na\n# h\n$$\n\n$$\nb\n\nc\n$$\n")
@example("- $$\n  a\nb\n\nc")
@example("see [a]\n\nmore\n\n[a]: https://x.org\n")
@example("a\r\rb\r\n\r\nc")
def test_stream_of_single_characters_ends_as_the_whole_text(text: str) -> None:
    assert stream(text, range(len(text)))[0] == render_blocks(text)


def test_update_costs_the_open_end_only() -> None:
    paragraphs = [f"Paragraph {i} " + "of some *length* " * 20 for i in range(60)]
    text = "\n\n".join(paragraphs)
    _, jail = stream(text, range(0, len(text), 40))
    longest = max(len(payload["items"][0]["text"]) for payload in jail.payloads)
    assert longest <= 2 * max(map(len, paragraphs)) + 4


def test_blocks_behind_the_open_end_are_sent_once_more_when_done_and_then_never() -> None:
    text = "\n\n".join(f"Paragraph {i}" for i in range(30))
    blocks = BlockStream(Renderer(InlineJail()))
    sent = [block for cut in range(len(text)) for block in blocks.update(text[:cut]).blocks if block.is_done]
    assert [block.index for block in sent] == list(range(29))


def test_list_stays_open_while_a_digit_may_still_become_its_next_item() -> None:
    blocks = BlockStream(Renderer(InlineJail()))
    assert blocks.update("1. a\n\n2").num_blocks == 2
    assert blocks.update("1. a\n\n2. b").num_blocks == 1
    assert not blocks.blocks[0].is_done


def test_link_to_a_later_definition_appears_with_the_final_update() -> None:
    blocks = BlockStream(Renderer(InlineJail()))
    text = "see [a]\n\nmore\n\n[a]: https://x.org"
    blocks.update(text)
    assert blocks.blocks[0].html == "<p>see [a]</p>" or "href" in blocks.blocks[0].html
    update = blocks.update(text, is_final=True)
    assert 'href="https://x.org"' in blocks.blocks[0].html
    assert update.num_blocks == 2


def test_text_that_is_no_extension_starts_again() -> None:
    blocks = BlockStream(Renderer(InlineJail()))
    blocks.update("one\n\ntwo\n\nthree")
    update = blocks.update("other")
    assert [block.html for block in blocks.blocks] == ["<p>other</p>"]
    assert update.num_blocks == 1


def test_final_text_is_found_in_the_cache_by_the_page_of_history() -> None:
    jail = InlineJail()
    renderer = Renderer(jail)
    BlockStream(renderer).update("one\n\ntwo", is_final=True)
    num_calls = len(jail.payloads)
    assert renderer.render_many(["one\n\ntwo"]) == [("<p>one</p>", "<p>two</p>")]
    assert len(jail.payloads) == num_calls


def test_growing_code_block_is_highlighted_up_to_a_size_and_wholly_when_closed() -> None:
    blocks = BlockStream(Renderer(InlineJail()))
    text = "```python\n" + "x = 1\n" * 900
    blocks.update("```python\nx = 1\n")
    assert 'class="n"' in blocks.blocks[0].html
    blocks.update(text)
    assert 'class="n"' not in blocks.blocks[0].html
    blocks.update(text + "```\n\nend")
    assert 'class="n"' in blocks.blocks[0].html
    assert blocks.blocks[0].is_done


def test_busy_jail_leaves_what_is_shown_until_the_final_update() -> None:
    jail = InlineJail()
    blocks = BlockStream(Renderer(jail))
    blocks.update("one *two*")
    before = blocks.blocks
    jail.faults = [(0, "busy")]
    assert blocks.update("one *two* three") == StreamUpdate((), 1)
    assert blocks.blocks == before
    jail.faults = [(0, "busy")]
    blocks.update("one *two* three", is_final=True)
    assert blocks.blocks[0].html == '<pre class="plain">one *two* three</pre>'


def test_language_that_is_too_slow_is_not_tried_again_in_this_stream() -> None:
    jail = InlineJail()
    blocks = BlockStream(Renderer(jail))
    jail.faults = [(1, "timeout")]
    text = "```python\nx = 1\n"
    for end in ("", "y = 2\n", "```\n\n*end*"):
        text += end
        blocks.update(text)
        assert blocks.blocks[0].html.startswith('<figure class="code"><figcaption>python</figcaption>')
        assert "<span" not in blocks.blocks[0].html
    assert blocks.blocks[1].html == "<p><em>end</em></p>"
    blocks.update(text, is_final=True)
    assert Renderer(jail).render_many([text])[0] != tuple(block.html for block in blocks.blocks)


@pytest.mark.parametrize("reason", ["timeout", "died", "failed"])
def test_open_end_that_is_too_slow_stays_plain_until_it_has_doubled(reason: str) -> None:
    jail = InlineJail()
    blocks = BlockStream(Renderer(jail))
    jail.faults = [(1, reason)]
    blocks.update("*slow*")
    assert blocks.blocks[0].html == '<pre class="plain">*slow*</pre>'
    num_calls = len(jail.payloads)
    blocks.update("*slow* more")
    assert len(jail.payloads) == num_calls
    blocks.update("*slow* more and more")
    assert blocks.blocks[0].html == "<p><em>slow</em> more and more</p>"
