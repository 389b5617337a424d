"""Conversations, their messages and what each reply cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import F, Field, OuterRef, QuerySet, Subquery
from django.db.models.functions import Substr
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.admin import TabularInline
from unfold.decorators import display

from chatapp import llm
from chatapp.admin.engine_numbers import NOTHING, ratio
from chatapp.admin.links import message_link, place_of
from chatapp.admin.tables import BigTableAdmin, ReadOnly
from chatapp.admin.windows import (
    SummaryInline,
    TurnContextInline,
    WindowOfConversation,
    recalled_links,
    window_start,
)
from chatapp.models import Conversation, Generation, Message, PrefixBreak, TitleSource
from chatapp.services.conversations import conversation_archive, conversation_delete

_EXCERPT_CHARS = 120
_MAX_COUNTED = 1000
_STATUS_COLOURS = {
    "queued": "info",
    "reading": "info",
    "writing": "info",
    "done": "success",
    "stopped": "warning",
    "interrupted": "warning",
    "failed": "danger",
}


@admin.display(description=_("text"))
def excerpt(message: Message) -> str:
    """The beginning of the answer, cut by the database: the rest is not read."""
    text: str = message.excerpt  # type: ignore[attr-defined]  # annotated by with_excerpts
    return text + "…" if len(text) == _EXCERPT_CHARS else text or "–"  # the link to an empty one needs a place to click


@display(description=_("status"), ordering="status", label=_STATUS_COLOURS)  # type: ignore[untyped-decorator]
def coloured_status(message: Message) -> tuple[str, str]:
    """The status, with the key of its colour."""
    return message.status, message.get_status_display()


def with_excerpts(rows: QuerySet[Message]) -> QuerySet[Message]:
    """The rows without their texts and ids, which can be long."""
    return rows.defer("text", "error", "token_ids").annotate(
        excerpt=Substr("text", F("thinking_chars") + 1, _EXCERPT_CHARS)
    )


def _if_it_ran(name: str) -> Callable[[Generation], object]:
    """A column of numbers: a dash for an attempt that was stopped before the model had a prompt."""

    field = Generation._meta.get_field(name)
    assert isinstance(field, Field)

    @admin.display(description=field.verbose_name, ordering=name)
    def shown(generation: Generation) -> object:
        return getattr(generation, name) if generation.num_prompt_tokens else NOTHING

    shown.__name__ = name  # the page names the column after it
    return shown


_PROMPT_NUMBERS = tuple(
    _if_it_ran(name) for name in ("num_prompt_tokens", "num_reused_ram", "num_reused_disk", "num_computed")
)
_NUM_GENERATED = _if_it_ran("num_generated")


class MessageInline(ReadOnly, TabularInline):  # type: ignore[misc]  # unfold is untyped
    """The messages of a conversation, all branches, a page at a time, with what the newest attempt has reused."""

    model = Message
    # Only a list can draw the coloured status.
    fields = ("position", "role", "status", excerpt, "reused_share", "prefix_break", "created_at")
    ordering = ("position", "created_at")
    per_page = 25
    show_change_link = True
    hide_title = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        newest = Generation.objects.filter(message=OuterRef("pk")).order_by("-created_at")
        return with_excerpts(super().get_queryset(request)).annotate(
            cause=Subquery(newest.values("prefix_break")[:1]),
            num_prompt=Subquery(newest.values("num_prompt_tokens")[:1]),
            num_reused=Subquery(newest.values(total=F("num_reused_ram") + F("num_reused_disk"))[:1]),
        )

    @admin.display(description=_("reused"))
    def reused_share(self, message: Any) -> str:
        return ratio(message.num_reused, message.num_prompt) if message.num_prompt else ""

    @admin.display(description=_("prefix ended by"))
    def prefix_break(self, message: Any) -> str:
        return str(PrefixBreak(message.cause).label) if message.cause else ""


class GenerationInline(ReadOnly, TabularInline):  # type: ignore[misc]  # unfold is untyped
    model = Generation
    fk_name = "message"
    fields = (
        *("created_at", *_PROMPT_NUMBERS, "prefix_break"),
        *(_NUM_GENERATED, _if_it_ran("ttft_s"), "finish_reason"),
    )
    ordering = ("-created_at",)
    show_change_link = True
    hide_title = True


@admin.register(Conversation)
class ConversationAdmin(WindowOfConversation, BigTableAdmin):
    """Title, pin and archive may be changed; the rest is frozen at creation or belongs to the turns."""

    list_display = ("__str__", "owner", "model_name", "is_pinned", "is_archived", "updated_at")
    list_columns = (
        *("id", "title", "model_name", "is_pinned", "is_archived", "updated_at"),
        *("owner__username",),
    )
    list_filter = ("updated_at", "is_pinned", "is_archived", "title_source", "context_policy")
    search_fields = ("title", "owner__username")
    search_help_text = _("Title or name of the owner")
    fields = (
        *("title", "title_source", "owner", ("is_pinned", "is_archived"), "preset", "model_name"),
        *("system_prompt", "system_prompt_is_public", "sampling", "context_policy", "recent_tokens"),
        *("has_recall", *WindowOfConversation.window_fields, "thinking_in_history"),
        *("is_thinking_off", "created_at", "updated_at"),
    )
    readonly_fields = tuple(name for name in fields if name not in ("title", ("is_pinned", "is_archived")))
    inlines = (MessageInline, SummaryInline)

    def list_queryset(self, rows: QuerySet[Conversation]) -> QuerySet[Conversation]:
        return super().list_queryset(rows).select_related("owner")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Conversation, form: ModelForm[Conversation], change: bool) -> None:
        if "title" in form.changed_data:
            obj.title_source = TitleSource.PERSON
        # Only what this page shows as fields: a turn that runs meanwhile writes the others.
        obj.save(update_fields=["title", "title_source", "is_pinned"])
        if "is_archived" in form.changed_data:
            conversation_archive(user=obj.owner, conversation_id=obj.id, is_archived=obj.is_archived)

    def delete_model(self, request: HttpRequest, obj: Conversation) -> None:
        conversation_delete(user=obj.owner, conversation_id=obj.id)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Conversation]) -> None:
        for conversation in queryset.select_related("owner"):
            conversation_delete(user=conversation.owner, conversation_id=conversation.id)

    def get_deleted_objects(
        self, objs: Sequence[Conversation], request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """What the confirmation shows: titles and a number. Django's own would load and list every message."""
        num_messages = Message.objects.filter(conversation__in=list(objs)).count()
        counts = {
            str(Conversation._meta.verbose_name_plural): len(objs),
            str(Message._meta.verbose_name_plural): num_messages,
        }
        return [str(conversation) for conversation in objs], counts, set(), []


