"""A model that thinks: folded above the answer while it goes on, with its time afterwards; not in what is copied, and
not in the title that it gives a conversation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests.browser.conftest import Problems, owners_cookies
from tests.browser.screen import PATIENCE_MS, composer, replies, rows, send, wait_for_end
from tests.browser.server import Server
from tests.browser.thinking_model import write_thinking_model

NUM_STEPS = 250  # long enough to do something meanwhile
STEPS = [f"{number}. Step {number} of **{number * number}**.\n" for number in range(1, NUM_STEPS + 1)]
THOUGHT = ["\nLet me look at it.\n\n", *STEPS, "\nThat is <b>it</b>.\n"]
ANSWER = ["\n\nIt is ", "**so**, ", "because:\n\n", "```html\n<think>\n", "</think>\n```\n", "And that is all."]
TITLE = ["Steps ", "and their ", "squares"]  # of what is asked about them; elsewhere it is none
DONE = re.compile(r"^Thought for [\d.]+ s$")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, with that model."""
    folder = tmp_path_factory.mktemp("models") / "thinker"
    model = write_thinking_model(folder, thought=THOUGHT, answer=ANSWER, title=TITLE)
    server = Server(tmp_path_factory.mktemp("data"), model, RECOLLECT_TITLES="on")
    server.install(max_tokens=1000)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cookies(browser: Browser, thinker: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return owners_cookies(browser, thinker, tmp_path_factory.mktemp("thinking"))


@pytest.fixture
def context(browser: Browser, thinker: Server, cookies: Path, problems: Problems) -> Iterator[BrowserContext]:
    context = browser.new_context(base_url=thinker.url, storage_state=cookies, viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    context.on("page", problems.watch)
    yield context
    context.close()


def fold(page: Page) -> Locator:
    return replies(page).last.locator("details.thinking")


def answer(page: Page) -> Locator:
    return replies(page).last.locator(".prose:not(.thought)")


def wait_for_thinking(page: Page) -> None:
    page.locator("details.thinking.is-running").wait_for()


def test_thinking_is_folded_while_it_goes_on_and_has_its_time_afterwards(page: Page) -> None:
    send(page, "Why?")
    wait_for_thinking(page)
    expect(fold(page).locator("summary")).to_have_text("Thinking …")
    expect(fold(page)).not_to_have_attribute("open", re.compile(""))
    expect(answer(page)).to_have_text("")
    wait_for_end(page)
    expect(fold(page).locator("summary")).to_have_text(DONE)
    expect(answer(page)).to_contain_text("And that is all.")
    shown, label = answer(page).inner_text(), fold(page).inner_text()
    assert "Step" not in shown
    assert "<think>\n</think>" in shown  # in the answer's code: what it talks about
    page.reload()
    expect(fold(page).locator("summary")).to_have_text(label)
    assert answer(page).inner_text() == shown


def test_the_fold_opens_from_the_keyboard_and_shows_markdown(page: Page) -> None:
    ask_to_the_end_of_answer(page)
    thought = fold(page).locator(".thought")
    expect(thought).to_be_hidden()
    fold(page).locator("summary").focus()
    page.keyboard.press("Enter")
    expect(thought).to_be_visible()
    expect(thought.locator("ol > li").first).to_have_text("Step 1 of 1.")
    expect(thought.locator("strong").first).to_have_text("1")
    expect(thought).to_contain_text("That is <b>it</b>.")  # sanitised: text, not markup
    page.keyboard.press("Space")
    expect(thought).to_be_hidden()


def ask_to_the_end_of_answer(page: Page) -> None:
    send(page, "Why?")
    wait_for_end(page)
    expect(answer(page)).to_contain_text("And that is all.")


def test_a_second_tab_comes_in_the_middle_of_thinking(page: Page, context: BrowserContext) -> None:
    send(page, "Why?")
    wait_for_thinking(page)
    other = context.new_page()
    other.goto(page.url)
    wait_for_end(page)
    wait_for_end(other)
    expect(fold(other).locator("summary")).to_have_text(fold(page).locator("summary").inner_text())
    for tab in (page, other):
        tab.locator("details.thinking > summary").last.click()
    assert fold(other).inner_text() == fold(page).inner_text()
    assert answer(other).inner_text() == answer(page).inner_text()


def test_stop_in_the_middle_of_thinking_shows_it_and_continue_goes_on(page: Page) -> None:
    send(page, "Why?")
    wait_for_thinking(page)
    composer(page).press("Escape")
    wait_for_end(page)
    expect(replies(page).last.locator(".chip")).to_have_text("Stopped")
    expect(fold(page)).to_have_attribute("open", "")  # there is nothing else to see
    expect(fold(page).locator("summary")).to_have_text(DONE)
    expect(answer(page)).to_have_text("")
    replies(page).last.get_by_role("button", name="Continue").click()
    expect(answer(page)).to_contain_text("And that is all.")
    wait_for_end(page)
    expect(fold(page).locator("li").first).to_have_text("Step 1 of 1.")
    expect(fold(page).locator("li").last).to_have_text(f"Step {NUM_STEPS} of {NUM_STEPS**2}.")


def test_copy_takes_the_answer_alone(page: Page, context: BrowserContext, thinker: Server) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=thinker.url)
    ask_to_the_end_of_answer(page)
    replies(page).last.get_by_role("button", name="Copy", exact=True).click()
    expect(page.locator("#announcer")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "".join(ANSWER).lstrip()


def test_a_title_by_the_model_appears_everywhere_without_reading_anything_again(
    page: Page, context: BrowserContext
) -> None:
    question, title = "Which steps have squares?", "".join(TITLE)
    send(page, question)
    expect(page.locator("#title span")).to_have_text(question)
    other = context.new_page()
    other.goto(page.url)
    other.locator('[data-connection="open"]').wait_for()
    wait_for_thinking(page)
    page.evaluate("document.querySelector('.message').dataset.seen = 'yes'")  # a page that is read again loses it
    wait_for_end(page)
    for tab in (page, other):
        expect(tab.locator("#title span")).to_have_text(title)
        expect(rows(tab).first.locator(".title")).to_have_text(title)
        expect(tab).to_have_title(f"{title} · Recollect")
    expect(page.locator('.message[data-seen="yes"]')).to_have_count(1)
    page.reload()
    expect(page.locator("#title span")).to_have_text(title)


def test_a_conversation_that_a_person_has_named_keeps_its_name(page: Page) -> None:
    send(page, "Which steps have squares?")
    wait_for_thinking(page)
    page.locator("#title").click()
    page.get_by_role("textbox", name="Title").fill("Mine")
    page.get_by_role("textbox", name="Title").press("Enter")
    expect(page.locator("#title span")).to_have_text("Mine")
    wait_for_end(page)
    send(page, "And which have none?")
    wait_for_end(page)  # by now there has been time for a title
    expect(page.locator("#title span")).to_have_text("Mine")
    expect(rows(page).first.locator(".title")).to_have_text("Mine")
