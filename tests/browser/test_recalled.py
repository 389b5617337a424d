"""Under a question: which earlier messages were quoted in front of it, where they are, and the quotation itself."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.filled import LONG, fill, opened
from tests.browser.screen import composer, questions, replies, send, wait_for_end
from tests.browser.server import Server
from tests.chatapp.test_views_chat import XSS

SECRET = "My parrot is called Ophelia and sleeps in the harbour office."
_SECRET = f"""
from chatapp import search
for message in questions[2:3]:
    message.text = "{SECRET}"
    message.save()
    message.search_entry.delete()
    search.index(message, owner_id=user.pk)
"""


@pytest.fixture
def outgrown(context: BrowserContext, server: Server, session: object) -> Page:
    """A conversation that is longer than the window; what was said first is no longer sent."""
    return opened(context, fill(server, 40, LONG * 18, _SECRET))


def test_it_is_shown_at_once_and_leads_to_what_was_quoted(outgrown: Page) -> None:
    page = outgrown
    send(page, "Where does the parrot Ophelia sleep?")
    for is_again in (False, True):
        if is_again:
            composer(page).press("Escape")
            wait_for_end(page)
            page.reload()
        box = questions(page).last.locator(".recalled")
        expect(box).to_contain_text("Recalled 1 earlier message")
        quotation = box.locator(".recalled-text")
        expect(quotation).to_be_hidden()
        box.locator("summary").click()
        expect(quotation).to_contain_text(f"> User: {SECRET}")
        expect(questions(page).last.locator(".prose")).to_have_text("Where does the parrot Ophelia sleep?")
    assert questions(page).filter(has_text=SECRET).count() == 1  # in the quotation only: the message is not loaded
    box.get_by_role("link", name="your message 3").click()
    source = page.locator("article", has=page.locator(".prose", has_text=SECRET))
    expect(source).to_be_focused()
    expect(source).to_be_in_viewport()
    assert page.url.endswith("/"), "the address stays that of the conversation"
    page.get_by_role("button", name="Latest").click()
    expect(replies(page).last).to_be_in_viewport()


def test_nothing_in_a_quotation_is_markup(context: BrowserContext, server: Server, session: object) -> None:
    text = "\n".join(XSS)
    line = f"turns.context_add(questions[1], text={json.dumps(text)}, sources=[questions[0].id, replies[0].id])"
    page = context.new_page()
    page.goto(f"/c/{fill(server, 2, 'short', line)}/")
    box = page.locator(".recalled")
    expect(box).to_contain_text("Recalled 2 earlier messages")
    box.locator("summary").click()
    assert box.locator(".recalled-text").inner_text() == text
    assert box.locator(".recalled-text").evaluate("(element) => element.childElementCount") == 0
    box.get_by_role("link", name="reply 1").click()
    expect(replies(page).first).to_be_focused()
