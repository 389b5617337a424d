"""The pure modules of the page, run where they belong: thousands of random cases in one call into the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

CASES = Path(__file__).with_name("module_cases.js")
# A random number generator with a seed, and the address of a module under whatever name it is served.
PRELUDE = """async ({ name, body }) => {
    const url = performance.getEntriesByType('resource').map((entry) => entry.name)
        .find((address) => new RegExp('/js/' + name + '(\\\\.[0-9a-f]+)?\\\\.js$').test(address));
    const module = await import(url);
    let state = 42;
    const random = () => (state = (state * 1103515245 + 12345) % 2147483648) / 2147483648;
    const cases = CASES;
    return cases[body](module, random);
}"""


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("turns", "stream"),
        ("outbox", "outbox"),
        ("socket", "delays"),
        ("keys", "keys"),
        ("format", "format"),
        ("drafts", "drafts"),
    ],
)
def test_a_pure_module_keeps_its_promises(page: Page, name: str, body: str) -> None:
    call = PRELUDE.replace("CASES", CASES.read_text())
    problems: list[Any] = page.evaluate(call, {"name": name, "body": body})
    assert problems == []
