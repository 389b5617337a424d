"""Names, pins, the archive and deletion of conversations."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from chatapp import llm, selectors
from chatapp.errors import Invalid, NotFound
from chatapp.models import Conversation, Generation, Message, TitleSource, User
from chatapp.services import accounts, turns
from chatapp.services.conversations import (
    branch_select,
    conversation_archive,
    conversation_delete,
    conversation_pin,
    conversation_rename,
)
from tests.chatapp.rows import close, long_conversation, send, turn

pytestmark = pytest.mark.django_db


@pytest.fixture
def purged(monkeypatch: pytest.MonkeyPatch) -> list[uuid.UUID]:
    """Ids whose cached KV was purged."""
    found: list[uuid.UUID] = []
    monkeypatch.setattr(llm, "purge", found.append)
    return found


def test_title_of_a_person_is_on_one_line(alice: User) -> None:
    rows = turn(alice)
    conversation_rename(user=alice, conversation_id=rows.conversation.id, title="  My\n\u202e title\x1b[31m ")
    conversation = Conversation.objects.get()
    assert (conversation.title, conversation.title_source) == ("My title[31m", TitleSource.PERSON)


@pytest.mark.parametrize("title", ["", " \n", "\x00\x01", "x" * 201])
def test_title_that_is_none_is_refused(alice: User, title: str) -> None:
    rows = turn(alice, "Hello")
    with pytest.raises(Invalid):
        conversation_rename(user=alice, conversation_id=rows.conversation.id, title=title)
    assert Conversation.objects.get().title == "Hello"


def test_rename_and_pin_do_not_move_a_conversation_in_time(alice: User) -> None:
    before = turn(alice).conversation.updated_at
    conversation = Conversation.objects.get()
    conversation_rename(user=alice, conversation_id=conversation.id, title="Other")
    conversation_pin(user=alice, conversation_id=conversation.id, is_pinned=True)
    after = Conversation.objects.get()
    assert (after.updated_at, after.is_pinned) == (before, True)


def test_conversation_of_another_person_is_not_found(alice: User, bob: User, purged: list[uuid.UUID]) -> None:
    rows = turn(alice)
    key = {"user": bob, "conversation_id": rows.conversation.id}
    for change in (
        lambda: conversation_rename(title="Mine", **key),
        lambda: conversation_pin(is_pinned=True, **key),
        lambda: branch_select(message_id=rows.user_message.id, **key),
        lambda: conversation_delete(**key),
    ):
        with pytest.raises(NotFound):
            change()
    assert Conversation.objects.get().title == "Hello"
    assert purged == []


def test_what_is_archived_says_so_to_the_engine_and_leaves_the_list_until_it_goes_on(
    alice: User, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    told: list[tuple[str, uuid.UUID]] = []
    monkeypatch.setattr(llm, "archive", lambda conversation_id: told.append(("archive", conversation_id)))
    monkeypatch.setattr(llm, "protect", lambda conversation_id, seconds: told.append(("protect", conversation_id)))
    kept, away = turn(alice).conversation, turn(alice)
    conversation_id = away.conversation.id
    with django_capture_on_commit_callbacks(execute=True):
        conversation_archive(user=alice, conversation_id=conversation_id, is_archived=True)
        assert told == []
    assert [c.id for c in selectors.conversation_list(alice).conversations] == [kept.id]
    assert [c.id for c in selectors.conversation_list(alice, is_archived=True).conversations] == [conversation_id]
    with django_capture_on_commit_callbacks(execute=True):
        conversation_archive(user=alice, conversation_id=conversation_id, is_archived=False)
    assert told == [("archive", conversation_id), ("protect", conversation_id)]
    assert not selectors.conversation_list(alice, is_archived=True).conversations


@pytest.mark.parametrize("kind", ["send", "edit", "regenerate"])
def test_a_new_turn_takes_a_conversation_out_of_the_archive(alice: User, kind: str) -> None:
    made = turn(alice)
    conversation = made.conversation
    conversation_archive(user=alice, conversation_id=conversation.id, is_archived=True)
    ids: dict[str, Any] = {"user": alice, "conversation_id": conversation.id, "client_id": uuid.uuid4()}
    if kind == "send":
        turns.send_create(**ids, text="On we go", parent_id=made.assistant_message.id)
    elif kind == "edit":
        turns.edit_create(**ids, message_id=made.user_message.id, text="Otherwise")
    else:
        turns.regenerate_create(**ids, message_id=made.assistant_message.id)
    assert [c.id for c in selectors.conversation_list(alice).conversations] == [conversation.id]


def test_what_is_renamed_or_shown_stays_in_the_archive(alice: User) -> None:
    made = turn(alice)
    conversation_archive(user=alice, conversation_id=made.conversation.id, is_archived=True)
    conversation_rename(user=alice, conversation_id=made.conversation.id, title="Another")
    branch_select(user=alice, conversation_id=made.conversation.id, message_id=made.user_message.id)
    assert Conversation.objects.get().is_archived


def test_delete_removes_all_rows_and_purges_after_the_commit(
    alice: User, purged: list[uuid.UUID], django_capture_on_commit_callbacks: Any
) -> None:
    gone, kept = turn(alice), turn(alice)
    with django_capture_on_commit_callbacks(execute=True):
        conversation_delete(user=alice, conversation_id=gone.conversation.id)
        assert purged == []
    assert purged == [gone.conversation.id]
    assert Conversation.objects.get() == kept.conversation
    assert (Message.objects.count(), Generation.objects.count()) == (2, 1)


def test_delete_of_a_long_conversation_works(alice: User, purged: list[uuid.UUID]) -> None:
    conversation = long_conversation(alice, 2_000)
    conversation_delete(user=alice, conversation_id=conversation.id)
    assert not Message.objects.exists()


def test_turn_that_runs_in_a_deleted_conversation_saves_nothing(alice: User, purged: list[uuid.UUID]) -> None:
    rows = send(alice)
    conversation_delete(user=alice, conversation_id=rows.conversation.id)
    assert not turns.turn_save(message_id=rows.assistant_message.id, text="x", token_ids=[1], token_fingerprint="f")
    assert not close(rows)
    assert not Generation.objects.exists()


def test_deleting_an_account_purges_all_its_conversations(
    alice: User, bob: User, purged: list[uuid.UUID], django_capture_on_commit_callbacks: Any
) -> None:
    ids = {turn(alice).conversation.id for _ in range(3)}
    turn(bob)
    with django_capture_on_commit_callbacks(execute=True):
        accounts.user_delete(user=alice)
    assert set(purged) == ids
    assert Conversation.objects.get().owner == bob
