"""Forms of the pages about accounts and of the small changes to a conversation: fields and their legal values.

Whether a name is taken or a password too weak is decided by the services, whose refusals are shown on the form.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth.forms import PasswordChangeForm
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from chatapp.errors import ChatError
from chatapp.models import ContextPolicy, User

MAX_PASSWORD_CHARS = 1000  # hashing takes longer the longer it is
_PASSWORD_HELP = _("At least 8 characters; not a common password, and not only digits.")


def _password(label: Any, autocomplete: str, **options: Any) -> forms.CharField:
    widget = forms.PasswordInput(attrs={"autocomplete": autocomplete})
    return forms.CharField(label=label, widget=widget, strip=False, max_length=MAX_PASSWORD_CHARS, **options)


class RefusableForm(forms.Form):
    """A form whose fields may also be refused by a service."""

    def refuse(self, error: ChatError) -> None:
        """Show what it says: at its fields if it names them, else above the form."""
        found: dict[str, list[str]] = error.detail.get("fields", {})
        for field, sentences in found.items():
            for sentence in sentences:
                self.add_error(field if field in self.fields else None, sentence)
        if not found:
            self.add_error(None, error.message)


class LoginForm(RefusableForm):
    username = forms.CharField(
        label=pgettext_lazy("of a person", "Name"),
        max_length=150,
        widget=forms.TextInput(attrs={"autocomplete": "username", "autofocus": True}),
    )
    password = _password(_("Password"), "current-password")


class AccountForm(RefusableForm):
    """A new account: the owner's, or one by sign-up."""

    username = forms.CharField(
        label=pgettext_lazy("of a person", "Name"),
        max_length=150,
        help_text=_("Letters, digits and @ . + - _"),
        widget=forms.TextInput(attrs={"autocomplete": "username", "autofocus": True, "spellcheck": "false"}),
    )
    password = _password(_("Password"), "new-password", help_text=_PASSWORD_HELP)
    repeated = _password(_("Password again"), "new-password")

    def clean(self) -> dict[str, Any]:
        """The two passwords are the same."""
        cleaned = super().clean() or self.cleaned_data
        if "repeated" in cleaned and cleaned.get("password") != cleaned["repeated"]:
            self.add_error("repeated", _("The two passwords differ."))
        return cleaned


class PasswordForm(PasswordChangeForm):
    """The old password, and twice the new one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.fields["old_password"].widget.attrs["autofocus"]  # it is not the first form of its page
        self.fields["new_password1"].help_text = _PASSWORD_HELP
        self.fields["new_password2"].help_text = ""


class PreferencesForm(forms.Form):
    """What a person chooses for themself; all but the language is kept in User.preferences."""

    THEMES = (("system", _("As the system")), ("light", _("Light")), ("dark", _("Dark")))

    theme = forms.ChoiceField(label=_("Appearance"), choices=THEMES, widget=forms.RadioSelect)
    language = forms.ChoiceField(label=_("Language"), required=False)
    shortcuts = forms.BooleanField(label=_("Keyboard shortcuts"), required=False)
    drafts = forms.BooleanField(label=_("Read along while I write"), required=False)
    titles = forms.BooleanField(label=_("Titles by the model"), required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["language"].choices = [("", _("As the browser asks")), *settings.LANGUAGES]  # type: ignore[attr-defined]

    @staticmethod
    def initial_of(user: User) -> dict[str, Any]:
        return {
            "theme": user.preferences.get("theme", "system"),
            "language": user.language,
            "shortcuts": user.preferences.get("shortcuts", True),
            "drafts": user.preferences.get("drafts", True),
            "titles": user.preferences.get("titles", True),
        }

    @property
    def preferences(self) -> dict[str, Any]:
        """The part that goes into User.preferences."""
        return {name: self.cleaned_data[name] for name in ("theme", "shortcuts", "drafts", "titles")}


class PinForm(forms.Form):
    is_pinned = forms.BooleanField(required=False)


class ArchiveForm(forms.Form):
    is_archived = forms.BooleanField(required=False)


class WindowForm(forms.Form):
    """What becomes of what no longer fits the window. recent_tokens 0: as the administration says."""

    policy = forms.ChoiceField(choices=ContextPolicy.choices)
    recent_tokens = forms.IntegerField(required=False, min_value=0, max_value=10_000_000)
    has_recall = forms.BooleanField(required=False)

    def clean_recent_tokens(self) -> int:
        """Nothing is 0, too."""
        return self.cleaned_data["recent_tokens"] or 0


class BranchForm(forms.Form):
    message = forms.UUIDField()
