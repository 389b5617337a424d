"""What a person does and sees on the chat page, in one place, so that the tests read as stories."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

REPLY_WITHIN_MS = 60_000


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
    expect(questions(page)).to_have_count(before + 1, timeout=REPLY_WITHIN_MS)


def wait_for_text(page: Page) -> None:
    """The newest reply has begun to appear."""
    expect(replies(page).last.locator(".prose")).to_have_text(re.compile(r"\S"), timeout=REPLY_WITHIN_MS)


def wait_for_end(page: Page) -> None:
    """No reply is being written any more."""
    expect(page.locator(".message.is-open")).to_have_count(0, timeout=REPLY_WITHIN_MS)


def ask(page: Page, text: str) -> str:
    """A turn that is stopped as soon as something can be read, however slow the machine is; what was answered."""
    send(page, text)
    wait_for_text(page)
    composer(page).press("Escape")
    wait_for_end(page)
    return text_of(replies(page).last)


def ask_to_the_end(page: Page, text: str) -> str:
    """A turn that comes to its own end."""
    send(page, text)
    wait_for_end(page)
    return text_of(replies(page).last)


def text_of(message: Locator) -> str:
    return message.locator(".prose").inner_text()


def conversation_id(page: Page) -> str:
    found = re.search(r"/c/([0-9a-f-]{36})/", page.url)
    assert found is not None, page.url
    return found.group(1)
