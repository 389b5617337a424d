"""Users and groups, in Unfold's look. Deletion goes through the service; rights are given by superusers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from chatapp.models import Conversation, User
from chatapp.services.accounts import user_delete

_RIGHTS = ("is_staff", "is_superuser", "groups", "user_permissions")


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):  # type: ignore[misc, type-arg]  # unfold is untyped
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "email", "is_active", "is_staff", "is_owner", "date_joined", "last_login")
    list_filter = ("is_active", "is_staff", "is_superuser")
    date_hierarchy = "date_joined"
    readonly_fields = ("is_owner", "last_login", "date_joined")
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        (_("Person"), {"fields": ("first_name", "last_name", "email", "language")}),
        (_("Rights"), {"fields": ("is_active", "is_owner", *_RIGHTS)}),
        (_("Times"), {"fields": ("last_login", "date_joined")}),
    )
    show_full_result_count = False

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> tuple[str, ...]:
        """Staff who may change users could otherwise make themselves superusers."""
        return self.readonly_fields if request.user.is_superuser else (*self.readonly_fields, *_RIGHTS)

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Or set a superuser's password, and come back as one."""
        return super().has_change_permission(request, obj) and self._may_touch(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        is_owner = obj is not None and obj.is_owner
        return super().has_delete_permission(request, obj) and self._may_touch(request, obj) and not is_owner

    def _may_touch(self, request: HttpRequest, obj: User | None) -> bool:
        return obj is None or request.user.is_superuser or not obj.is_superuser

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        user_delete(user=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        for user in queryset:
            user_delete(user=user)

    def get_deleted_objects(
        self, objs: Sequence[Any] | QuerySet[Any, Any], request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """What the confirmation shows: names and numbers. Django's own would load and list every message."""
        counts = {
            str(User._meta.verbose_name_plural): len(objs),
            str(Conversation._meta.verbose_name_plural): Conversation.objects.filter(owner__in=list(objs)).count(),
        }
        protected = [
            str(_("The account %s cannot be deleted by you.") % user)
            for user in objs
            if not self.has_delete_permission(request, user)
        ]
        return [str(user) for user in objs], counts, set(), protected


admin.site.unregister(Group)


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ModelAdmin):  # type: ignore[misc]  # unfold is untyped
    list_display = ("name",)
