"""Names, pins and deletion of conversations."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from chatapp import llm
from chatapp.errors import Invalid, NotFound
from chatapp.models import Conversation, Generation, Message, TitleSource, User
from chatapp.services import accounts, turns
from chatapp.services.conversations import branch_select, conversation_delete, conversation_pin, conversation_rename
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
