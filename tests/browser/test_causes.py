"""Under a reply: what its prompt was made of, and in words why no more of it was remembered, from which message on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from chatapp.models import PrefixBreak
from tests.browser.filled import fill, opened
from tests.browser.screen import ask, questions, replies, stop
from tests.browser.server import Server
from tests.browser.test_modules import PRELUDE

SENTENCES = "{ all: ({ reuseText }, _) => CAUSES.map((stats) => reuseText(stats)) }"


def card_of(page: Page, reply: Locator) -> Locator:
    """The card with its numbers, opened."""
    reply.locator(".message-stats").click()
    card = page.locator("#stats-card")
    expect(card).to_be_visible()
    return card


@pytest.mark.parametrize("viewport", [(1280, 800), (390, 780)])
def test_the_card_says_what_was_remembered_and_leads_to_where_it_was_not(page: Page, viewport: tuple[int, int]) -> None:
    page.set_viewport_size({"width": viewport[0], "height": viewport[1]})
    ask(page, f"Tell me {viewport[0]} things about lighthouses. " * 8)
    expect(card_of(page, replies(page).last).locator(".stats-why span")).to_have_text(re.compile("^New: nothing of"))
    expect(page.locator("#stats-card .stats-why a")).to_be_hidden()
    page.keyboard.press("Escape")
    ask(page, "And about ships.")
    card = card_of(page, replies(page).last)
    expect(card.locator(".stats-why span")).to_have_text(
        re.compile(r"^All [\d,]+ tokens of the history were remembered\.$")
    )
    page.keyboard.press("Escape")
    questions(page).last.hover()
    questions(page).last.get_by_role("button", name="Edit").click()
    editor = page.get_by_role("textbox", name="Edit message")
    editor.fill("And about the sea. " * 40)
    editor.press("Enter")
    expect(questions(page).last.locator(".prose")).to_contain_text("the sea")
    stop(page)
    card = card_of(page, replies(page).last)
    expect(card.locator(".stats-why span")).to_have_text("Read again from your message 2 on: it was edited.")
    assert card.bounding_box()["width"] <= viewport[0]  # type: ignore[index]
    card.get_by_role("link", name="Show that message").click()
    expect(card).to_be_hidden()
    expect(questions(page).last).to_be_focused()
    expect(questions(page).last).to_be_in_viewport()
    assert re.search(r"/c/[0-9a-f-]{36}/$", page.url)


def test_it_leads_also_to_a_message_that_is_further_up_than_the_page_has_loaded(
    context: BrowserContext, server: Server, session: Path
) -> None:
    lost = """
from chatapp.models import Generation
Generation.objects.create(
    message_id=replies[-1].id, model_name="tiny", finish_reason="stop", num_prompt_tokens=900, num_computed=900,
    num_known=880, prefix_break="edited", break_message=questions[1], break_position=2,
)
"""
    page = opened(context, fill(server, 60, "short", lost))
    expect(questions(page)).to_have_count(25)
    card = card_of(page, replies(page).last)
    expect(card.locator(".stats-why span")).to_contain_text("Read again from your message 2 on: it was edited.")
    card.get_by_role("link", name="Show that message").click()
    expect(card).to_be_hidden()
    source = questions(page).filter(has_text="Question 1.")
    expect(source).to_be_focused()
    expect(source).to_be_in_viewport()


def test_the_bar_shows_memory_and_disk_and_what_was_computed(page: Page) -> None:
    ask(page, "Say one word.")
    shown = page.evaluate(
        """() => {
            const article = document.querySelector('.message-assistant');
            const stats = JSON.parse(article.dataset.stats);
            article.dataset.stats = JSON.stringify({ ...stats, reused_ram: 20, reused_disk: 30, computed: 50 });
            article.querySelector('.message-stats').click();
            const size = (element) => Math.round(element.getBoundingClientRect().width);
            return [...document.querySelectorAll('.stats-bar i')].map((part) => [part.className, size(part)]);
        }"""
    )
    assert [name for name, _ in shown] == ["is-ram", "is-disk", "is-computed"]
    widths = [width for _, width in shown]
    assert widths[0] < widths[1] < widths[2]
    assert abs(widths[2] - 2.5 * widths[0]) < 6


def test_every_cause_has_a_sentence_with_its_place(page: Page) -> None:
    stats: dict[str, Any] = {"reused_ram": 1200, "reused_disk": 0, "known": 2034}
    cases = [
        stats | {"cause": cause, "cause_position": position}
        for cause in PrefixBreak.values
        for position in (None, 4, 5)
    ]
    call = PRELUDE.replace("CASES", SENTENCES.replace("CAUSES", str(cases).replace("None", "null")))
    told = page.evaluate(call, {"name": "causes", "body": "all"})
    assert len(set(told)) == len(cases)
    places = ("the beginning", "your message 3", "reply 3")
    for case, sentence in zip(cases, told, strict=True):
        assert "Of 2,034 tokens that had been read before 1,200 were remembered." in sentence
        assert f": {case['cause']}." not in sentence  # in words
        is_new = case["cause"] == PrefixBreak.FIRST_USE and case["cause_position"] is None
        assert is_new or places[(None, 4, 5).index(case["cause_position"])] in sentence
