"""What all tables of the admin have in common: pages without a COUNT, and rows that can only be read."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.admin import ShowFacets
from django.contrib.admin.utils import flatten
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.paginator import InfinitePaginator


class BigTableAdmin(ModelAdmin):  # type: ignore[misc]  # unfold is untyped
    """For tables that grow without end: nothing on the list page may cost more because the table is longer.

    list_columns are what the list reads; the page of one row reads all.
    """

    paginator = InfinitePaginator  # previous and next: counting reads the whole table
    show_full_result_count = False
    show_facets = ShowFacets.NEVER  # each would be another COUNT
    list_disable_select_all = True
    list_per_page = 25  # a row costs more to draw than to read
    list_columns: ClassVar[tuple[str, ...]] = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        match = request.resolver_match
        is_list = match is not None and (match.url_name or "").endswith("_changelist")
        return self.list_queryset(rows) if is_list else rows

    def list_queryset(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """The rows with what the list shows."""
        return rows.only(*self.list_columns)


class ReadOnly:
    """Mixed into an admin or an inline: may be looked at by whoever may view it, and by nobody changed."""

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        """All: an inline would otherwise build form fields that nobody sees."""
        return flatten(self.fields)  # type: ignore[attr-defined]  # of the class that this is mixed into

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
