"""Keyboard: input methods never send by accident, and everything can be reached without a mouse."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.screen import ask, composer, conversation_id, questions, rows, wait_for_end, wait_for_text

# What browsers send for the Enter that confirms a candidate: Chromium and Firefox mark it, Safari has only the code.
COMPOSING = {
    "isComposing": {"key": "Enter", "code": "Enter", "isComposing": True},
    "keyCode 229": {"key": "Enter", "code": "Enter", "keyCode": 229},
}
PRESS = """(field, init) => field.dispatchEvent(new KeyboardEvent('keydown', {
    bubbles: true, cancelable: true, ...init }))"""


def _confirm_candidate(field: Locator, kind: str) -> None:
    field.evaluate(PRESS, COMPOSING[kind])


@pytest.mark.parametrize("kind", COMPOSING)
def test_enter_of_an_input_method_does_not_send_a_message(page: Page, kind: str) -> None:
    composer(page).fill("你好")
    _confirm_candidate(composer(page), kind)
    expect(composer(page)).to_have_value("你好")
    expect(page.locator(".bubble")).to_have_count(0)
    assert page.url.endswith("/")


def test_enter_of_an_input_method_confirms_nothing_elsewhere(page: Page) -> None:
    ask(page, "Say a verb.")
    for kind in COMPOSING:
        questions(page).first.hover()
        questions(page).first.get_by_role("button", name="Edit").click()
        editor = page.get_by_role("textbox", name="Edit message")
        editor.fill("再说一个")
        _confirm_candidate(editor, kind)
        expect(editor).to_have_value("再说一个")
        editor.press("Escape")

        page.locator("#title").click()
        field = page.get_by_role("textbox", name="Title")
        field.fill("标题")
        _confirm_candidate(field, kind)
        expect(page.locator("#rename-dialog")).to_be_visible()
        page.keyboard.press("Escape")

        search = page.get_by_role("searchbox")
        search.fill("verb")
        expect(rows(page)).to_have_count(1)
        before = page.evaluate("performance.timeOrigin")
        _confirm_candidate(search, kind)
        assert page.evaluate("performance.timeOrigin") == before
        search.fill("")
    expect(questions(page)).to_have_count(1)
    expect(page.locator("#title span")).to_have_text("Say a verb.")


def test_shift_enter_begins_a_line(page: Page) -> None:
    composer(page).press_sequentially("one")
    composer(page).press("Shift+Enter")
    composer(page).press_sequentially("two")
    expect(composer(page)).to_have_value("one\ntwo")


def test_a_turn_an_edit_and_a_rename_without_a_mouse(page: Page) -> None:
    expect(composer(page)).to_be_focused()
    page.keyboard.type("Say an adverb.")
    page.keyboard.press("Enter")
    wait_for_text(page)
    page.keyboard.press("Escape")
    wait_for_end(page)
    expect(composer(page)).to_be_focused()
    page.keyboard.press("ArrowUp")
    editor = page.get_by_role("textbox", name="Edit message")
    expect(editor).to_be_focused()
    page.keyboard.press("Escape")
    expect(editor).to_have_count(0)
    expect(page.get_by_role("button", name="Edit")).to_be_focused()
    page.keyboard.press("Control+k")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.action === 'row-menu'"):
            break
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Title")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+Escape")
    expect(composer(page)).to_be_focused()


def test_shortcuts_lead_where_they_say(page: Page) -> None:
    page.keyboard.press("Control+/")
    expect(page.get_by_role("heading", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Control+b")
    expect(page.get_by_role("complementary")).to_be_hidden()
    page.reload()
    expect(page.get_by_role("complementary")).to_be_hidden()
    page.keyboard.press("Control+b")
    expect(page.get_by_role("complementary")).to_be_visible()
    ask(page, "Say an adjective.")
    assert conversation_id(page)
    page.keyboard.press("Control+Shift+o")
    page.wait_for_url(lambda url: url.endswith("/") and "/c/" not in url)
