"""The sidebar of the admin."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _


def groups(request: HttpRequest) -> list[dict[str, Any]]:
    """What this person may see, as Unfold wants it."""
    return [
        {
            "title": _("Server"),
            "items": [{"title": _("Engine"), "icon": "memory", "link": reverse("admin:engine")}],
        },
        {
            "title": _("Chat"),
            "items": [
                *_item(request, "chatapp.conversation", _("Conversations"), "forum"),
                *_item(request, "chatapp.message", _("Messages"), "chat_bubble"),
                *_item(request, "chatapp.generation", _("Generations"), "speed"),
                *_item(request, "chatapp.summary", _("Summaries"), "summarize"),
                *_item(request, "chatapp.turncontext", _("Recalled"), "history"),
                *_item(request, "chatapp.preset", _("Presets"), "tune"),
            ],
        },
        {
            "title": _("People"),
            "items": [
                *_item(request, "chatapp.user", _("Users"), "person"),
                *_item(request, "auth.group", _("Groups"), "group"),
            ],
        },
    ]


def _item(request: HttpRequest, label: str, title: str, icon: str) -> list[dict[str, Any]]:
    app, model = label.split(".")
    if not request.user.has_perm(f"{app}.view_{model}"):
        return []
    return [{"title": title, "icon": icon, "link": reverse(f"admin:{app}_{model}_changelist")}]
