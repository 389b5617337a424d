"""Where an exception becomes a page, or JSON for the page's own requests. Nowhere else.

The pages are drawn without request and session: they must come out when the database is what is broken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _

from chatapp import checks
from chatapp.errors import ChatError, StorageUnavailable
from chatapp.storage import unavailable
from chatapp.views.access import is_from_script

MIGRATE = "python manage.py migrate"


class ChatErrorMiddleware:
    """The answer to a ChatError that a view let through."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Its status and sentence; None leaves any other exception to handler500."""
        if not isinstance(exception, ChatError):
            return None
        if isinstance(exception, StorageUnavailable):
            return _storage_page(request, exception)
        response = _answer(request, exception.status, exception.code, _heading(exception.status), exception.message)
        if retry_after_s := exception.detail.get("retry_after_s"):
            response.headers["Retry-After"] = str(retry_after_s)
        return response


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _answer(request, 400, "invalid", _heading(400), _("The server does not understand this address or form."))


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _answer(request, 403, "forbidden", _heading(403), _("Your account may not open this page."))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """For CSRF_FAILURE_VIEW: usually a form that was open while somebody logged in or out in another tab."""
    explanation = _("This form is out of date. Go back, load the page again and send it once more.")
    return _answer(request, 403, "csrf", _("The form was not accepted"), explanation)


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    explanation = _("It may have been deleted, or the address has a slip of the pen in it.")
    return _answer(request, 404, "not_found", _heading(404), explanation)


def server_error(request: HttpRequest) -> HttpResponse:
    """handler500, called inside the `except` of Django: the exception is at hand."""
    error = sys.exception()
    if isinstance(error, OperationalError | InterfaceError):
        error = unavailable(error)
    if isinstance(error, StorageUnavailable | DatabaseError):
        return _storage_page(request, error)
    explanation = _("This is our fault, not yours. The log of the server says what happened.")
    return _answer(request, 500, "error", _heading(500), explanation, can_retry=True)


def _storage_page(request: HttpRequest, error: StorageUnavailable | DatabaseError) -> HttpResponse:
    """Says whether the database is away or only older than the program.

    A database that is away is not asked for its migrations: that would take its time-out a second time.
    """
    explanation, command = _("The database does not answer. What was stored is safe."), ""
    is_away = isinstance(error, StorageUnavailable) and error.detail["reason"] != "migrations"
    if isinstance(error, StorageUnavailable):
        explanation = error.message
    if not is_away and checks.pending_migrations():
        explanation = _("The database is older than the program and has to be brought up to date.")
        command = MIGRATE
    heading = _("The database is not available") if not command else _("The database needs an update")
    return _answer(request, 503, StorageUnavailable.code, heading, explanation, command=command, can_retry=True)


def _heading(status: int) -> str:
    return {
        400: _("That did not work"),
        403: _("Not for this account"),
        404: _("This does not exist"),
        429: _("Too many attempts"),
        500: _("Something went wrong"),
        503: _("Not available at the moment"),
    }.get(status, _("That did not work"))


def _answer(
    request: HttpRequest,
    status: int,
    code: str,
    heading: str,
    explanation: str,
    *,
    command: str = "",
    can_retry: bool = False,
) -> HttpResponse:
    if is_from_script(request):
        message = f"{explanation} {command}".strip()
        return JsonResponse({"code": code, "message": message}, status=status)
    page = {
        "status": status,
        "heading": heading,
        "explanation": explanation,
        "command": command,
        "can_retry": can_retry,
        "home": reverse("conversation_new"),
    }
    return HttpResponse(render_to_string("errors/page.html", page), status=status)
