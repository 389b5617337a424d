"""The list of conversations and the small changes to one: rename, pin, delete, another branch."""

from __future__ import annotations

import uuid

from django.http import HttpRequest, HttpResponse


def index(request: HttpRequest) -> HttpResponse:
    """One page of the list as HTML rows, filtered by title."""
    raise NotImplementedError


def rename(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    raise NotImplementedError


def pin(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    raise NotImplementedError


def delete(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    raise NotImplementedError


def branch(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    raise NotImplementedError
