"""Django's handles on the project: the app with its system checks, and the admin with our own site."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig as DjangoAdminConfig
from django.core.checks import register

from chatapp import checks


class ChatConfig(AppConfig):
    name = "chatapp"
    verbose_name = "Recollect"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers the system checks."""
        for check in checks.ALL:
            register(check, checks.TAG)


class AdminConfig(DjangoAdminConfig):
    default_site = "chatapp.admin.site.AdminSite"

    def ready(self) -> None:
        """Registers our tables after those of Django's own apps, of which they replace one."""
        super().ready()
        for room in ("accounts", "conversations", "presets"):
            import_module(f"chatapp.admin.{room}")
