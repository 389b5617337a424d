"""What a person does and sees on the chat page, in one place, so that the tests read as stories."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

from tests.patience import PATIENCE_S

PATIENCE_MS = 1000 * PATIENCE_S  # for what a page has to come to, in assertions too (conftest.py)
LONG = "Count from one to one hundred in words, separated by commas."  # answered without an end: a test stops it
SHORT = "Count slowly to ten."  # answered in 13 tokens


def composer(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message", exact=True)


def replies(page: Page) -> Locator:
    return page.get_by_role("article", name="Assistant")


def questions(page: Page) -> Locator:
    return page.locator("#transcript").get_by_role("article", name="You")


def rows(page: Page) -> Locator:
    return page.locator(".conversation-row")


def send(page: Page, text: str) -> None:
    """Write and send, and see that it was accepted."""
    before = questions(page).count()
    composer(page).fill(text)
    composer(page).press("Enter")
    expect(questions(page)).to_have_count(before + 1)


def wait_for_text(page: Page) -> None:
    """The newest reply has begun to appear."""
    expect(replies(page).last.locator(".prose")).to_have_text(re.compile(r"\S"))


def wait_for_end(page: Page) -> None:
    """No reply is being written any more."""
    expect(page.locator(".message.is-open")).to_have_count(0)


def wait_for_more(page: Page, than: str) -> None:
    """The newest reply goes on after this text."""
    expect(replies(page).last.locator(".prose")).not_to_have_text(than)


def stop(page: Page) -> str:
    """Stop the newest reply as soon as something can be read, however slow the machine is; what can be read then."""
    wait_for_text(page)
    composer(page).press("Escape")
    wait_for_end(page)
    return text_of(replies(page).last)


def ask(page: Page, text: str) -> str:
    """A turn that is stopped as soon as something can be read; what was answered."""
    send(page, text)
    return stop(page)


def ask_to_the_end(page: Page, text: str) -> str:
    """A turn that comes to its own end, which is to be near: see SHORT."""
    send(page, text)
    wait_for_end(page)
    return text_of(replies(page).last)


def text_of(message: Locator) -> str:
    return message.locator(".prose").inner_text()


def conversation_id(page: Page) -> str:
    found = re.search(r"/c/([0-9a-f-]{36})/", page.url)
    assert found is not None, page.url
    return found.group(1)
