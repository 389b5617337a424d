"""The summary where the window begins: who wrote it, what it stands for, its change, and when it comes and goes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests.browser.conftest import Problems
from tests.browser.filled import LONG, fill, opened
from tests.browser.screen import questions
from tests.browser.server import Server

SUMMARISES = 'Conversation.objects.filter(id=name).update(context_policy="summarise")'
SUMMARY = "They keep a *lighthouse*. <b>Mitzi</b> is the cat."


def summarised(number: int, text: str = SUMMARY, **values: int) -> str:
    """A line that makes a summary up to reply `number`."""
    return f'summary_create(until_id=replies[{number}].id, text="{text}", model_name="tiny", **{values})'


@pytest.fixture(scope="module")
def outgrown(server: Server, session: object) -> str:
    """A conversation that is longer than the window, and a summary of nearly all that has left."""
    return fill(server, 40, LONG * 18, SUMMARISES, summarised(15, num_missing=2))


def row_of(page: Page) -> Locator:
    row = page.get_by_role("region", name="Summary")
    expect(row).to_have_count(1)
    return row


def test_it_stands_below_the_line_and_says_what_it_stands_for(context: BrowserContext, outgrown: str) -> None:
    page = opened(context, outgrown)
    row = row_of(page)
    expect(row.locator("summary")).to_contain_text("Summary of messages 1–32")
    expect(row.locator(".chip")).to_have_text("Written by the model")
    line = page.locator("#transcript .window-line")
    expect(line).to_contain_text(
        re.compile(r"The first \d+ messages are no longer sent; they stay here\. For \d+ of them")
    )
    outside, missing = map(int, re.findall(r"\d+", line.inner_text()))
    assert missing == outside - 32 + 2
    text = row.locator(".summary-text")
    expect(text).to_be_hidden()
    row.locator("summary").click()
    expect(text).to_have_text("They keep a lighthouse. <b>Mitzi</b> is the cat.")
    expect(text.locator("em")).to_have_text("lighthouse")
    expect(row).to_contain_text("2 of these messages had left the window before it was written")


def test_chinese_sentences_follow_each_other_without_a_space(
    browser: Browser, server: Server, session: Path, outgrown: str
) -> None:
    context = browser.new_context(base_url=server.url, storage_state=session, locale="zh-CN")
    page = opened(context, outgrown)
    sentences = re.compile(r"^最前面的 \d+ 条消息不再发送，但仍保留在这里。其中 \d+ 条没有及时写好的摘要。$")
    expect(page.locator("#transcript .window-line")).to_have_text(sentences)
    context.close()


def test_a_change_is_seen_in_every_tab_and_stays(context: BrowserContext, outgrown: str) -> None:
    page, other = opened(context, outgrown), opened(context, outgrown)
    row_of(other).locator("summary").click()
    row = row_of(page)
    row.locator("summary").click()
    change = row.get_by_role("button", name="Change")
    field = row.get_by_role("textbox", name="Summary")
    change.click()
    expect(field).to_have_value(SUMMARY)
    expect(row).to_contain_text("Used from your next message on.")
    field.fill("thrown away")
    field.press("Escape")
    expect(field).to_have_count(0)
    expect(change).to_be_focused()
    change.click()
    expect(field).to_have_value(SUMMARY)
    field.fill(" ")
    expect(row.get_by_role("button", name="Save")).to_be_disabled()
    field.fill("x" * 20_001)
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(row.get_by_role("button", name="Save")).to_be_disabled()
    field.fill("They keep a lighthouse. 咪子 is the cat, Rex the dog.")
    field.press("Enter")  # a new line, as anywhere in a text
    field.press("Control+Enter")
    for tab in (page, other):
        expect(row_of(tab).locator(".chip")).to_have_text("Changed by you")
        expect(row_of(tab).locator(".summary-text")).to_have_text(
            "They keep a lighthouse. 咪子 is the cat, Rex the dog."
        )
    page.reload()
    expect(row_of(page).locator(".chip")).to_have_text("Changed by you")


def test_what_is_being_written_there_survives_news_from_another_tab(
    context: BrowserContext, outgrown: str, problems: Problems
) -> None:
    page, other = opened(context, outgrown), opened(context, outgrown)
    rows = [row_of(tab) for tab in (page, other)]
    for row in rows:
        row.locator("summary").click()
        row.get_by_role("button", name="Change").click()
    field = rows[0].get_by_role("textbox", name="Summary")
    field.fill("half a sentence")
    rows[1].get_by_role("textbox", name="Summary").fill("The other tab was faster.")
    rows[1].get_by_role("button", name="Save").click()
    expect(rows[1].locator(".summary-text")).to_have_text("The other tab was faster.")
    page.wait_for_timeout(1500)  # the news has come
    expect(field).to_have_value("half a sentence")
    expect(field).to_be_focused()
    field.press("Control+Enter")
    expect(page.locator("#notice")).to_contain_text("This summary has other words by now.")
    expect(field).to_have_value("half a sentence")
    problems.clear()  # the refusal, in the browser's words
    field.press("Escape")
    expect(row_of(page).locator(".summary-text")).to_have_text("The other tab was faster.")


def test_another_branch_has_none_and_this_one_has_it_again(
    context: BrowserContext, server: Server, session: object
) -> None:
    edited = """
