"""The admin site: who may come in, through which door, and the pages that belong to no model."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from unfold.sites import UnfoldAdminSite

from chatapp.admin.engine import engine_page, model_load, model_unload


class AdminSite(UnfoldAdminSite):  # type: ignore[misc]  # unfold is untyped
    """Staff only. Log-in is the one of the product: a second door would be a second place to guess passwords."""

    enable_nav_sidebar = True

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if request.user.is_authenticated:
            raise PermissionDenied
        target = request.GET.get(REDIRECT_FIELD_NAME) or reverse("admin:index")
        return redirect_to_login(target, reverse(settings.LOGIN_URL))

    def extra_urls(self) -> list[URLPattern]:
        """Unfold's hook for pages of our own."""
        return [
            path("engine/", self.admin_view(engine_page), name="engine"),
            path("engine/load/", self.admin_view(model_load), name="engine_load"),
            path("engine/unload/", self.admin_view(model_unload), name="engine_unload"),
        ]
