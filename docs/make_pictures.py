"""The pictures of the README, taken from the running product: a fresh server, a real model, a short real conversation.

Run from the repository after `make setup`: python docs/make_pictures.py
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.conftest import CHROMIUM_ARGS  # noqa: E402
from tests.browser.screen import ask, ask_to_the_end  # noqa: E402
from tests.browser.server import Server  # noqa: E402

MODEL = ROOT / "var" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PICTURES = ROOT / "docs" / "pictures"
MAX_BYTES = 300_000
EARLIER = [
    "Plan a walk along the coast",
    "Bread without kneading",
    "Why is the sky dark at night?",
    "Names for a black cat",
]
QUESTIONS = [
    "What is the capital of France, and what is it known for?",
    "Write a short Python function that greets a city by its name.",
]


def main() -> None:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("no Chromium: install Debian's package `chromium`, or set CHROMIUM to the path of one")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as data, sync_playwright() as playwright:
        server = Server(Path(data), MODEL)
        server.install(max_tokens=220)
        server.start()
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        try:
            page = browser.new_page(base_url=server.url, viewport={"width": 1280, "height": 800})
            address = _converse(page)
            _shoot(page, "chat-light.png", "light")
            _shoot(page, "chat-dark.png", "dark")
            state = page.context.storage_state()
            phone = browser.new_page(
                base_url=server.url,
                storage_state=state,
                viewport={"width": 390, "height": 844},
                device_scale_factor=2,
                is_mobile=True,
                has_touch=True,
            )
            phone.goto(address)
            _shoot(phone, "phone.png", "light")
        finally:
            browser.close()
            server.stop()


def _converse(page: Page) -> str:
    """Set the product up and talk; the address of the conversation for the pictures."""
    page.goto("/setup/")
    page.get_by_label("Name", exact=True).fill("mira")
    page.get_by_label("Password", exact=True).fill("correct horse 42")
    page.get_by_label("Password again").fill("correct horse 42")
    page.get_by_role("button", name="Create account and start").click()
    page.locator('#model-chip[data-state="ready"]').wait_for(timeout=120_000)
    for text in EARLIER:
        ask(page, text)
        page.goto("/")
    for text in QUESTIONS:
        ask_to_the_end(page, text)
    return page.url


def _shoot(page: Page, name: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of the two
    page.locator('[data-connection="open"]').wait_for()
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)  # transitions
    path = PICTURES / name
    page.screenshot(path=path)
    size = path.stat().st_size
    if size > MAX_BYTES:
        sys.exit(f"{path} has {size:,} bytes, at most {MAX_BYTES:,} are wanted")
    print(f"{path.relative_to(ROOT)}  {size:,} bytes")


if __name__ == "__main__":
    main()
