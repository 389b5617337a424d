"""Every address of the product. tests/chatapp/test_views_ownership.py generates its matrix from this table."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path
from django.views.decorators.http import conditional_page
from django.views.i18n import JavaScriptCatalog

from chatapp.views import accounts, chat, conversations, engine, health, metrics, summaries

handler400 = "chatapp.views.errors.bad_request"
handler403 = "chatapp.views.errors.permission_denied"
handler404 = "chatapp.views.errors.page_not_found"
handler500 = "chatapp.views.errors.server_error"

urlpatterns = [
    path("", chat.conversation_new, name="conversation_new"),
    path("c/<uuid:conversation_id>/", chat.conversation_show, name="conversation"),
    path("c/<uuid:conversation_id>/messages/", chat.message_window, name="message_window"),
    path("c/<uuid:conversation_id>/messages/<uuid:message_id>/text/", chat.message_text, name="message_text"),
    path("c/<uuid:conversation_id>/summaries/<uuid:summary_id>/", summaries.show, name="summary"),
    path("c/<uuid:conversation_id>/summaries/<uuid:summary_id>/edit/", summaries.edit, name="summary_edit"),
    path("c/<uuid:conversation_id>/model/", conversations.model, name="conversation_model"),
    path("c/<uuid:conversation_id>/cold/", conversations.cold, name="conversation_cold"),
    path("c/<uuid:conversation_id>/window/", conversations.window, name="conversation_window"),
    path("c/<uuid:conversation_id>/branch/", conversations.branch, name="conversation_branch"),
    path("c/<uuid:conversation_id>/rename/", conversations.rename, name="conversation_rename"),
    path("c/<uuid:conversation_id>/pin/", conversations.pin, name="conversation_pin"),
    path("c/<uuid:conversation_id>/archive/", conversations.archive, name="conversation_archive"),
    path("c/<uuid:conversation_id>/delete/", conversations.delete, name="conversation_delete"),
    path("conversations/", conversations.index, name="conversations"),
    path("login/", accounts.login, name="login"),
    path("logout/", accounts.logout, name="logout"),
    path("signup/", accounts.signup, name="signup"),
    path("setup/", accounts.setup, name="setup"),
    path("settings/", accounts.preferences, name="settings"),
    path("settings/password/", accounts.password, name="password"),
    path("engine/", engine.show, name="engine"),
    path("healthz/live", health.live, name="health_live"),
    path("healthz/ready", health.ready, name="health_ready"),
    path("metrics", metrics.show, name="metrics"),
    path("jsi18n/", conditional_page(JavaScriptCatalog.as_view(packages=["chatapp"])), name="javascript_catalog"),
    path("admin/", admin.site.urls),
]
