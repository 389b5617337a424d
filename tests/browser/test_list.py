"""The list of conversations: search, rename, pin, delete."""

from __future__ import annotations

import re

from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.screen import ask, conversation_id, rows


def _menu(page: Page, title: str, item: str) -> None:
    row = rows(page).filter(has_text=title).first
    row.hover()
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name=item, exact=True).click()


def _new(page: Page, title: str) -> None:
    page.goto("/")
    ask(page, title)


def test_a_conversation_is_renamed_here_and_in_other_tabs(page: Page, context: BrowserContext) -> None:
    _new(page, "Say a name.")
    other = context.new_page()
    other.goto(page.url)
    page.locator("#title").click()
    field = page.get_by_role("textbox", name="Title")
    expect(field).to_have_value("Say a name.")
    field.fill("名字 <b>bold</b>")
    field.press("Enter")
    for tab in (page, other):
        expect(tab.locator("#title span")).to_have_text("名字 <b>bold</b>")
        expect(rows(tab).first.locator(".title")).to_have_text("名字 <b>bold</b>")
    expect(page.locator("#title")).to_be_focused()


def test_a_title_that_is_refused_says_why(page: Page, problems: list[str]) -> None:
    _new(page, "Say a noun.")
    _menu(page, "Say a noun.", "Rename")
    field = page.get_by_role("textbox", name="Title")
    field.fill("   ")
    field.press("Enter")
    expect(page.locator("#rename-dialog .errorlist")).to_have_text("The title is empty.")
    page.keyboard.press("Escape")
    expect(rows(page).first.locator(".title")).to_have_text("Say a noun.")
    problems[:] = [text for text in problems if "status of 400" not in text]


def test_a_search_shows_only_what_has_the_words_in_its_title(page: Page) -> None:
    _new(page, "Zebra stripes?")
    page.keyboard.press("Control+k")
    field = page.get_by_role("searchbox")
    expect(field).to_be_focused()
    field.fill("zebra")
    expect(rows(page)).to_have_count(1)
    field.fill("no such title")
    expect(page.locator(".conversations-empty")).to_have_text("No conversation has “no such title” in it.")
    field.fill("")
    expect(rows(page).first).to_be_visible()


def test_a_hit_in_a_message_shows_its_line_with_the_words_marked(page: Page) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    _new(page, f"Name one harbour. {hostile} The lighthouse keeper of 瓦尔德港 collects old maps and brass lamps.")
    page.keyboard.press("Control+k")
    field = page.get_by_role("searchbox")
    for query, marked in (("lighthouse keeper", ["lighthouse", "keeper"]), ("德", ["德"]), ("瓦尔德", ["瓦尔德"])):
        field.fill(query)
        expect(rows(page)).to_have_count(1)
        line = rows(page).first.locator(".snippet")
        expect(line.locator("mark")).to_have_text(marked)
    field.fill("onerror")
    expect(line.locator("mark")).to_have_text("onerror")
    expect(line).to_contain_text(hostile)
    row, mark = line.bounding_box(), line.locator("mark").bounding_box()
    assert row is not None
    assert mark is not None
    assert row["x"] <= mark["x"] < mark["x"] + mark["width"] <= row["x"] + row["width"], "the mark is in sight"
    assert mark["height"] < 30, "one line"
    field.fill("")
    expect(page.locator(".snippet")).to_have_count(0)


def test_a_pinned_conversation_stays_at_the_top(page: Page) -> None:
    _new(page, "Pin me please.")
    _menu(page, "Pin me please.", "Pin")
    expect(page.locator('[data-group="pinned"] .title')).to_have_text("Pin me please.")
    _menu(page, "Pin me please.", "Unpin")
    expect(page.locator('[data-group="pinned"]')).to_have_count(0)


def test_a_deleted_conversation_is_gone_after_a_question(page: Page, context: BrowserContext) -> None:
    _new(page, "Delete me please.")
    other = context.new_page()
    other.goto(page.url)
    url = page.url
    _menu(page, "Delete me please.", "Delete")
    dialog = page.get_by_role("alertdialog")
    expect(dialog).to_contain_text("“Delete me please.” and all its messages are removed for good.")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    dialog.get_by_role("button", name="Cancel").click()
    assert conversation_id(page)
    _menu(page, "Delete me please.", "Delete")
    page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    for tab in (page, other):
        tab.wait_for_url(re.compile(r"/$"))
        tab.wait_for_url(lambda address: "/c/" not in address)
        expect(rows(tab).filter(has_text="Delete me please.")).to_have_count(0)
    assert context.request.get(url).status == 404
