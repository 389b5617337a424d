"""Talking: send, stream, numbers, stop, regenerate, versions, edit, continue."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.screen import (
    LONG,
    SHORT,
    ask,
    ask_to_the_end,
    composer,
    conversation_id,
    questions,
    replies,
    rows,
    send,
    stop,
    text_of,
    wait_for_end,
    wait_for_more,
    wait_for_text,
)
from tests.browser.server import Server

NUMBERS = re.compile(
    r"prompt ([\d,]+) = ([\d,]+) reused \+ ([\d,]+) computed · first\stoken\s[\d.]+\ss(?: · [\d.]+\stok/s)?"
)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def test_a_first_message_makes_a_conversation_and_is_answered(page: Page) -> None:
    assert ask_to_the_end(page, SHORT)
    assert re.search(r"/c/[0-9a-f-]{36}/$", page.url)
    expect(page.locator("#title span")).to_have_text(SHORT)
    expect(page).to_have_title(f"{SHORT} · Recollect")
    expect(rows(page).filter(has_text=SHORT).first).to_have_class(re.compile("is-current"))
    expect(composer(page)).to_be_focused()
    expect(composer(page)).to_have_value("")


def test_the_numbers_under_a_reply_add_up_and_the_history_is_reused(page: Page) -> None:
    ask(page, "What is the capital of France?")
    ask(page, "And of Italy?")
    found = [NUMBERS.fullmatch(text) for text in page.locator(".message-stats").all_inner_texts()]
    assert len(found) == 2
    for numbers in found:
        assert numbers is not None
        total, reused, computed = map(_number, numbers.groups())
        assert total == reused + computed
    first, second = found
    assert first is not None
    assert second is not None
    assert _number(second.group(2)) >= _number(first.group(1))  # all of the first prompt, at least
    page.locator(".message-stats").last.click()
    card = page.locator("#stats-card")
    expect(card).to_be_visible()
    assert card.locator("dd").first.inner_text() == second.group(1)
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()


def test_a_finished_reply_keeps_its_place_on_the_screen(page: Page) -> None:
    """Neither the end of the reply nor its numbers move what is read."""
    page.evaluate(
        """() => {
            globalThis.jumps = [];
            new MutationObserver(() => {
                const article = document.querySelector('.message-assistant');
                if (!article) return;
                const isOver = !article.classList.contains('is-open');
                if (isOver) globalThis.jumps.push(globalThis.before - article.offsetTop);
                else globalThis.foot = article.querySelector('.message-foot').offsetHeight;
                globalThis.before = article.offsetTop;
            }).observe(document.getElementById('transcript'), { attributes: true, subtree: true, childList: true });
        }"""
    )
    ask_to_the_end(page, "Name three colours.")
    expect(page.locator(".message-stats")).to_be_visible()
    jumps = page.evaluate("globalThis.jumps")
    assert jumps, "the end was seen"
    assert not any(jumps)
    assert page.evaluate("document.querySelector('.message-assistant .message-foot').offsetHeight === globalThis.foot")


def test_reload_in_mid_reply_shows_the_same_text_and_goes_on(page: Page) -> None:
    send(page, LONG)
    wait_for_text(page)
    before = text_of(replies(page).last)
    page.reload()
    expect(replies(page).last).to_have_class(re.compile("is-open"))
    wait_for_text(page)
    again = text_of(replies(page).last)
    assert again.startswith(before[: len(before) // 2])
    wait_for_more(page, again)
    shown = stop(page)
    page.reload()
    assert text_of(replies(page).last) == shown
    assert questions(page).count() == replies(page).count() == 1


def test_a_second_tab_shows_the_same_and_may_stop_it(page: Page, context: BrowserContext) -> None:
    send(page, LONG)
    other = context.new_page()
    other.goto(page.url)
    wait_for_text(other)
    other.get_by_role("button", name="Stop").click()
    wait_for_end(page)
    wait_for_end(other)
    assert text_of(replies(page).last) == text_of(replies(other).last)
    for tab in (page, other):
        expect(replies(tab).last.locator(".chip")).to_have_text("Stopped")
        expect(replies(tab)).to_have_count(1)


def test_what_one_tab_sends_appears_in_the_other(page: Page, context: BrowserContext) -> None:
    ask(page, "Say one word.")
    other = context.new_page()
    other.goto(page.url)
    expect(replies(other)).to_have_count(1)
    ask(page, "Say another one.")
    expect(questions(other)).to_have_count(2)
    expect(replies(other)).to_have_count(2)
    wait_for_end(other)
    assert text_of(replies(page).last) == text_of(replies(other).last)


def test_stop_keeps_the_text_and_continue_goes_on_from_it(page: Page) -> None:
    stopped = ask(page, LONG)
    assert stopped
    reply = replies(page).last
    expect(reply.locator(".chip")).to_have_text("Stopped")
    reply.get_by_role("button", name="Continue").click()
    expect(reply).to_have_class(re.compile("is-open"))
    wait_for_more(page, stopped)
    longer = stop(page)
    assert longer.startswith(stopped)
    assert len(longer) > len(stopped)


def test_regenerate_makes_a_version_and_both_can_be_seen(page: Page) -> None:
    first = ask(page, "Tell me a colour.")
    replies(page).last.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".versions span")).to_have_text("2/2")
    second = stop(page)
    page.get_by_role("button", name="Previous version").click()
    expect(page.locator(".versions span")).to_have_text("1/2")
    assert text_of(replies(page).last) == first
    page.get_by_role("button", name="Next version").click()
    expect(page.locator(".versions span")).to_have_text("2/2")
    assert text_of(replies(page).last) == second
    expect(replies(page)).to_have_count(1)


def test_edit_makes_a_version_of_the_question_and_keeps_the_old_branch(page: Page) -> None:
    ask(page, "Tell me a number.")
    later = ask(page, "And a bigger one.")
    questions(page).first.hover()
    questions(page).first.get_by_role("button", name="Edit").click()
    editor = page.get_by_role("textbox", name="Edit message")
    expect(editor).to_have_value("Tell me a number.")
    editor.fill("Tell me a letter.")
    editor.press("Enter")
    expect(questions(page)).to_have_count(1)
    expect(questions(page).first.locator(".prose")).to_have_text("Tell me a letter.")
    stop(page)
    expect(replies(page)).to_have_count(1)
    page.get_by_role("button", name="Previous version").click()
    expect(questions(page)).to_have_count(2)
    assert text_of(replies(page).last) == later


def test_an_edit_that_is_refused_stays_in_the_editor(page: Page) -> None:
    ask(page, "Tell me a number.")
    questions(page).first.hover()
    questions(page).first.get_by_role("button", name="Edit").click()
    editor = page.get_by_role("textbox", name="Edit message")
    long = "word " * 15_000
    editor.fill(long)
    editor.press("Enter")
    expect(page.get_by_text("This does not fit").first).to_be_visible()
    expect(editor).to_have_value(long)
    editor.fill("Tell me a letter.")
    editor.press("Enter")
    expect(questions(page).first.locator(".prose")).to_have_text("Tell me a letter.")
    stop(page)


LOSE_EDIT = """(isDelivered) => {
    const { send } = WebSocket.prototype;
    WebSocket.prototype.send = function (text) {
        const isEdit = JSON.parse(text).type === 'turn.edit';
        if (!isEdit || isDelivered) send.call(this, text);
        if (!isEdit) return;
        WebSocket.prototype.send = send;
        this.close();
    };
}"""


@pytest.mark.parametrize("fate", ["lost", "answer lost", "page left"])
def test_an_edit_under_way_outlives_the_line(page: Page, fate: str) -> None:
    ask(page, "Tell me a number.")
    page.evaluate(LOSE_EDIT, fate == "answer lost")
    questions(page).first.hover()
    questions(page).first.get_by_role("button", name="Edit").click()
    editor = page.get_by_role("textbox", name="Edit message")
    editor.fill("Tell me a letter.")
    editor.press("Enter")
    if fate == "page left":
        page.reload()
    expect(questions(page).first.locator(".prose")).to_have_text("Tell me a letter.")
    expect(questions(page)).to_have_count(1)
    stop(page)
    expect(questions(page).first.locator(".versions span")).to_have_text("2/2")
    assert page.evaluate(
        "Object.keys(localStorage).filter((key) => key.endsWith(':edits')).map((key) => localStorage[key])"
    ) == ["[]"]


def test_edit_says_why_not_while_a_reply_is_written(page: Page) -> None:
    send(page, LONG)
    button = questions(page).last.get_by_role("button", name="Edit")
    expect(button).to_have_attribute("aria-disabled", "true")
    expect(button).to_have_attribute("title", "Messages can be edited when the reply has ended.")
    button.dispatch_event("click")
    expect(page.locator("#notice")).to_have_text("Messages can be edited when the reply has ended.")
    composer(page).press("Escape")
    wait_for_end(page)
    expect(button).to_have_attribute("aria-disabled", "false")
    expect(button).to_have_attribute("title", "Edit")
    button.click()
    expect(page.get_by_role("textbox", name="Edit message")).to_have_value(LONG)


def test_what_is_written_during_a_reply_is_sent_after_it(page: Page) -> None:
    send(page, LONG)
    composer(page).fill("And now say stop.")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()
    composer(page).press("Enter")
    expect(page.locator("#outbox .bubble")).to_have_text("And now say stop.")
    wait_for_text(page)
    composer(page).press("Escape")
    expect(questions(page)).to_have_count(2)
    expect(page.locator("#outbox .bubble")).to_have_count(0)
    expect(replies(page)).to_have_count(2)
    stop(page)


def test_copy_takes_the_text_as_it_was_written(page: Page, context: BrowserContext) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "Say **hi** in\n\n- two\n- ways")
    questions(page).last.hover()
    questions(page).last.get_by_role("button", name="Copy").click()
    expect(page.locator("#announcer")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "Say **hi** in\n\n- two\n- ways"


def test_the_person_decides_whether_the_view_follows(page: Page) -> None:
    send(page, "Say yes. " + "The quick brown fox jumps over the lazy dog. " * 60)  # fills screen and composer
    wait_for_text(page)
    expect(replies(page).last).to_be_in_viewport()  # the view followed, though the composer has shrunk again
    page.mouse.move(780, 300)
    page.mouse.wheel(0, -400)
    expect(page.get_by_role("button", name="Latest")).to_be_visible()
    place = page.evaluate("document.getElementById('scroller').scrollTop")
    composer(page).press("Escape")
    wait_for_end(page)
    assert page.evaluate("document.getElementById('scroller').scrollTop") == place
    page.get_by_role("button", name="Latest").click()
    expect(page.get_by_role("button", name="Latest")).to_be_hidden()
    gap = "(s => s.scrollHeight - s.scrollTop - s.clientHeight)(document.getElementById('scroller'))"
    assert page.evaluate(gap) <= 1


def test_a_server_that_dies_in_mid_reply_loses_nothing(page: Page, server: Server, problems: list[str]) -> None:
    send(page, LONG)
    wait_for_text(page)
    page.wait_for_timeout(1500)  # the text is saved at least once a second
    server.kill()
    expect(page.locator("#banner")).to_be_visible()
    composer(page).fill("A draft that must survive")
    server.start()
    expect(page.locator("#banner")).to_be_hidden()
    reply = replies(page).last
    expect(reply.locator(".chip")).to_have_text("Interrupted")
    interrupted = text_of(reply)
    assert interrupted
    expect(questions(page)).to_have_count(1)
    expect(composer(page)).to_have_value("A draft that must survive")
    expect(page.locator("#model-chip")).to_have_attribute("data-state", "ready")
    reply.get_by_role("button", name="Continue").click()
    expect(reply).to_have_class(re.compile("is-open"))
    wait_for_more(page, interrupted)
    assert stop(page).startswith(interrupted)
    page.reload()
    expect(questions(page)).to_have_count(1)
    expect(replies(page)).to_have_count(1)
    expect(composer(page)).to_have_value("A draft that must survive")
    assert conversation_id(page)
    problems[:] = [text for text in problems if "ERR_CONNECTION" not in text and "WebSocket" not in text]
