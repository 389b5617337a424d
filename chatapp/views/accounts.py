"""Accounts: the owner's set-up on the first visit, log-in and log-out, sign-up, a person's own settings."""

from __future__ import annotations

from django.contrib.auth import views as auth_views
from django.http import HttpRequest, HttpResponse


class LoginView(auth_views.LoginView):
    template_name = "accounts/login.html"


class LogoutView(auth_views.LogoutView):
    pass


def setup(request: HttpRequest) -> HttpResponse:
    raise NotImplementedError


def signup(request: HttpRequest) -> HttpResponse:
    raise NotImplementedError


def preferences(request: HttpRequest) -> HttpResponse:
    raise NotImplementedError


def password(request: HttpRequest) -> HttpResponse:
    raise NotImplementedError
