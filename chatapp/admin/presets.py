"""Presets: the one thing that is made in the admin. A preset without an owner is offered to everybody."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.utils.translation import gettext_lazy as _
from unfold.admin import ModelAdmin

from chatapp import llm
from chatapp.errors import Invalid
from chatapp.models import Preset


class PresetForm(forms.ModelForm):  # type: ignore[type-arg]  # no generic at run time
    """Refuses sampling values that the engine would refuse, before a conversation freezes them."""

    def clean_sampling(self) -> dict[str, Any]:
        values = self.cleaned_data["sampling"]
        if not isinstance(values, dict):
            raise forms.ValidationError(_('This must be an object, like {"temperature": 0.7}.'))
        try:
            llm.sampling_params(values)
        except Invalid as error:
            raise forms.ValidationError(error.message) from error
        return values


@admin.register(Preset)
class PresetAdmin(ModelAdmin):  # type: ignore[misc]  # unfold is untyped
    form = PresetForm
    list_display = ("name", "owner", "is_default", "context_policy", "created_at")
    list_filter = ("is_default", "context_policy")
    list_select_related = ("owner",)
    search_fields = ("name", "owner__username")
    autocomplete_fields = ("owner",)
    fields = (
        *("name", "owner", "is_default", "system_prompt", "sampling", "context_policy"),
        *("recent_tokens", "has_recall"),
        *("thinking_in_history", "is_thinking_off"),
    )
    show_full_result_count = False
