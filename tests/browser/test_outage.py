"""The database goes away under open pages, and comes back: they say so, and recover by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Problems, owners_page
from tests.browser.screen import SHORT, ask, ask_to_the_end, questions, replies, text_of, wait_for_end
from tests.browser.server import Server
from tests.faults.away_postgres import Postgres, own_postgres

pytestmark = pytest.mark.slow
AWAY = "The server cannot reach its database."


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with own_postgres() as postgres:
        yield postgres


@pytest.fixture
def page(browser: Browser, model_path: Path, tmp_path: Path, postgres: Postgres, problems: Problems) -> Iterator[Page]:
    data = tmp_path / "data"
    data.mkdir()
    server = Server(data, model_path, DATABASE_URL=postgres.url)
    server.install(max_tokens=2000)
    server.start()
    yield from owners_page(browser, server, problems)
    server.stop()


def forget_refusals(problems: Problems) -> None:
    """Chromium reports each answer 503 as an error."""
    problems[:] = [problem for problem in problems if "503" not in problem]


def open_the_line_again(page: Page) -> None:
    """As after a change of network."""
    page.evaluate(
        "dispatchEvent(new PageTransitionEvent('pagehide'));"
        "dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))"
    )


def test_a_page_whose_questions_are_refused_asks_them_again_and_follows_its_conversation(
    page: Page, postgres: Postgres, problems: Problems
) -> None:
    """Once on a line that is open, where `watch` is refused; once on a new one, which the server hangs up."""
    ask_to_the_end(page, SHORT)
    other = page.context.new_page()
    other.goto(page.url)
    other.locator('[data-connection="open"]').wait_for()
    banner = other.locator("#banner")

    postgres.control("stop", "-m", "immediate")
    replies(other).last.get_by_role("button", name="Regenerate").click()
    expect(banner).to_contain_text(AWAY)
    expect(banner).to_be_visible()
    postgres.start()
    expect(banner).to_be_hidden()
    ask(page, "And again, please.")
    expect(questions(other)).to_have_count(2)

    postgres.control("stop", "-m", "immediate")
    open_the_line_again(other)
    expect(banner).to_contain_text(AWAY)
    expect(banner).to_be_visible()
    open_the_line_again(page)
    expect(page.locator("#banner")).to_contain_text(AWAY)
    postgres.start()
    expect(banner).to_be_hidden()
    expect(page.locator("#banner")).to_be_hidden()
    ask(page, "And once more.")
    expect(questions(other)).to_have_count(3)
    wait_for_end(other)
    assert text_of(replies(other).last) == text_of(replies(page).last)
    forget_refusals(problems)
