"""Under a question: which earlier messages were quoted in front of it, where they are, and the quotation itself."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from tests.browser.filled import LONG, fill, opened
from tests.browser.screen import composer, questions, replies, send, wait_for_end
from tests.browser.server import Server
from tests.chatapp.test_views_chat import XSS
from tests.patience import PATIENCE_S

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


def test_the_way_to_an_old_message_is_shown_and_can_be_given_up(
    context: BrowserContext, server: Server, session: object
) -> None:
    line = "turns.context_add(questions[-1], text='> User: Question 2.', sources=[questions[2].id])"
    page = opened(context, fill(server, 90, "short", line))  # 180 messages, 50 of them are loaded
    held: list[Route] = []
    page.route(re.compile(r"\?before="), lambda route: held.append(route))  # playwright marks what it is given
    link, way = page.get_by_role("link", name="your message 3"), page.locator("#bringing")
    expect(way).to_be_hidden()
    page.locator(".recalled summary").click()

    def let(num: int) -> None:
        """One page more, after which so many are loaded."""
        until(page, lambda: bool(held))
        held.pop().continue_()
        expect(page.locator("article[data-message]")).to_have_count(num)

    for give_up in (lambda: way.get_by_role("button", name="Cancel").click(), lambda: page.keyboard.press("Escape")):
        link.click()
        num = page.locator("article[data-message]").count()
        expect(way).to_contain_text(f"{num} loaded so far")
        expect(way).to_be_in_viewport()
        until(page, lambda: bool(held))
        give_up()
        expect(way).to_be_hidden()
        expect(link).to_be_focused()
        let(num + 50)  # was on its way; nobody asks for another one
        page.evaluate("() => new Promise(requestAnimationFrame)")
        assert held == []
        expect(link).to_be_in_viewport()
    link.click()
    let(180)
    source = page.locator("article[data-message]", has_text="Question 2. short")
    expect(source).to_be_focused()
    expect(source).to_be_in_viewport()
    expect(way).to_be_hidden()
    numbers = page.locator('[data-role="user"] .prose').evaluate_all(
        "(all) => all.map((each) => each.textContent.trim())"
    )
    assert numbers == [f"Question {number}. short" for number in range(90)], "in order and without a hole"


def test_a_message_on_another_branch_is_said_to_be_there(
    context: BrowserContext, server: Server, session: object
) -> None:
    sibling = """
from chatapp.models import Message
place = questions[2].position
other = Message.objects.create(conversation=conversation, parent=replies[1], role="user", text="Else.", position=place)
turns.context_add(questions[-1], text="> User: Else.", sources=[other.id])
"""
    page = opened(context, fill(server, 60, "short", sibling))
    page.locator(".recalled summary").click()
    page.locator(".recalled a").click()
    expect(page.locator("#notice")).to_have_text("That message is in another version of this conversation.")
    expect(page.locator("#bringing")).to_be_hidden()


def until(page: Page, condition: Callable[[], bool]) -> None:
    """Playwright hears of requests only while it waits for something."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        page.wait_for_timeout(10)


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
