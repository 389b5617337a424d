"""What every answer carries: the content policy, headers against foreign pages; and the person's language."""

from __future__ import annotations

from collections.abc import Callable

from csp.middleware import CSPMiddleware, PolicyParts
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import translation


class ContentPolicyMiddleware(CSPMiddleware):
    """The strict policy everywhere, the admin's own on the pages of the admin and nowhere else.

    An admin page is one that the URL table resolved to the admin; an address that merely looks like it is not.
    """

    def get_policy_parts(
        self, request: HttpRequest, response: HttpResponseBase, report_only: bool = False
    ) -> PolicyParts:
        parts = super().get_policy_parts(request, response, report_only)
        match = request.resolver_match
        if not report_only and parts.config is None and match is not None and "admin" in match.namespaces:
            parts.config = settings.ADMIN_CONTENT_SECURITY_POLICY
        return parts

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response = super().process_response(request, response)
        response.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        response.setdefault("Cross-Origin-Embedder-Policy", "require-corp")
        response.setdefault("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
        return response


class UserLanguageMiddleware:
    """The language that a person chose for the account goes before cookie and browser, which LocaleMiddleware reads."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path_info.startswith("/healthz/"):  # has no words, and must not wait for a database that is away
            return self.get_response(request)
        if request.user.is_authenticated and translation.check_for_language(request.user.language):
            translation.activate(request.user.language)
            request.LANGUAGE_CODE = translation.get_language()
        return self.get_response(request)