@admin.register(Message)
class MessageAdmin(ReadOnly, BigTableAdmin):
    list_display = (excerpt, "role", coloured_status, "position", "conversation", "created_at")
    list_display_links = (excerpt,)
    list_filter = ("created_at", "role", "status")
    search_fields = ("text",)
    search_help_text = _("Words in the text")
    ordering = ("-created_at", "-id")
    fields = (
        *("conversation", "parent", "role", "status", "position", "text", "error", "created_at", "finished_at"),
        *("client_id", "num_token_ids", "token_fingerprint", "thinking_chars", "thinking_tokens"),
    )
    list_columns = ("id", "role", "status", "position", "created_at", "conversation__title")
    inlines: ClassVar = (TurnContextInline, GenerationInline)

    def list_queryset(self, rows: QuerySet[Message]) -> QuerySet[Message]:
        return super().list_queryset(with_excerpts(rows)).select_related("conversation")

    @admin.display(description=_("stored token ids"))
    def num_token_ids(self, message: Message) -> int:
        return len(message.ids or ())


class FinishReasonFilter(admin.SimpleListFilter):
    """The known reasons; Django's own filter would read the whole table to find them."""

    title = _("finish reason")
    parameter_name = "finish_reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(reason.value, reason.value) for reason in llm.FinishReason]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Generation]) -> QuerySet[Generation]:
        return queryset.filter(finish_reason=self.value()) if self.value() else queryset


