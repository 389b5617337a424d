"""A page for a Chinese reader has no English left in it, and says which language it is in."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import formats, translation

from chatapp import llm
from chatapp.models import Generation, Preset, User
from tests.chatapp import rows
from tests.chatapp.fake_worker import FakeWorker

CHINESE = {"HTTP_ACCEPT_LANGUAGE": "zh-CN,zh;q=0.9,en;q=0.1"}
SHOWN_ATTRIBUTES = ("aria-label", "title", "placeholder", "alt")
# Names, keys of a keyboard, and the terms of the field that stay as they are.
NO_TRANSLATION = frozenset(
    {"recollect", "english", "python", "javascript", "token"}
    | {"ctrl", "shift", "enter", "esc", "control", "command", "mac"}
)
OF_THE_MODEL = {"fake", "llama", "model"}  # what FakeWorker says of itself
CODES = {reason.value for reason in llm.FinishReason}  # shown to operators as they are stored


class VisibleText(HTMLParser):
    """What a person reads on a page or hears from it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.language = ""
        self._hidden = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "html":
            self.language = dict(attrs).get("lang") or ""
        if tag in ("script", "style"):
            self._hidden = tag
        elif "material-symbols-outlined" not in (dict(attrs).get("class") or ""):
            self.texts += [value for name, value in attrs if name in SHOWN_ATTRIBUTES and value]
        else:
            self._hidden = tag  # the name of an icon

    def handle_endtag(self, tag: str) -> None:
        if tag == self._hidden:
            self._hidden = ""

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.texts.append(data)


def english_of(html: str) -> set[str]:
    page = VisibleText()
    page.feed(html)
    assert page.language == "zh-hans"
    words = {word for text in page.texts for word in re.findall(r"(?<![\w./-])[A-Za-z]{3,}(?![\w./-])", text)}
    return {word for word in words if word.lower() not in NO_TRANSLATION}


@pytest.fixture
def mila(db: Any) -> User:
    return User.objects.create_user("米拉", is_owner=True, is_staff=True, is_superuser=True)


@pytest.mark.parametrize("name", ["login", "setup", "signup"])
def test_pages_before_log_in_follow_the_browser(client: Client, db: Any, settings: Any, name: str) -> None:
    settings.RECOLLECT_SIGNUP = True
    if name != "setup":
        User.objects.create_user("米拉", password="correct horse battery", is_owner=True)
    assert english_of(client.get(reverse(name), **CHINESE).content.decode()) == set()


def test_a_refused_form_says_why_in_chinese(client: Client, db: Any) -> None:
    values = {"username": "a b", "password": "123", "repeated": "123"}
    page = client.post(reverse("setup"), values, **CHINESE).content.decode()
    assert english_of(page) == set()
    assert "密码" in page


def test_the_chat_and_the_settings_follow_the_account(client: Client, mila: User, worker: FakeWorker) -> None:
    mila.language = "zh-hans"
    mila.save()
    client.force_login(mila)
    conversation = rows.turn(mila, "你好", "你也好").conversation
    for page in (reverse("conversation_new"), reverse("conversation", args=[conversation.id]), reverse("settings")):
        html = client.get(page, HTTP_ACCEPT_LANGUAGE="en").content.decode()
        assert english_of(html) <= OF_THE_MODEL
    engine = client.get(reverse("engine"), HTTP_ACCEPT_LANGUAGE="en").json()
    assert ["上下文窗口", "4,096 token"] in engine["facts"]


def test_errors_are_told_in_chinese(client: Client, mila: User) -> None:
    client.force_login(mila)
    for address in ("/nowhere/", reverse("conversation", args=["00000000-0000-4000-8000-000000000000"])):
        assert english_of(client.get(address, **CHINESE).content.decode()) == set()
    refused = client.post(reverse("password"), {}, **CHINESE).content.decode()
    assert english_of(refused) == set()


def test_the_administration_is_in_chinese(client: Client, mila: User, worker: FakeWorker) -> None:
    client.force_login(mila)
    rows.turn(mila, "你好", "你也好")
    Generation.objects.update(model_name="模型", kernel_tier="", finish_reason="")
    preset = Preset.objects.create(name="普通")
    generation = Generation.objects.get()
    message = generation.message
    pages = [
        reverse("admin:index"),
        reverse("admin:engine"),
        *(
            reverse(f"admin:chatapp_{name}_changelist")
            for name in ("conversation", "message", "generation", "preset", "user")
        ),
        reverse("admin:chatapp_conversation_change", args=[message.conversation_id]),
        reverse("admin:chatapp_conversation_delete", args=[message.conversation_id]),
        reverse("admin:chatapp_message_change", args=[message.pk]),
        reverse("admin:chatapp_generation_change", args=[generation.pk]),
        reverse("admin:chatapp_preset_change", args=[preset.pk]),
        reverse("admin:chatapp_user_add"),
    ]
    for page in pages:
        assert english_of(client.get(page, **CHINESE).content.decode()) <= OF_THE_MODEL | CODES, page


def test_thousands_are_set_apart_as_in_the_scripts() -> None:
    with translation.override("zh-hans"):
        assert formats.number_format(134_515_008, force_grouping=True) == "134,515,008"
