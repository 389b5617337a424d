"""The engine's numbers for Prometheus: for staff with a session, and for who holds the token of the settings."""

from __future__ import annotations

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chatapp import metrics


@never_cache
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    """With a token no session is looked at, and so no database. Who has neither is told that there is nothing here."""
    if settings.RECOLLECT_METRICS_TOKEN and "Authorization" in request.headers:
        if not _has_token(request):
            return HttpResponse("wrong token\n", status=401, headers={"WWW-Authenticate": 'Bearer realm="metrics"'})
    elif not (request.user.is_active and request.user.is_staff):
        raise Http404
    return HttpResponse(metrics.exposition(), content_type=metrics.CONTENT_TYPE)


def _has_token(request: HttpRequest) -> bool:
    scheme, _, token = request.headers["Authorization"].partition(" ")
    return scheme.lower() == "bearer" and constant_time_compare(token.strip(), settings.RECOLLECT_METRICS_TOKEN)
