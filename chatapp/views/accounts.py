"""Accounts: the owner's set-up on the first visit, log-in and log-out, sign-up, a person's own settings."""

from __future__ import annotations

from django.conf import settings
from django.contrib import auth, messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from chatapp import selectors
from chatapp.errors import Conflict, Invalid, NotFound, Throttled
from chatapp.forms import AccountForm, LoginForm, PasswordForm, PreferencesForm
from chatapp.services import accounts
from chatapp.views.access import person, person_required


@never_cache
@sensitive_post_parameters("password")
@require_http_methods(["GET", "HEAD", "POST"])
def login(request: HttpRequest) -> HttpResponse:
    """Name and password, then on to where the person wanted to go."""
    target = _target(request)
    if request.user.is_authenticated:
        return redirect(target)
    if not selectors.is_set_up():
        return redirect("setup")
    form = LoginForm(request.POST or None)
    status = 200
    if request.method == "POST" and form.is_valid():
        try:
            accounts.log_in(request=request, **form.cleaned_data)
        except (Invalid, Throttled) as error:
            form.refuse(error)
            status = error.status
        else:
            return redirect(target)
    context = {"form": form, "next": target, "is_signup_open": settings.RECOLLECT_SIGNUP}
    return render(request, "accounts/login.html", context, status=status)


@never_cache
@require_POST
def logout(request: HttpRequest) -> HttpResponse:
    """End this session; its sockets are told by sessions.py."""
    auth.logout(request)
    return redirect(settings.LOGOUT_REDIRECT_URL)


@never_cache
@sensitive_post_parameters("password", "repeated", "token")
@require_http_methods(["GET", "HEAD", "POST"])
def setup(request: HttpRequest) -> HttpResponse:
    """The owner's account, on the first visit only; through the printed link where others can reach the server."""
    if selectors.is_set_up():
        return redirect("conversation_new")
    token = request.POST.get("token", request.GET.get("token", ""))
    if not accounts.setup_token_matches(token):
        return render(request, "accounts/setup_link_needed.html", status=NotFound.status)
    form = AccountForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        username, password = form.cleaned_data["username"], form.cleaned_data["password"]
        try:
            accounts.owner_create(username=username, password=password, token=token)
            accounts.log_in(request=request, username=username, password=password)
        except (Invalid, Conflict, NotFound) as error:
            form.refuse(error)
        else:
            return redirect("conversation_new")
    return render(request, "accounts/setup.html", {"form": form, "token": token}, status=_form_status(form))


@never_cache
@sensitive_post_parameters("password", "repeated")
@require_http_methods(["GET", "HEAD", "POST"])
def signup(request: HttpRequest) -> HttpResponse:
    """An account for somebody else, where the operator allows it."""
    if request.user.is_authenticated:
        return redirect("conversation_new")
    if not settings.RECOLLECT_SIGNUP:
        raise NotFound(_("New accounts are made by the owner of this installation."))
    if not selectors.is_set_up():
        return redirect("setup")
    form = AccountForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        username, password = form.cleaned_data["username"], form.cleaned_data["password"]
        try:
            accounts.sign_up(username=username, password=password, language=get_language() or "")
            accounts.log_in(request=request, username=username, password=password)
        except (Invalid, Conflict, Throttled) as error:
            form.refuse(error)
        else:
            return redirect("conversation_new")
    return render(request, "accounts/signup.html", {"form": form}, status=_form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@person_required
def preferences(request: HttpRequest) -> HttpResponse:
    """Appearance, language, shortcuts, drafts, titles."""
    user = person(request)
    form = PreferencesForm(request.POST or None, initial=PreferencesForm.initial_of(user))
    if request.method == "POST" and form.is_valid():
        kept = user.preferences | form.preferences
        accounts.preferences_save(user=user, language=form.cleaned_data["language"], preferences=kept)
        messages.success(request, _("Saved."))
        return redirect("settings")
    return _settings_page(request, form, PasswordForm(user))


@sensitive_post_parameters()
@require_POST
@person_required
def password(request: HttpRequest) -> HttpResponse:
    """Another password. All other sessions of the person end, this one goes on."""
    user = person(request)
    form = PasswordForm(user, request.POST)
    if not form.is_valid():
        return _settings_page(request, PreferencesForm(initial=PreferencesForm.initial_of(user)), form)
    form.save()
    auth.update_session_auth_hash(request, user)
    messages.success(request, _("The password has been changed. Everywhere else you are logged out."))
    return redirect("settings")


def _settings_page(request: HttpRequest, form: PreferencesForm, password_form: PasswordForm) -> HttpResponse:
    is_refused = form.is_bound or password_form.is_bound
    context = {
        "form": form,
        "password_form": password_form,
        "theme": person(request).preferences.get("theme", "system"),
    }
    return render(request, "accounts/settings.html", context, status=Invalid.status if is_refused else 200)


def _target(request: HttpRequest) -> str:
    """Where to go after log-in: `next` if it lies on this server, else the chat."""
    wanted = request.POST.get("next", request.GET.get("next", ""))
    is_ours = url_has_allowed_host_and_scheme(
        wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return wanted if is_ours else resolve_url(settings.LOGIN_REDIRECT_URL)


def _form_status(form: AccountForm) -> int:
    return Invalid.status if form.is_bound else 200
