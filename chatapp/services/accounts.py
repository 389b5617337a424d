"""Accounts: the owner on the first visit, sign-up, log-in with its throttle, a person's own settings, deletion."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from chatapp.models import User


def setup_token_create() -> str:
    """A new one-time token for the set-up link; voids the one before it. For `serve`, which prints the link."""
    raise NotImplementedError


def is_setup_token_required() -> bool:
    """Whether owner_create wants the token: yes as soon as others than the person at this machine may reach the server."""
    raise NotImplementedError


def owner_create(*, username: str, password: str, token: str = "") -> User:
    """The first account, staff and superuser. Raises Conflict when there is one, NotFound for a wrong token, Invalid."""
    raise NotImplementedError


def sign_up(*, username: str, password: str, language: str = "") -> User:
    """Another account. Raises NotFound while sign-up is off or there is no owner, Conflict for a taken name, Invalid."""
    raise NotImplementedError


def log_in(*, request: HttpRequest, username: str, password: str) -> User:
    """Check name and password and begin the session. Raises Throttled, or Invalid (the same for every wrong pair)."""
    raise NotImplementedError


def preferences_save(*, user: User, language: str, preferences: dict[str, Any]) -> User:
    """Raises Invalid for an unknown language."""
    raise NotImplementedError


def user_delete(*, user: User) -> None:
    """An account with its conversations; after the commit also their cached KV."""
    raise NotImplementedError
