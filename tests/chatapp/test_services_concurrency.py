"""Writers side by side, in threads with a connection each: nothing is stored twice, nothing is locked out."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from chatapp import selectors
from chatapp.errors import Conflict, StorageUnavailable
from chatapp.models import ContextPolicy, Conversation, Generation, Message, MessageStatus, MessageVector, Summary, User
from chatapp.services import accounts, conversations, turns
from chatapp.services.conversations import conversation_delete
from chatapp.services.summaries import summary_create
from chatapp.services.turns import TurnRows
from chatapp.services.vectors import vectors_store
from tests.chatapp.rows import at_once, close, send, turn
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)


def test_fifty_copies_of_one_send_are_one_turn(alice: User) -> None:
    client_id, conversation_id = uuid.uuid4(), uuid.uuid4()
    results = at_once([lambda: send(alice, client_id=client_id, conversation_id=conversation_id)] * 50)
    rows = [result for result in results if isinstance(result, TurnRows)]
    assert len(rows) == 50, results
    assert sum(not row.is_duplicate for row in rows) == 1
    assert len({row.assistant_message.id for row in rows}) == 1
    assert (Conversation.objects.count(), Message.objects.count()) == (1, 2)


def test_of_ten_different_sends_at_once_one_opens_a_reply(alice: User) -> None:
    conversation = turn(alice).conversation
    results = at_once([lambda: send(alice, conversation=conversation)] * 10)
    assert sum(isinstance(result, TurnRows) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 9
    assert Message.objects.count() == 4


def test_of_ten_closes_at_once_one_wins(alice: User) -> None:
    rows = send(alice)
    results = at_once([lambda i=i: close(rows, f"Version {i}") for i in range(10)])
    assert sorted(results) == [False] * 9 + [True]
    assert Message.objects.get(id=rows.assistant_message.id).text == f"Version {results.index(True)}"
    assert Generation.objects.count() == 1


def test_twenty_writers_are_never_locked_out(alice: User) -> None:
    def write() -> int:
        rows = send(alice)
        message_id = rows.assistant_message.id
        for num_tokens in range(1, 6):
            turns.turn_save(
                message_id=message_id, text="x" * num_tokens, token_ids=[1] * num_tokens, token_fingerprint="f"
            )
        assert close(rows)
        return 1

    results = at_once([write] * 20)
    assert results == [1] * 20
    assert Message.objects.filter(status=MessageStatus.DONE).count() == 40


def test_a_delete_beside_a_close_leaves_nothing_behind(alice: User) -> None:
    for _ in range(5):
        rows = send(alice)
        deleted, closed = at_once(
            [
                lambda rows=rows: conversation_delete(user=alice, conversation_id=rows.conversation.id),
                lambda rows=rows: close(rows),
            ]
        )
        assert deleted is None, deleted
        assert closed in (True, False)
    assert (Conversation.objects.count(), Message.objects.count(), Generation.objects.count()) == (0, 0, 0)


@pytest.mark.parametrize("kind", [Summary, MessageVector])
def test_a_delete_waits_for_what_is_being_stored_there(kind: type[Summary | MessageVector], alice: User) -> None:
    """It would miss that row, and fail for it at its end."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    rows = turn(alice)
    name = rows.assistant_message.id
    is_stored = threading.Event()

    def hold(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if sql.startswith("INSERT"):
            is_stored.set()
            _until_somebody_waits()
        return result

    def store() -> None:
        with connection.execute_wrapper(hold):
            if kind is Summary:
                summary_create(until_id=name, text="A cat.", model_name="m")
            else:
                vectors_store(encoder="e", vectors={name: b"00"})

    def delete() -> None:
        assert is_stored.wait(10)
        conversation_delete(user=alice, conversation_id=rows.conversation.id)

    assert at_once([store, delete]) == [None, None]
    assert (Conversation.objects.count(), Message.objects.count(), kind.objects.count()) == (0, 0, 0)  # type: ignore[attr-defined]


def _until_somebody_waits() -> None:
    """For a lock, in the database of this connection."""
    deadline = time.monotonic() + 10
    num_waiting = 0
    with connection.cursor() as cursor:
        while not num_waiting and time.monotonic() < deadline:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            (num_waiting,) = cursor.fetchone()
    assert num_waiting


CHANGES: dict[str, Callable[[User, Message], object]] = {
    "rename": lambda user, leaf: conversations.conversation_rename(
        user=user, conversation_id=leaf.conversation_id, title="Boats"
    ),
    "pin": lambda user, leaf: conversations.conversation_pin(
        user=user, conversation_id=leaf.conversation_id, is_pinned=True
    ),
    "archive": lambda user, leaf: conversations.conversation_archive(
        user=user, conversation_id=leaf.conversation_id, is_archived=True
    ),
    "window": lambda user, leaf: conversations.conversation_set_window(
        user=user,
        conversation_id=leaf.conversation_id,
        policy=ContextPolicy.RECENT,
        recent_tokens=500,
        has_recall=True,
    ),
    "branch": lambda user, leaf: conversations.branch_select(
        user=user, conversation_id=leaf.conversation_id, message_id=leaf.id
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_delete_waits_for_a_change(
    change: Callable[[User, Message], object], alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would leave nothing to save into, which a person was told as trouble with the database."""
    leaf = turn(alice).assistant_message
    delete = threading.Thread(
        target=at_once, args=([lambda: conversation_delete(user=alice, conversation_id=leaf.conversation_id)],)
    )
    read = selectors.conversation_get

    def read_and_let_delete(*args: Any, **kwargs: Any) -> Conversation:
        monkeypatch.setattr(selectors, "conversation_get", read)
        row = read(*args, **kwargs)
        delete.start()
        delete.join(0.5)
        return row

    monkeypatch.setattr(selectors, "conversation_get", read_and_let_delete)
    change(alice, leaf)
    delete.join(PATIENCE_S)
    assert not Conversation.objects.exists()


def test_of_ten_first_visitors_at_once_one_becomes_the_owner() -> None:
    results = at_once(
        [lambda i=i: accounts.owner_create(username=f"visitor{i}", password="horse battery") for i in range(10)]
    )
    assert sum(isinstance(result, User) for result in results) == 1
    assert not any(isinstance(result, StorageUnavailable) for result in results)
    assert User.objects.get().is_owner
