"""Who a session cookie stands for, and who is told when that changes: open sockets do not outlive a log-out."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.signals import user_logged_out
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver
from django.http import HttpRequest

from chatapp import hints, storage
from chatapp.models import User


@storage.translated()
def user_of(session_key: str) -> User | None:
    """The person of a session; None when it has ended, its password was changed or the account was disabled."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user(request)
    return user if isinstance(user, User) else None


@receiver(user_logged_out)
def _close_sockets_of_session(sender: type[User], request: HttpRequest, user: User | None, **kwargs: Any) -> None:
    if user is not None and request.session.session_key:
        hints.session_ended(user.pk, request.session.session_key)


@receiver([post_save, post_delete], sender=User)
def _check_sockets_of_account(sender: type[User], instance: User, **kwargs: Any) -> None:
    """The sockets look for themselves whether they may stay: most saves (a language, a log-in) change nothing."""
    transaction.on_commit(partial(hints.account_changed, instance.pk))
