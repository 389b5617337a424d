"""In Chinese: switched on in the settings, and then everywhere, also in what comes over the socket."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import OWNER, Problems
from tests.browser.screen import PATIENCE_MS
from tests.browser.server import Server

STAGE = re.compile(r"^(正在开始|排队中，第 \d+ 位|正在读取( \d+%（[\d,]+ / [\d,]+ token）)?|正在生成)$")
NUMBERS = re.compile(r"提示词 [\d,]+ = 复用 [\d,]+ \+ 计算 [\d,]+ · 首\stoken\s[\d.]+\s秒(?: · [\d.,]+\stoken/秒)?")


@pytest.fixture
def chinese(browser: Browser, server: Server, problems: Problems) -> Iterator[BrowserContext]:
    """Somebody whose browser asks for Chinese and who has not logged in yet."""
    context = browser.new_context(base_url=server.url, locale="zh-CN", viewport={"width": 390, "height": 844})
    context.set_default_timeout(PATIENCE_MS)
    context.on("page", problems.watch)
    yield context
    context.close()


def choose(page: Page, language: str) -> None:
    page.goto("/settings/")
    page.locator("#id_language").select_option(language)
    page.locator("form").first.locator("button").click()
    page.locator(".notice").wait_for()


def test_a_person_switches_to_chinese_and_talks(page: Page) -> None:
    choose(page, "zh-hans")
    try:
        expect(page.locator("html")).to_have_attribute("lang", "zh-hans")
        expect(page.get_by_role("heading", level=1)).to_have_text("设置")
        page.get_by_role("link", name="返回会话").click()
        page.locator('[data-connection="open"]').wait_for()
        expect(page.locator(".welcome h1")).to_contain_text("想聊些什么？")
        stages = collect_stages(page)
        field = page.get_by_role("textbox", name="消息", exact=True)
        field.fill("你好，请用一句话介绍一下你自己。")
        field.press("Enter")
        expect(page.locator(".message-stats")).to_have_text(NUMBERS)
        seen = page.evaluate(stages)
        assert seen
        assert all(STAGE.match(text) for text in seen), seen
        expect(page.locator("#conversations h2").first).to_have_text(re.compile("今天|置顶"))
        expect(page.locator("#announcer")).to_have_text(re.compile(r"^回复已完成，共 [\d,]+ 个(字|单词)$"))
        assert clipped(page) == []
    finally:
        choose(page, "")


def collect_stages(page: Page) -> str:
    """Begin to note every stage that is shown; the expression that tells them."""
    page.evaluate(
        """() => {
            globalThis.stages = new Set();
            new MutationObserver(() => {
                for (const stage of document.querySelectorAll('#transcript .stage-text')) {
                    if (stage.textContent) globalThis.stages.add(stage.textContent);
                }
            }).observe(document.querySelector('#transcript'), { subtree: true, childList: true, characterData: true });
        }"""
    )
    return "[...globalThis.stages]"


def test_a_chinese_browser_gets_chinese_on_a_phone(chinese: BrowserContext) -> None:
    page = chinese.new_page()
    page.goto("/login/")
    expect(page.get_by_role("heading", level=1)).to_have_text("欢迎回来")
    name, password = OWNER
    page.get_by_label("用户名").fill(name)
    page.get_by_label("密码").fill(password)
    page.get_by_role("button", name="登录").click()
    page.locator('[data-connection="open"]').wait_for()
    expect(page.get_by_role("textbox", name="消息", exact=True)).to_be_visible()
    assert clipped(page) == []
    page.goto("/settings/")
    assert clipped(page) == []


def clipped(page: Page) -> list[str]:
    """Labels that are wider than their place. Titles and names of models may be cut, with an ellipsis."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll('button, .button, label, h1, h2, .chip')]
            .filter((element) => !element.matches('.sr-only, .topbar-title, .model-chip, .account'))
            .filter((element) => element.scrollWidth > element.clientWidth + 1 && element.checkVisibility())
            .map((element) => element.textContent.trim())"""
    )
    return found
