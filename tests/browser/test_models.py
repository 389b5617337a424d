"""Two models installed: one is chosen, another answers later, and what that has to read anew is said before; then its
file is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Problems, owners_page
from tests.browser.server import Server

OTHER = "Second-Model"


@pytest.fixture(scope="module")
def two_models(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, with a second model: the first one under another name."""
    data = tmp_path_factory.mktemp("two")
    (data / "models").mkdir()
    (data / "models" / f"{OTHER}.gguf").symlink_to(model_path)
    (data / "models" / model_path.name).symlink_to(model_path)
    server = Server(data, data / "models" / model_path.name)
    server.install(max_tokens=12)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def page(browser: Browser, two_models: Server, problems: Problems) -> Iterator[Page]:
    """The empty chat page of the owner, set up now."""
    yield from owners_page(browser, two_models, problems, viewport={"width": 390, "height": 780}, has_touch=True)


def say(page: Page, text: str) -> None:
    """Send, and wait for the numbers under the reply."""
    num_before = page.locator(".message-stats:visible").count()
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".message-stats:visible")).to_have_count(num_before + 1)


def facts(page: Page) -> str:
    """The card behind the numbers of the last reply."""
    page.locator(".message-stats").last.click()
    text = page.locator("#stats-card").inner_text()
    page.keyboard.press("Escape")
    return text


def test_another_model_is_chosen_switched_to_and_back(page: Page, two_models: Server, model_path: Path) -> None:
    select = page.get_by_label("Model", exact=True)
    note = page.locator("#model-note")
    first = model_path.name.removesuffix(".gguf")
    expect(select).to_have_value(first)
    select.select_option(OTHER)  # before anything is said
    expect(page.locator("#model-chip .name")).to_have_text(OTHER)
    say(page, "Hello")
    assert OTHER in facts(page)

    select.select_option(first)
    expect(note).to_have_text(re.compile(rf"^The history of \d+ tokens will be read anew by {re.escape(first)}\."))
    expect(select).to_be_focused()
    say(page, "And now?")
    expect(note).to_be_hidden()
    told = facts(page)
    assert first in told
    # Unless it was read while nobody waited, between the choice and the message.
    assert "another model answered before" in told or "of the history were remembered" in told

    select.select_option(OTHER)
    expect(note).to_have_text(re.compile(rf"^Of the history of \d+ tokens {OTHER} still remembers \d+; \d+ will be"))
    page.reload()
    expect(select).to_have_value(OTHER)
    expect(note).to_have_text(re.compile(f"{OTHER} still remembers"))
    say(page, "Back again")
    reused = page.locator(".message-stats").last
    expect(reused).not_to_have_text(re.compile("= 0 reused"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    (two_models.data / "models" / f"{OTHER}.gguf").unlink()
    page.reload()
    expect(note).to_have_text(re.compile(f"^The model {OTHER} is not installed any more. It goes on answering"))
    expect(select.locator("option:checked")).to_have_text(f"Not installed: {OTHER}")
    box = select.bounding_box()
    assert box is not None
    assert box["width"] > 0.5 * 390  # alone in its row, it shows more than that something is not installed
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
