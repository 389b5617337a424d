"""What of a conversation its prompts hold: where the window begins, what stands for the rest, what was recalled.

Written by turns, so nothing here can be changed; a summary is changed by its owner, in the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from unfold.admin import StackedInline, TabularInline

from chatapp.admin.engine_numbers import NOTHING
from chatapp.admin.links import message_link, message_links
from chatapp.admin.tables import BigTableAdmin, ReadOnly
from chatapp.models import Conversation, Generation, Message, Summary, TurnContext


@admin.display(description=_("window begins with"))
def window_start(generation: Generation | None) -> str:
    """The first message that was sent, with a link: it lies as deep as there are messages before it."""
    if generation is None:
        return NOTHING
    if generation.window_start is None:
        return str(_("the first message"))
    return message_link(generation.window_start, generation.num_outside)


def summary_link(summary: Summary | None) -> str:
    if summary is None:
        return NOTHING
    return format_html(
        '<a href="{}" class="text-link">{}</a>', reverse("admin:chatapp_summary_change", args=[summary.pk]), summary
    )


def recalled_links(question: Message | None) -> str:
    """What was quoted in front of a question. Two queries."""
    context = TurnContext.objects.filter(message=question).first() if question is not None else None
    return message_links(context.sources) if context is not None else NOTHING


class WindowOfConversation:
    """Mixed into the page of a conversation: what the newest reply on screen was told. Four queries at most."""

    window_fields: ClassVar[Sequence[str]] = (
        *("window_begins_with", "messages_outside", "window_limit", "summary_used", "recalled"),
    )

    def _newest(self, conversation: Conversation) -> Generation | None:
        """Asked for each field, read once: what a page shows is one object."""
        if not hasattr(conversation, "_newest_generation"):
            rows = Generation.objects.filter(message=conversation.active_leaf_id).select_related("summary", "message")
            conversation._newest_generation = rows.order_by("-created_at").first()  # type: ignore[attr-defined]
        return conversation._newest_generation  # type: ignore[attr-defined, no-any-return]

    @admin.display(description=_("window begins with"))
    def window_begins_with(self, conversation: Conversation) -> str:
        return window_start(self._newest(conversation))

    @admin.display(description=_("messages outside the window"))
    def messages_outside(self, conversation: Conversation) -> object:
        newest = self._newest(conversation)
        return newest.num_outside if newest is not None else NOTHING

    @admin.display(description=_("window in tokens"))
    def window_limit(self, conversation: Conversation) -> object:
        newest = self._newest(conversation)
        return newest.window_limit if newest is not None else NOTHING

    @admin.display(description=_("summary"))
    def summary_used(self, conversation: Conversation) -> str:
        newest = self._newest(conversation)
        return summary_link(newest.summary if newest is not None else None)

    @admin.display(description=_("recalled"))
    def recalled(self, conversation: Conversation) -> str:
        newest = self._newest(conversation)
        return recalled_links(newest.message.parent if newest is not None else None)


class SummaryInline(ReadOnly, TabularInline):  # type: ignore[misc]  # unfold is untyped
    """The summaries of a conversation, the newest first, a page at a time; their texts have pages of their own."""

    model = Summary
    fields = ("created_at", "last_message", "num_messages", "num_missing", "is_edited", "model_name")
    ordering = ("-created_at",)
    per_page = 10
    show_change_link = True
    hide_title = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Summary]:
        return super().get_queryset(request).defer("text")  # type: ignore[no-any-return]

    @admin.display(description=_("last message"))
    def last_message(self, summary: Summary) -> str:
        return message_link(summary.until_id, summary.num_messages - 1)


class TurnContextInline(ReadOnly, StackedInline):  # type: ignore[misc]  # unfold is untyped
    """What was put in front of a question when it was sent."""

    model = TurnContext
    fields = ("text", "recalled", "created_at")
    hide_title = True

    @admin.display(description=_("recalled"))
    def recalled(self, context: TurnContext) -> str:
        return message_links(context.sources)


@admin.register(Summary)
class SummaryAdmin(ReadOnly, BigTableAdmin):
    list_display = ("created_at", "conversation", "num_messages", "num_missing", "is_edited", "model_name")
    list_columns = (
        *("id", "created_at", "num_messages", "num_missing", "is_edited", "model_name", "conversation__title"),
    )
    list_filter = ("created_at", "is_edited")
    search_fields = ("conversation__title",)
    search_help_text = _("Title of the conversation")
    ordering = ("-created_at", "-id")
    fields = (
        *("conversation", "last_message", "num_messages", "num_missing", "earlier", "text", "is_edited", "model_name"),
        "created_at",
    )

    def list_queryset(self, rows: QuerySet[Summary]) -> QuerySet[Summary]:
        return super().list_queryset(rows).select_related("conversation")

    @admin.display(description=_("last message"))
    def last_message(self, summary: Summary) -> str:
        return message_link(summary.until_id, summary.num_messages - 1)


@admin.register(TurnContext)
class TurnContextAdmin(ReadOnly, BigTableAdmin):
    list_display = ("created_at", "conversation", "question")
    list_columns = ("message_id", "created_at", "message__position", "message__conversation__title")
    list_filter = ("created_at",)
    search_fields = ("message__conversation__title",)
    search_help_text = _("Title of the conversation")
    ordering = ("-created_at", "-message_id")
    fields = ("conversation_link", "question", "text", "recalled", "created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("message__conversation")

    @admin.display(description=_("conversation"))
    def conversation(self, context: TurnContext) -> str:
        return str(context.message.conversation)

    @admin.display(description=_("conversation"))
    def conversation_link(self, context: TurnContext) -> str:
        conversation = context.message.conversation
        url = reverse("admin:chatapp_conversation_change", args=[conversation.pk])
        return format_html('<a href="{}" class="text-link">{}</a>', url, conversation)

    @admin.display(description=_("message"))
    def question(self, context: TurnContext) -> str:
        return message_link(context.message_id, context.message.position)

    @admin.display(description=_("recalled"))
    def recalled(self, context: TurnContext) -> str:
        return message_links(context.sources)
