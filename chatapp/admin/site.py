"""The admin site."""

from __future__ import annotations

from unfold.sites import UnfoldAdminSite


class AdminSite(UnfoldAdminSite):  # type: ignore[misc]  # unfold is untyped
    """Staff only."""
