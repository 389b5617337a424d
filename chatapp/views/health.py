"""State for machines: is the process alive, may it get traffic, and what the model chip shows."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse


def live(request: HttpRequest) -> HttpResponse:
    """200 while the process answers at all. Touches nothing."""
    return HttpResponse("ok\n", content_type="text/plain")


def ready(request: HttpRequest) -> HttpResponse:
    raise NotImplementedError


def engine(request: HttpRequest) -> HttpResponse:
    raise NotImplementedError
