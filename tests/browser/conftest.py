"""A real browser against the real server: one Chromium and one server, with the default model, for all browser tests.

Without a Chromium the tests are skipped and say why; with RECOLLECT_REQUIRE_BROWSER=1 that is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.browser.screen import PATIENCE_MS
from tests.browser.server import Server

CHROMIUM_ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
]
OWNER = ("mira", "correct horse 42")
expect.set_options(timeout=PATIENCE_MS)  # five seconds otherwise, which a busy machine can take


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.model)


@pytest.fixture(scope="package")
def chromium() -> str:
    """The path of the browser."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path:
        return path
    reason = "no Chromium: install Debian's package `chromium`, or set CHROMIUM to the path of one"
    if os.environ.get("RECOLLECT_REQUIRE_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="package")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The product, freshly installed: an empty database, and replies as long as the model makes them.

    To LONG (tests/browser/screen.py) it counts until max_tokens: a quarter of a minute in which to open a second tab.
    """
    server = Server(tmp_path_factory.mktemp("data"), model_path)
    server.install(max_tokens=2000)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    """Ends with this package: while it lives, no asyncio test can run in this thread."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


def set_up(page: Page) -> None:
    """Make the owner's account on a fresh server, through its first page; ends on the empty chat page."""
    page.goto("/")
    assert page.url.endswith("/setup/")
    name, password = OWNER
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Password", exact=True).fill(password)
    page.get_by_label("Password again").fill(password)
    page.get_by_role("button", name="Create account and start").click()
    page.locator('[data-connection="open"]').wait_for()


def owners_cookies(browser: Browser, server: Server, folder: Path) -> Path:
    """A file in a folder with those of the owner, who sets a fresh server up."""
    context = browser.new_context(base_url=server.url)
    set_up(context.new_page())
    context.storage_state(path=folder / "state.json")
    context.close()
    return folder / "state.json"


@pytest.fixture(scope="package")
def session(browser: Browser, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cookies of the owner."""
    return owners_cookies(browser, server, tmp_path_factory.mktemp("session"))


class Problems(list[str]):
    """What the browser complains about: errors in scripts, refused resources, violations of the content policy."""

    def watch(self, page: Page) -> None:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.append(f"{page.url}: {error}"))

    def _said(self, message: ConsoleMessage) -> None:
        is_left = "closed before the connection is established" in message.text  # a page left while it was connecting
        if message.type in ("error", "warning") and not is_left:
            self.append(message.text)


def owners_page(browser: Browser, server: Server, problems: Problems, **options: Any) -> Iterator[Page]:
    """For a fixture: the empty chat page of the owner of a fresh server, set up now. options: of the profile."""
    context = browser.new_context(base_url=server.url, **options)
    context.set_default_timeout(PATIENCE_MS)
    context.on("page", problems.watch)
    page = context.new_page()
    set_up(page)
    yield page
    context.close()


@pytest.fixture
def problems() -> Iterator[Problems]:
    """Must be empty at the end of every test; one that provokes some takes them out."""
    problems = Problems()
    yield problems
    assert problems == []


@pytest.fixture
def context(browser: Browser, server: Server, session: Path, problems: Problems) -> Iterator[BrowserContext]:
    """A fresh profile of somebody who is logged in, on a desktop."""
    context = browser.new_context(base_url=server.url, storage_state=session, viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    context.on("page", problems.watch)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """An empty chat page whose socket is open."""
    page = context.new_page()
    page.goto("/")
    page.locator('[data-connection="open"]').wait_for()
    return page
