"""What a person sees of the context window: the gauge, the line in the transcript, and the choice of what leaves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, WebSocketRoute, expect

from tests.browser.conftest import Problems
from tests.browser.filled import LONG, fill, opened
from tests.browser.screen import composer, questions, replies
from tests.browser.server import Server


@pytest.fixture(scope="module")
def filled(server: Server, session: Path) -> str:
    """A conversation that is longer than the window; its id."""
    return fill(server, 40, LONG * 18)


@pytest.fixture
def shown(context: BrowserContext, filled: str) -> Page:
    return opened(context, filled)


def test_the_gauge_counts_while_something_is_written(page: Page) -> None:
    gauge = page.locator("#gauge")
    expect(gauge).to_be_visible()
    before = gauge.get_attribute("aria-label")
    composer(page).fill(LONG * 20)
    expect(gauge).not_to_have_attribute("aria-label", str(before))
    gauge.click()
    card = page.locator("#window-card")
    expect(card).to_contain_text("Kept for the reply")
    total = sum(int(text.replace(",", "")) for text in card.locator("dd").all_inner_texts())
    window = re.search(r"window holds ([\d,]+)", card.inner_text())
    assert window is not None
    assert total == int(window.group(1).replace(",", ""))
    expect(card.get_by_role("button")).to_be_hidden()  # a new conversation has nothing to choose yet


def test_the_line_stands_where_the_window_begins_also_among_older_messages(shown: Page) -> None:
    line = shown.locator("#transcript .window-line")
    for _ in range(100):
        if not shown.locator("#older").is_visible():
            break
        shown.locator("#scroller").evaluate("(element) => { element.scrollTop = 0; }")
        shown.wait_for_timeout(100)
    expect(questions(shown)).to_have_count(40)
    expect(line).to_have_count(1)
    expect(line).to_contain_text(re.compile(r"The first \d+ messages are no longer sent; they stay here\."))
    num_outside = int(re.search(r"\d+", line.inner_text()).group())  # type: ignore[union-attr]
    above = shown.evaluate(
        "() => [...document.querySelectorAll('#transcript > *')].findIndex((e) => e.matches('.window-edge'))"
    )
    assert above == num_outside


def test_the_card_leads_to_where_the_window_begins(shown: Page) -> None:
    line = shown.locator("#transcript .window-line")
    shown.locator("#gauge").click()
    card = shown.locator("#window-card")
    expect(card).to_contain_text("messages are no longer sent; they stay here.")
    card.get_by_role("link", name="Show where the window begins").click()
    expect(line).to_be_in_viewport()
    expect(card).to_be_hidden()
    expect(shown.locator(".window-edge")).to_be_focused()


def test_another_policy_is_chosen_and_holds_at_once_in_every_tab(shown: Page, context: BrowserContext) -> None:
    other = context.new_page()
    other.goto(shown.url)
    other.locator('[data-connection="open"]').wait_for()
    shown.locator("#gauge").click()
    shown.get_by_role("button", name="When it is full …").click()
    dialog = shown.get_by_role("dialog", name="When the window is full")
    expect(dialog.get_by_label("Leave out the oldest turns")).to_be_checked()
    dialog.get_by_label("Refuse when full").check()
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    for tab in (shown, other):
        expect(tab.locator("#window-note")).to_contain_text("This does not fit")
    num = questions(shown).count()
    composer(shown).fill("And this one?")
    composer(shown).press("Enter")
    expect(composer(shown)).to_have_value("And this one?")  # back in the field
    assert questions(shown).count() == num
    expect(shown.locator("#window-note")).to_contain_text("This does not fit")
    shown.get_by_role("button", name="Let the oldest turns leave").click()
    dialog.get_by_label("Leave out the oldest turns").check()
    dialog.get_by_role("button", name="Save").click()
    expect(shown.locator("#window-note")).to_be_hidden()


def test_it_is_said_before_that_a_message_moves_the_window(shown: Page) -> None:
    composer(shown).fill(LONG * 260)
    expect(shown.locator("#window-note")).to_contain_text(re.compile(r"Sending this leaves out messages \d+–\d+\."))
    composer(shown).fill(LONG * 1200)
    note = shown.locator("#window-note")
    expect(note).to_contain_text("without anything earlier the prompt would have")
    composer(shown).fill("")
    expect(note).to_be_hidden()


def test_a_reply_that_has_no_more_room_says_so_and_why_it_cannot_go_on(
    context: BrowserContext, server: Server, session: Path
) -> None:
    cut = """
from chatapp.models import Generation
Generation.objects.create(
    message_id=replies[-1].id, model_name="tiny", finish_reason="length", num_prompt_tokens=30, num_computed=30,
    is_cut_by_window=True,
)
Conversation.objects.filter(id=name).update(context_policy="full")
"""
    page = context.new_page()
    page.goto(f"/c/{fill(server, 45, LONG * 18, cut)}/")
    page.locator('[data-connection="open"]').wait_for()
    outcome = replies(page).last.locator(".outcome")
    expect(outcome).to_contain_text("Window full")
    expect(outcome).to_contain_text("The model's window had no more room for this reply.")
    outcome.get_by_role("button", name="Continue").click()
    note = page.locator("#window-note")
    expect(note).to_contain_text("This reply cannot go on: the conversation would have")
    expect(note.get_by_role("button", name="Let the oldest turns leave")).to_be_visible()
    expect(replies(page).last.locator(".prose")).to_have_text("Answer 44.")
    expect(outcome).to_be_visible()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_nothing_lies_outside_the_screen(
    width: int, scheme: str, browser: Browser, server: Server, session: Path, filled: str, problems: Problems
) -> None:
    context = browser.new_context(
        base_url=server.url,
        storage_state=session,
        viewport={"width": width, "height": 740},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    context.on("page", problems.watch)
    page = context.new_page()
    page.goto(f"/c/{filled}/")
    gauge = page.locator("#gauge")
    expect(gauge).to_be_visible()
    composer(page).fill(LONG * 40)
    page.wait_for_timeout(1000)
    gauge.click()
    for name in ("#window-card", "#window-dialog"):
        box = page.locator(name).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        if name == "#window-card":
            page.get_by_role("button", name="When it is full …").click()
    context.close()


def test_a_question_about_the_window_that_got_no_answer_is_asked_once_more(context: BrowserContext) -> None:
    """The server leaves some without an answer, when a long draft is counted again and again."""
    lost: list[str | bytes] = []

    def relay(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def told(frame: str | bytes) -> None:
            if "window.count" in str(frame) and not lost:
                lost.append(frame)
            else:
                server.send(frame)

        socket.on_message(told)

    page = context.new_page()
    page.route_web_socket(re.compile(r"/ws/$"), relay)
    page.goto("/")
    expect(page.locator("#gauge")).to_be_visible()
    assert len(lost) == 1
