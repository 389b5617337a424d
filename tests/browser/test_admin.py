"""The admin in a real browser: nothing that its content policy refuses, light and dark, and a live engine page."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.screen import ask


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_break_no_policy(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of the two
    page.goto("/admin/")
    links = page.locator("#nav-sidebar-apps a").all()
    paths = [link.get_attribute("href") or "" for link in links]
    assert len(paths) >= 6
    for path in [*paths, "/admin/chatapp/preset/add/", "/admin/chatapp/user/add/"]:
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200
        expect(page.locator("html.dark")).to_have_count(1 if scheme == "dark" else 0)


def test_conversation_opens_from_the_list_with_its_messages(page: Page) -> None:
    ask(page, "What is in the admin?")
    page.goto("/admin/chatapp/conversation/")
    page.get_by_role("link", name="What is in the admin?").first.click()
    expect(page.locator("#messages-group")).to_contain_text("What is in the admin?")


def test_engine_page_shows_the_model_and_comes_up_to_date_by_itself(page: Page) -> None:
    ask(page, "Hello")
    page.goto("/admin/engine/")
    engine = page.locator("#engine")
    expect(engine).to_contain_text("SmolLM2")
    expect(engine).to_contain_text("Block pool")
    with page.expect_response("**/admin/engine/") as answer:
        pass
    assert answer.value.status == 200
    expect(engine).to_have_count(1)
