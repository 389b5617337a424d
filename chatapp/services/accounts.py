"""Accounts: the owner on the first visit, sign-up, log-in with its throttle, a person's own settings, deletion."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import auth
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.http import HttpRequest
from django.utils.translation import gettext as _

from chatapp import keys, llm, selectors
from chatapp.errors import Conflict, Invalid, NotFound
from chatapp.models import User
from chatapp.services import login_throttle
from chatapp.storage import translated
from chatapp.text import is_storable, joined


def is_setup_token_required() -> bool:
    """Whether owner_create wants the token: yes when others than the person at this machine may reach the server."""
    return settings.RECOLLECT_IS_EXPOSED


def setup_token_create() -> str:
    """A new one-time token for the set-up link; voids the one before it. For `serve`, which prints the link."""
    return keys.setup_token_create(settings.RECOLLECT_KEYS)


def setup_token_matches(token: str) -> bool:
    """Whether owner_create would take this token (or needs none)."""
    return not is_setup_token_required() or keys.setup_token_matches(settings.RECOLLECT_KEYS, token)


@translated()
def owner_create(*, username: str, password: str, token: str = "") -> User:
    """The first account, staff and superuser. Raises Conflict when there is one, NotFound for a wrong token, Invalid.

    An owner whom owner_for_terminal made gets this name and password, and keeps the conversations. Of two that come at
    once the schema, or the lock on that owner, lets one through.
    """
    if selectors.is_set_up():
        raise Conflict(_("This installation has an owner already."))
    if not setup_token_matches(token):
        raise NotFound(_("This link is not valid: take the one that the server printed when it started last."))
    user = _account(username, password, is_owner=True, is_staff=True, is_superuser=True)
    try:
        with transaction.atomic():
            unclaimed = User.objects.select_for_update().filter(selectors.UNCLAIMED_OWNER).first()
            if unclaimed is not None:
                user.pk, user.date_joined = unclaimed.pk, unclaimed.date_joined
            user.save(force_insert=unclaimed is None, force_update=unclaimed is not None)
    except IntegrityError:
        raise Conflict(_("This installation has an owner already.")) from None
    keys.setup_token_remove(settings.RECOLLECT_KEYS)
    return user


@translated()
def owner_for_terminal() -> User:
    """Who speaks at the machine itself when no name is given: the owner, else the first superuser.

    Before the first visit there is neither: an owner without a password is made, whom owner_create later claims.
    Raises Conflict when there are accounts but none of these.
    """
    known = User.objects.filter(is_superuser=True).order_by("-is_owner", "pk").first()
    if known is not None:
        return known
    if User.objects.exists():
        raise Conflict(_("No account here is an owner's: say whose conversation it is."))
    user = User(username="owner", is_owner=True, is_staff=True, is_superuser=True)
    user.set_unusable_password()
    try:
        with transaction.atomic():
            user.save(force_insert=True)
    except IntegrityError:  # somebody was quicker
        return User.objects.get(is_owner=True)
    return user


@translated()
def sign_up(*, username: str, password: str, language: str = "") -> User:
    """Another account. Raises NotFound while sign-up is off or no owner exists, Conflict for a taken name, Invalid."""
    if not settings.RECOLLECT_SIGNUP or not selectors.is_set_up():
        raise NotFound(_("New accounts are made by the owner of this installation."))
    user = _account(username, password, language=language)
    if User.objects.filter(username__iexact=user.username).exists():  # as in the admin: Ada cannot pass for ada
        raise Conflict(_("This name is taken."))
    try:
        with transaction.atomic():
            user.save(force_insert=True)
    except IntegrityError:
        raise Conflict(_("This name is taken.")) from None
    return user


@translated()
def log_in(*, request: HttpRequest, username: str, password: str) -> User:
    """Check name and password and begin the session. Raises Throttled, or Invalid (the same for every wrong pair)."""
    username = User.normalize_username(username)
    address = _address(request)
    login_throttle.attempt_begin(username=username, address=address)
    is_possible = is_storable(username) and is_storable(password)
    user = auth.authenticate(request, username=username, password=password) if is_possible else None
    if user is None:
        raise Invalid(_("Wrong name or password."))
    assert isinstance(user, User)
    login_throttle.attempt_succeeded(username=username, address=address)
    auth.login(request, user)
    return user


@translated()
def preferences_save(*, user: User, language: str, preferences: dict[str, Any]) -> User:
    """What a person chose for themself. Raises Invalid for an unknown language; "" is what the browser asks for."""
    if language and language not in dict(settings.LANGUAGES):
        raise Invalid(_("This language is not known."), language=language, legal=list(dict(settings.LANGUAGES)))
    user.language = language
    user.preferences = preferences
    user.save(update_fields=["language", "preferences"])
    return user


@translated()
def user_delete(*, user: User) -> None:
    """An account with its conversations; after the commit also their cached KV.

    Raises Conflict for the owner: without an account the next visitor would become the owner.
    """
    if user.is_owner:
        raise Conflict(_("The owner's account cannot be deleted; give the installation up instead."))
    with transaction.atomic():
        conversation_ids = list(user.conversations.order_by("id").select_for_update().values_list("id", flat=True))
        user.delete()
        transaction.on_commit(lambda: _purge_all(conversation_ids))


def _purge_all(conversation_ids: list[UUID]) -> None:
    for conversation_id in conversation_ids:
        llm.purge(conversation_id)


def _account(username: str, password: str, **values: Any) -> User:
    """A validated account, not yet stored. Raises Invalid; its detail says per field what is wrong."""
    user = User(username=User.normalize_username(username), **values)
    problems: dict[str, list[str]] = {}
    try:
        user.clean_fields(exclude=["password"])
    except ValidationError as error:
        problems |= error.message_dict
    try:
        validate_password(password, user)
    except ValidationError as error:
        problems["password"] = error.messages
    if not is_storable(password):
        problems["password"] = [_("The password holds characters that cannot be stored.")]
    if problems:
        raise Invalid(joined(sentence for found in problems.values() for sentence in found), fields=problems)
    user.set_password(password)
    return user


def _address(request: HttpRequest) -> str:
    """Where a request comes from. Behind the TLS proxy: what the proxy itself appended last; what stands before that in
    X-Forwarded-For is the client's own invention."""
    if settings.RECOLLECT_HTTPS and (forwarded := request.headers.get("X-Forwarded-For", "")):
        return forwarded.rsplit(",", 1)[-1].strip()
    return str(request.META.get("REMOTE_ADDR", ""))
