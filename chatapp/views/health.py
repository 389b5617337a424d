"""State for machines that watch the server: is it alive, may it get traffic. No session, no person, no numbers."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chatapp import checks, llm


@never_cache
@require_safe
def live(request: HttpRequest) -> HttpResponse:
    """200 while the process answers at all. Touches nothing else: a broken database is no reason to kill it."""
    return HttpResponse("ok\n", content_type="text/plain")


@never_cache
@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """200 when database and model can serve a send, else 503; says which of the two is not ready."""
    is_storage_ok = checks.storage_ok()
    engine = llm.status().state
    is_ready = is_storage_ok and llm.takes_turns()
    answer = {"ready": is_ready, "database": "ok" if is_storage_ok else "unavailable", "engine": engine.value}
    return JsonResponse(answer, status=200 if is_ready else 503)