class PrefixBreakFilter(admin.SimpleListFilter):
    """The causes, and how many nobody could find out; counted to a thousand, in an index."""

    title = _("prefix ended by")
    parameter_name = "prefix_break"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        num_unknown = Generation.objects.filter(prefix_break=PrefixBreak.UNKNOWN)[:_MAX_COUNTED].count()
        more = "+" if num_unknown == _MAX_COUNTED else ""
        counts = {PrefixBreak.UNKNOWN.value: f" ({num_unknown}{more})"}
        return [(value, f"{label}{counts.get(value, '')}") for value, label in PrefixBreak.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Generation]) -> QuerySet[Generation]:
        return queryset.filter(prefix_break=self.value()) if self.value() else queryset


@admin.register(Generation)
class GenerationAdmin(ReadOnly, BigTableAdmin):
    """The cache numbers of each reply: prompt = reused from RAM + reused from disk + computed."""

    list_fullwidth = True
    list_display = (
        *("created_at", "conversation", *_PROMPT_NUMBERS),
        *("reused_share", "prefix_break", "read_again_from", _NUM_GENERATED, "ttft_ms", "speed", "finish_reason"),
    )
    list_columns = (
        *("created_at", "num_prompt_tokens", "num_reused_ram", "num_reused_disk", "num_computed", "num_generated"),
        *("ttft_s", "decode_s", "finish_reason", "prefix_break", "break_message_id", "break_position"),
        "message__conversation__title",
    )
    list_filter = ("created_at", PrefixBreakFilter, FinishReasonFilter)
    search_fields = ("message__conversation__title", "model_name")
    search_help_text = _("Title of the conversation, or model")
    ordering = ("-created_at", "-id")
    fields = (
        *("message", "model_name", "model_fingerprint", "kernel_tier", "sampling", "seed", "finish_reason"),
        *(*_PROMPT_NUMBERS, "reused_share"),
        *("num_known", "prefix_break", "read_again_from"),
        *("context_policy", window_start, "num_outside", "num_left", "window_limit", "summary", "num_unsummarised"),
        *("recalled", "is_cut_by_window"),
        *(_NUM_GENERATED, "queue_s", *map(_if_it_ran, ("ttft_s", "prefill_s", "decode_s", "thinking_s")), "speed"),
        "created_at",
    )

    def list_queryset(self, rows: QuerySet[Generation]) -> QuerySet[Generation]:
        return super().list_queryset(rows).select_related("message__conversation")

    @admin.display(description=_("conversation"))
    def conversation(self, generation: Generation) -> str:
        return str(generation.message.conversation)

    @admin.display(description=_("reused"))
    def reused_share(self, generation: Generation) -> str:
        return ratio(generation.num_reused, generation.num_prompt_tokens)

    @admin.display(description=_("read again from"))
    def read_again_from(self, generation: Generation) -> str:
        """The message in which reuse ended, with a link."""
        if not generation.prefix_break:
            return ""
        if generation.break_message_id is None or generation.break_position is None:
            return place_of(generation.break_position)
        return message_link(generation.break_message_id, generation.break_position)

    @admin.display(description=_("context policy"))
    def context_policy(self, generation: Generation) -> str:
        """Of the conversation, as it is now."""
        return generation.message.conversation.get_context_policy_display()

    @admin.display(description=_("recalled"))
    def recalled(self, generation: Generation) -> str:
        return recalled_links(generation.message.parent)

    @admin.display(description=_("TTFT, ms"), ordering="ttft_s")
    def ttft_ms(self, generation: Generation) -> str:
        return f"{1000 * generation.ttft_s:.0f}" if generation.ttft_s else NOTHING

    @admin.display(description=_("tok/s"))
    def speed(self, generation: Generation) -> str:
        return f"{generation.decode_tok_s:.1f}" if generation.decode_tok_s else NOTHING