rows = turns.edit_create(
    user=user, conversation_id=name, message_id=questions[0].id, client_id=uuid.uuid4(), text="Something else",
)
turns.turn_close(
    message_id=rows.assistant_message.id, status="done", text="Fine.", token_ids=[], token_fingerprint="",
)
"""
    page = opened(context, fill(server, 4, "short", SUMMARISES, summarised(1), edited))
    row = page.get_by_role("region", name="Summary")
    expect(questions(page)).to_have_count(1)
    page.wait_for_timeout(1000)
    expect(row).to_have_count(0)
    first = questions(page).first
    first.hover()
    first.get_by_role("button", name="Previous version").click()
    expect(questions(page)).to_have_count(4)
    expect(row).to_have_count(1)
    first.hover()
    first.get_by_role("button", name="Next version").click()
    expect(row).to_have_count(0)
    page.wait_for_timeout(1000)  # what was counted says so, too
    first.hover()
    first.get_by_role("button", name="Previous version").click()
    expect(row).to_have_count(1)


def test_one_that_waits_stands_where_the_window_will_begin(
    context: BrowserContext, server: Server, session: object
) -> None:
    page = opened(context, fill(server, 4, "short", SUMMARISES, summarised(1)))
    row = row_of(page)
    expect(row.locator("summary")).to_contain_text("Summary of messages 1–4, for when they leave the window")
    assert row.evaluate("(element) => element.previousElementSibling.innerText").startswith("Answer 1.")
    row.locator("summary").click()
    expect(row).to_contain_text("Not sent yet")
    expect(page.locator(".window-line")).to_have_count(0)


def test_what_left_with_a_reply_is_said_under_its_numbers(
    context: BrowserContext, server: Server, session: object
) -> None:
    numbers = """
from chatapp.models import Generation
for number, values in enumerate([(4, 4, 0), (10, 6, 6), (10, 0, 6)]):
    outside, left, missing = values
    Generation.objects.create(
        message_id=replies[number].id, model_name="tiny", finish_reason="stop", num_prompt_tokens=30, num_computed=30,
        num_outside=outside, num_left=left, num_unsummarised=missing, summary=summary if missing == 0 else None,
    )
"""
    page = opened(context, fill(server, 3, "short", SUMMARISES, f"summary = {summarised(0)}", numbers))
    lines = page.locator(".message-left")
    expect(lines.nth(0)).to_have_text("Messages 1–4 have left the window. A summary stands for what has left.")
    expect(lines.nth(1)).to_have_text("Messages 5–10 have left the window. There was no summary in time.")
    expect(lines.nth(2)).to_be_hidden()
    page.locator(".message-stats").nth(2).click()
    card = page.locator("#stats-card")
    expect(card).to_contain_text(re.compile(r"Messages outside the window\s*10\s*Of them without a summary\s*6"))
