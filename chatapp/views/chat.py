"""The chat page: an empty conversation, a stored one, and the parts of it that the page fetches later."""

from __future__ import annotations

import uuid

from django.http import HttpRequest, HttpResponse


def conversation_new(request: HttpRequest) -> HttpResponse:
    """An empty chat page. The conversation comes into being with its first message, under an id that the page chose."""
    raise NotImplementedError


def conversation_show(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """A stored conversation: the active branch, newest messages first to be loaded."""
    raise NotImplementedError


def message_window(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """HTML of the newest messages, or of those above `before`."""
    raise NotImplementedError


def message_text(request: HttpRequest, conversation_id: uuid.UUID, message_id: uuid.UUID) -> HttpResponse:
    """The text of one message exactly as stored, for Copy and Edit."""
    raise NotImplementedError
