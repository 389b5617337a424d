"""The list of conversations: search, rename, pin, delete."""

from __future__ import annotations

import re

from playwright.sync_api import APIResponse, BrowserContext, Page, Route, expect

from tests.browser.filled import fill, opened
from tests.browser.screen import ask, conversation_id, rows
from tests.browser.server import Server

_MANY = """
Conversation.objects.bulk_create(
    [Conversation(owner=user, title=f"Ship {number}", updated_at=conversation.updated_at) for number in range(120)]
)
"""


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


def test_an_answer_that_comes_late_does_not_undo_a_newer_one(page: Page) -> None:
    _new(page, "Say a colour.")
    row = rows(page).filter(has_text="Say a colour.")
    _menu(page, "Say a colour.", "Archive")
    expect(row).to_have_count(0)
    late = _held(page, r"archived=$")
    toggle = page.get_by_role("button", name="Archived", exact=True)
    toggle.click()
    expect(row).to_have_count(1)
    toggle.click()  # the list without the conversation is on its way for long
    ask(page, "And another one?")
    expect(row).to_have_count(1)
    _deliver(page, late)
    expect(row).to_have_count(1)


def test_more_of_a_list_does_not_come_into_another_one(
    context: BrowserContext, server: Server, session: object
) -> None:
    page = opened(context, fill(server, 1, "Say an okapi.", _MANY))
    late = _held(page, r"cursor=[^&]")
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("searchbox").fill("okapi")
    expect(rows(page)).to_have_count(1)
    _deliver(page, late)
    expect(rows(page)).to_have_count(1)


def test_more_can_be_asked_for_again_when_it_did_not_come(
    context: BrowserContext, server: Server, session: object, problems: list[str]
) -> None:
    page = opened(context, fill(server, 1, "Say a boat.", _MANY))
    page.route(re.compile("cursor=[^&]"), lambda route: route.abort(), times=1)
    more, before = page.get_by_role("button", name="More", exact=True), rows(page).count()
    more.click()
    expect(more).to_be_enabled()
    more.click()
    expect(rows(page)).to_have_count(before + 50)
    problems.clear()


def _held(page: Page, address: str) -> list[tuple[Route, APIResponse]]:
    """The next answer from such an address, once it has been given; the page does not get it yet."""
    late: list[tuple[Route, APIResponse]] = []
    page.route(re.compile(address), lambda route: late.append((route, route.fetch())), times=1)
    return late


def _deliver(page: Page, late: list[tuple[Route, APIResponse]]) -> None:
    """Let the page have it."""
    ((route, response),) = late
    with page.expect_response(response.url):
        route.fulfill(response=response)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


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
