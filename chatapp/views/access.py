"""Who may see a page. What belongs to whom is decided by the selectors; here only whether somebody is logged in."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from chatapp import selectors
from chatapp.errors import Unauthenticated
from chatapp.models import User

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


def is_from_script(request: HttpRequest) -> bool:
    """Whether a script of ours asks, which wants JSON, and not a person who wants a page."""
    return request.headers.get("X-Requested-With") == "fetch"


def person_required(view: View[P]) -> View[P]:
    """Only for people with a session; others are sent to log in, or to set up a new installation.

    The answer is private to the person: nothing between here and the browser may keep it.
    """

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if not request.user.is_authenticated:
            if is_from_script(request):
                raise Unauthenticated(_("You are logged out. Log in again to go on."))
            if not selectors.is_set_up():
                return redirect("setup")
            return redirect_to_login(request.get_full_path())
        response = view(request, *args, **kwargs)
        response.headers.setdefault("Cache-Control", "private, no-store")
        return response

    return guarded


def person(request: HttpRequest) -> User:
    """The person of a request that person_required has let through."""
    assert isinstance(request.user, User)
    return request.user
