"""What happens while nobody waits: an opened conversation is read, and a draft before it is sent; and the archive."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import BrowserContext, Locator, Page, WebSocket, expect

from tests.browser.screen import (
    ask,
    composer,
    conversation_id,
    replies,
    rows,
    send,
    stop,
)
from tests.browser.server import Server

PASTED = "Ships and harbours need somebody who keeps the light, in every night and in every kind of weather. " * 6


class Prepared:
    """What the server tells a page about its work ahead."""

    def __init__(self, page: Page) -> None:
        self.frames: list[dict[str, Any]] = []
        page.on("websocket", self._opened)
        self._page = page

    def _opened(self, socket: WebSocket) -> None:
        socket.on("framereceived", self._received)

    def _received(self, text: str | bytes) -> None:
        frame = json.loads(text)
        if frame["type"] == "prepared":
            self.frames.append(frame)

    def wait(self, *, is_draft: bool) -> int:
        """Until all of it has been read; how many tokens."""
        for _ in range(600):
            for frame in self.frames:
                if frame["is_draft"] == is_draft and frame["done"] == frame["total"]:
                    return int(frame["total"])
            self._page.wait_for_timeout(50)
        raise AssertionError(f"never ready: {self.frames}")


def numbers(reply: Locator) -> dict[str, int]:
    found: dict[str, int] = json.loads(reply.get_attribute("data-stats") or "{}")
    return found


def stopped(page: Page) -> dict[str, int]:
    """The numbers of the newest reply, which is stopped as soon as it can be read."""
    stop(page)
    return numbers(replies(page).last)


def test_what_is_opened_after_a_restart_is_read_before_the_first_question(
    page: Page, context: BrowserContext, server: Server, problems: list[str]
) -> None:
    ask(page, "Say something about a lighthouse.")
    url = page.url
    page.goto("about:blank")
    server.stop()
    server.start()
    tab = context.new_page()
    prepared = Prepared(tab)
    tab.goto(url)
    num_history = prepared.wait(is_draft=False)
    tab.locator("#model-chip").click()
    expect(tab.locator(".model-read")).to_have_text(f"All {num_history} tokens so far have been read.")
    tab.keyboard.press("Escape")
    send(tab, "And?")
    found = stopped(tab)
    assert found["reused_ram"] >= num_history
    assert found["computed"] < 20
    expect(tab.locator(".model-read")).to_be_hidden()


def test_a_pasted_text_is_read_before_it_is_sent(page: Page) -> None:
    prepared = Prepared(page)
    page.reload()
    page.locator('[data-connection="open"]').wait_for()
    composer(page).fill(PASTED)
    num_tokens = prepared.wait(is_draft=True)
    assert num_tokens > 60
    send(page, PASTED)
    found = stopped(page)
    assert found["reused_ram"] >= num_tokens
    assert found["computed"] < 20


def test_whoever_does_not_want_it_is_not_read_along(page: Page) -> None:
    page.goto("/settings/")
    page.get_by_label("Read along while I write").uncheck()
    page.get_by_role("button", name="Save").click()
    sent: list[str] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda text: sent.append(str(text))))
    page.goto("/")
    page.locator('[data-connection="open"]').wait_for()
    composer(page).fill(PASTED)
    page.wait_for_timeout(1200)  # longer than the pause after which it would be told
    page.goto("/settings/")
    page.get_by_label("Read along while I write").check()
    page.get_by_role("button", name="Save").click()
    assert not [text for text in sent if "draft" in text]


def test_a_conversation_is_put_away_and_comes_back_with_the_next_message(page: Page, context: BrowserContext) -> None:
    ask(page, "Say a metal.")
    name = conversation_id(page)
    other = context.new_page()
    other.goto("/")
    own = f'[data-conversation="{name}"]'
    expect(other.locator(own)).to_have_count(1)
    row = page.locator(own)
    row.get_by_role("button").focus()
    page.keyboard.press("Enter")
    page.get_by_role("menuitem", name="Archive", exact=True).focus()
    page.keyboard.press("Enter")
    for tab in (page, other):
        expect(tab.locator(own)).to_have_count(0)
    toggle = page.get_by_role("button", name="Archived", exact=True)
    expect(toggle).to_be_focused()
    expect(page.locator("#composer-hint")).to_have_text("Archived; the next message takes it back out")
    page.keyboard.press("Enter")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    expect(rows(page)).to_have_count(1)
    row.hover()
    row.get_by_role("button").click()
    expect(page.get_by_role("menuitem", name="Take out of the archive")).to_be_visible()
    page.keyboard.press("Escape")
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "false")
    ask(page, "And another one?")
    for tab in (page, other):
        expect(tab.locator(own)).to_have_count(1)
    expect(page.locator("#composer-hint")).not_to_have_text("Archived; the next message takes it back out")
