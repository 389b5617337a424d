"""Conversations that are there already, made by the product's own services in a process of their own."""

from __future__ import annotations

import uuid

from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.server import Server

LONG = "The keeper of the light counts the waves and the ships. "
_FILL = """
import uuid
from chatapp.models import Conversation, User
from chatapp.services import turns
from chatapp.services.summaries import summary_create
from chatapp.services.turns import GenerationNumbers
user = User.objects.get(is_owner=True)
name = uuid.UUID("{name}")
questions, replies = [], []
for number in range({num}):
    rows = turns.send_create(
        user=user, conversation_id=name, client_id=uuid.uuid4(), text=f"Question {{number}}. {text}",
        parent_id=replies[-1].id if replies else None, is_new=not replies,
    )
    questions.append(rows.user_message)
    replies.append(rows.assistant_message)
    turns.turn_close(
        message_id=replies[-1].id, status="done", text=f"Answer {{number}}.", token_ids=[], token_fingerprint="",
    )
conversation = Conversation.objects.get(id=name)
"""


def fill(server: Server, num: int, text: str, *more: str) -> str:
    """A conversation of num turns with this text in every question, and what these lines make of it; its id.

    Lines know user, name, conversation, questions, replies.
    """
    name = str(uuid.uuid4())
    server.manage("shell", "-v0", "-c", "\n".join([_FILL.format(name=name, num=num, text=text), *more]))
    return name


def opened(context: BrowserContext, name: str) -> Page:
    """The page of a conversation, which has been told how full the window is."""
    page = context.new_page()
    page.goto(f"/c/{name}/")
    page.locator('[data-connection="open"]').wait_for()
    expect(page.locator("#gauge")).to_be_visible()
    return page
