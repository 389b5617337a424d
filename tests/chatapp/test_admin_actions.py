"""What may be changed in the admin, and what that does."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from chatapp import llm
from chatapp.models import Conversation, Generation, Message, Preset, TitleSource, User
from tests.chatapp.rows import send, turn

pytestmark = pytest.mark.django_db


@pytest.fixture
def purged(monkeypatch: pytest.MonkeyPatch) -> list[uuid.UUID]:
    """Ids whose cached KV was purged."""
    found: list[uuid.UUID] = []
    monkeypatch.setattr(llm, "purge", found.append)
    return found


def _url(name: str, *args: Any) -> str:
    return reverse(f"admin:chatapp_{name}", args=args)


def test_deleting_a_conversation_purges_its_cache(
    staff: Client, alice: User, purged: list[uuid.UUID], django_capture_on_commit_callbacks: Any
) -> None:
    rows = turn(alice)
    page = staff.get(_url("conversation_delete", rows.conversation.pk)).content.decode()
    assert "Hello" in page
    with django_capture_on_commit_callbacks(execute=True):
        staff.post(_url("conversation_delete", rows.conversation.pk), {"post": "yes"})
    assert purged == [rows.conversation.pk]
    assert not Message.objects.exists()


def test_deleting_selected_conversations_purges_each(
    staff: Client, alice: User, bob: User, purged: list[uuid.UUID], django_capture_on_commit_callbacks: Any
) -> None:
    ids = [turn(alice).conversation.pk, turn(bob).conversation.pk]
    turn(bob)
    values = {"action": "delete_selected", "_selected_action": ids, "post": "yes"}
    with django_capture_on_commit_callbacks(execute=True):
        staff.post(_url("conversation_changelist"), values)
    assert sorted(purged) == sorted(ids)
    assert Conversation.objects.count() == 1


def test_deleting_an_account_purges_its_conversations(
    staff: Client, alice: User, purged: list[uuid.UUID], django_capture_on_commit_callbacks: Any
) -> None:
    rows = turn(alice)
    with django_capture_on_commit_callbacks(execute=True):
        staff.post(_url("user_delete", alice.pk), {"post": "yes"})
    assert purged == [rows.conversation.pk]
    assert not User.objects.filter(pk=alice.pk).exists()


def test_owner_cannot_be_deleted(staff: Client, owner: User, alice: User) -> None:
    assert staff.post(_url("user_delete", owner.pk), {"post": "yes"}).status_code == 403
    values = {"action": "delete_selected", "_selected_action": [owner.pk, alice.pk], "post": "yes"}
    staff.post(_url("user_changelist"), values)
    assert User.objects.count() == 2


@pytest.mark.parametrize("action", ["change", "delete"])
def test_messages_and_generations_cannot_be_changed(staff: Client, alice: User, action: str) -> None:
    rows = turn(alice, "Hello")
    generation = Generation.objects.get()
    values = {"text": "Forged", "num_prompt_tokens": 1, "post": "yes"}
    assert staff.post(_url(f"message_{action}", rows.user_message.pk), values).status_code == 403
    assert staff.post(_url(f"generation_{action}", generation.pk), values).status_code == 403
    assert staff.get(_url("message_add")).status_code == 403
    assert Message.objects.get(pk=rows.user_message.pk).text == "Hello"


# What a page says of the rows below a conversation, all of which are only shown.
NO_ROWS = {f"{rows}-{forms}_FORMS": "0" for rows in ("messages", "summaries") for forms in ("TOTAL", "INITIAL")}


def test_saving_a_conversation_changes_title_and_pin_and_nothing_that_a_turn_wrote_meanwhile(
    staff: Client, alice: User
) -> None:
    first = turn(alice)
    page = _url("conversation_change", first.conversation.pk)
    assert staff.get(page).status_code == 200
    second = send(alice, conversation=first.conversation, parent_id=first.assistant_message.id)
    values = {
        "title": "Named",
        "is_pinned": "on",
        "system_prompt": "Forged",
    } | NO_ROWS
    assert staff.post(page, values).status_code == 302
    conversation = Conversation.objects.get()
    assert (conversation.title, conversation.title_source, conversation.is_pinned) == (
        "Named",
        TitleSource.PERSON,
        True,
    )
    assert conversation.system_prompt == ""
    assert conversation.active_leaf == second.assistant_message


def test_archiving_a_conversation_is_told_to_the_engine(
    staff: Client, alice: User, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(llm, "archive", told.append)
    conversation = turn(alice).conversation
    values = {"title": "Away", "is_archived": "on"} | NO_ROWS
    with django_capture_on_commit_callbacks(execute=True):
        assert staff.post(_url("conversation_change", conversation.pk), values).status_code == 302
    assert Conversation.objects.get().is_archived
    assert told == [conversation.pk]


@pytest.mark.parametrize(
    ("sampling", "problem"),
    [
        ('{"temperature": 99}', "temperature is 99"),
        ('{"heat": 1}', "no sampling value named &#x27;heat&#x27;; legal are temperature, top_k"),
        ("[1]", "must be an object"),
        ('{"temperature": "x"}', "cannot be used"),
    ],
)
def test_preset_with_sampling_that_the_engine_would_refuse_is_refused(
    staff: Client, sampling: str, problem: str
) -> None:
    values = {"name": "Bad", "sampling": sampling, "context_policy": "full"}
    answer = staff.post(_url("preset_add"), values)
    assert problem in answer.content.decode()
    assert not Preset.objects.exists()


def test_preset_is_made(staff: Client) -> None:
    values = {"name": "Cool", "sampling": '{"temperature": 0.2, "stop": ["END"]}', "context_policy": "full"}
    values |= {"recent_tokens": "0", "thinking_in_history": "keep", "is_thinking_off": "on"}
    assert staff.post(_url("preset_add"), values).status_code == 302
    preset = Preset.objects.get()
    assert preset.sampling == {"temperature": 0.2, "stop": ["END"]}
    assert (preset.thinking_in_history, preset.is_thinking_off) == ("keep", True)


def test_second_default_preset_is_refused_with_a_sentence(staff: Client) -> None:
    Preset.objects.create(name="First", is_default=True)
    values = {"name": "Second", "sampling": "{}", "context_policy": "full", "is_default": "on"}
    assert "There is a default preset already." in staff.post(_url("preset_add"), values).content.decode()


def test_account_is_made(staff: Client) -> None:
    values = {
        "username": "carol",
        "usable_password": "true",
        "password1": "correct horse battery",
        "password2": "correct horse battery",
    }
    assert staff.post(_url("user_add"), values).status_code == 302
    assert User.objects.get(username="carol").check_password("correct horse battery")


def test_staff_without_all_rights_cannot_give_them_to_themselves(alice: User, client: Client) -> None:
    alice.is_staff = True
    alice.save()
    alice.user_permissions.set(Permission.objects.filter(codename__in=["view_user", "change_user"]))
    client.force_login(alice)
    page = _url("user_change", alice.pk)
    assert client.get(page).status_code == 200
    assert (
        client.post(page, {"username": "alice", "is_active": "on", "is_staff": "on", "is_superuser": "on"}).status_code
        == 302
    )
    assert not User.objects.get(pk=alice.pk).is_superuser


def test_staff_without_all_rights_cannot_take_over_a_superuser(owner: User, bob: User, client: Client) -> None:
    bob.is_staff = True
    bob.save()
    bob.user_permissions.set(Permission.objects.filter(codename__in=["view_user", "change_user", "delete_user"]))
    client.force_login(bob)
    values = {"password1": "battery horse correct", "password2": "battery horse correct", "usable_password": "true"}
    assert client.post(reverse("admin:auth_user_password_change", args=[owner.pk]), values).status_code == 403
    assert client.post(_url("user_change", owner.pk), {"username": "stolen"}).status_code == 403
    other = User.objects.create_superuser("root")
    client.post(_url("user_changelist"), {"action": "delete_selected", "_selected_action": [other.pk], "post": "yes"})
    assert User.objects.filter(pk=other.pk).exists()
    assert User.objects.get(pk=owner.pk).check_password("correct horse battery")


def test_staff_sees_in_the_sidebar_what_they_may_view(alice: User, client: Client) -> None:
    alice.is_staff = True
    alice.save()
    alice.user_permissions.set(Permission.objects.filter(codename="view_preset"))
    client.force_login(alice)
    page = client.get(reverse("admin:index")).content.decode()
    assert _url("preset_changelist") in page
    assert _url("user_changelist") not in page
    assert client.get(_url("message_changelist")).status_code == 403
