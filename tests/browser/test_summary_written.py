"""A summary from its beginning to its end: the model writes it, the page shows it, and the next prompts hold it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Problems, owners_page
from tests.browser.screen import ask_to_the_end, replies
from tests.browser.server import Server

SUMMARISES = 'from chatapp.models import Preset; Preset.objects.update(context_policy="summarise")'
WINDOW = 640  # tokens: filled after a few turns
MAX_TOKENS = 48
DUE = 420  # a summary is written past 70 % of what there is room for, and long before the trigger of 85 %
TOLD = (
    "My name is Tom, and my cat is called Mitzi. She is three years old, grey with white paws, and afraid of the "
    "vacuum cleaner. We live in a small flat in Graz on the fourth floor, with a balcony. I want to "
    "build a cat tree of 180 cm for her; my budget is 90 euros. It shall have two platforms, a cave and a hammock. I "
    "have a saw, a drill and some planks of birch from an old shelf. Which of the parts should I build first, and why?"
)
ASKED = (
    "Thank you. How do I fix the rope around the trunk?",
    "How often should I cut her claws, and with what?",
    "What food is good for a cat of that age?",
    "And what should she never eat?",
    "How do I teach her to use the tree?",
    "Where should it stand in our flat?",
)


@pytest.fixture
def narrow(model_path: Path, tmp_path: Path) -> Iterator[Server]:
    """The product with a model whose window is small, and a preset that summarises."""
    server = Server(tmp_path, model_path, RECOLLECT_MAX_MODEL_LEN=str(WINDOW))
    server.install(max_tokens=MAX_TOKENS)
    server.manage("shell", "-v0", "-c", SUMMARISES)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def page(browser: Browser, narrow: Server, problems: Problems) -> Iterator[Page]:
    yield from owners_page(browser, narrow, problems, viewport={"width": 1280, "height": 800})


@pytest.mark.slow
def test_the_model_writes_it_and_it_comes_into_the_open_page_and_into_the_next_prompts(page: Page) -> None:
    row = page.get_by_role("region", name="Summary")
    ask_to_the_end(page, TOLD)
    expect(row).to_have_count(0)
    questions = iter(ASKED)
    while num_read(page) < DUE:
        ask_to_the_end(page, next(questions))
    expect(row.locator("summary")).to_contain_text("for when they leave the window")  # comes by itself
    expect(row.locator(".chip")).to_have_text("Written by the model")
    row.locator("summary").click()
    text = row.locator(".summary-text").inner_text()
    assert len(text.split()) >= 5
    line = page.locator("#transcript .window-line")
    expect(line).to_have_count(0)
    left = page.locator(".message-left:visible")
    while left.count() == 0:
        ask_to_the_end(page, next(questions))
        num_read(page)
    expect(left).to_contain_text("A summary stands for what has left.")
    expect(line).to_have_count(1)
    expect(row.locator("summary")).to_contain_text("Summary of messages 1–")
    expect(row.locator("summary")).not_to_contain_text("for when")
    expect(row.locator(".summary-text")).to_have_text(text)
    page.locator("#gauge").click()
    assert tokens(page, "Summary") > 0


def num_read(page: Page) -> int:
    """Tokens of the newest prompt and of the reply to it, once these are known."""
    reply = replies(page).last
    expect(reply.locator(".message-stats")).to_be_visible()
    stats = json.loads(reply.get_attribute("data-stats") or "{}")
    return int(stats["prompt_tokens"] + stats["generated"])


def tokens(page: Page, part: str) -> int:
    value = page.locator("#window-card dt", has_text=part).locator("xpath=following-sibling::dd[1]").inner_text()
    return int(value.replace(",", ""))
