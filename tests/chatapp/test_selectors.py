"""Reads: ownership, the list in pages, the active path in windows, and how many queries each takes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from chatapp import selectors
from chatapp.errors import Invalid, NotFound
from chatapp.models import Conversation, Generation, Message, Preset, User
from chatapp.services import turns
from chatapp.services.conversations import branch_select, conversation_pin
from tests.chatapp.rows import close, long_conversation, many_conversations, turn

pytestmark = pytest.mark.django_db


def _regenerate(user: User, rows: turns.TurnRows, text: str = "Again") -> turns.TurnRows:
    again = turns.regenerate_create(
        user=user,
        conversation_id=rows.conversation.id,
        message_id=rows.assistant_message.id,
        client_id=uuid.uuid4(),
    )
    close(again, text)
    return again


# --- ownership --------------------------------------------------------------------------------------------------------


def test_rows_of_another_person_are_not_found(alice: User, bob: User) -> None:
    rows = turn(alice)
    conversation_id, message_id = rows.conversation.id, rows.assistant_message.id
    assert selectors.conversation_get(alice, conversation_id) == rows.conversation
    assert selectors.message_get(alice, conversation_id, message_id) == rows.assistant_message
    for read in (
        lambda: selectors.conversation_get(bob, conversation_id),
        lambda: selectors.message_get(bob, conversation_id, message_id),
        lambda: selectors.transcript(bob, conversation_id),
        lambda: selectors.transcript(alice, conversation_id, before=uuid.uuid4()),
        lambda: selectors.conversation_get(alice, uuid.uuid4()),
    ):
        with pytest.raises(NotFound):
            read()


def test_message_is_found_in_its_own_conversation_only(alice: User) -> None:
    here, there = turn(alice), turn(alice)
    with pytest.raises(NotFound):
        selectors.message_get(alice, here.conversation.id, there.assistant_message.id)


# --- the list ---------------------------------------------------------------------------------------------------------


def _pages(user: User, **changes: Any) -> list[list[Conversation]]:
    pages, cursor = [], ""
    while True:
        page = selectors.conversation_list(user, cursor=cursor, **changes)
        pages.append(page.conversations)
        cursor = page.next_cursor
        if not cursor:
            return pages


def test_list_is_pinned_first_then_newest_and_complete_over_pages(alice: User, bob: User) -> None:
    made = many_conversations(alice, 23)
    many_conversations(bob, 3)
    for pinned in (made[4], made[20]):
        conversation_pin(user=alice, conversation_id=pinned.id, is_pinned=True)
    pages = _pages(alice, limit=5)
    assert [len(page) for page in pages] == [5, 5, 5, 5, 3]
    rest = [conversation for conversation in made if conversation not in (made[4], made[20])]
    assert [c for page in pages for c in page] == [made[4], made[20], *rest]


def test_list_with_equal_times_loses_and_repeats_nothing(alice: User) -> None:
    made = many_conversations(alice, 12)
    Conversation.objects.update(updated_at=made[0].updated_at)
    found = [c.id for page in _pages(alice, limit=5) for c in page]
    assert sorted(found) == sorted(c.id for c in made)


def test_list_page_that_ends_the_list_has_no_cursor(alice: User) -> None:
    many_conversations(alice, 5)
    assert selectors.conversation_list(alice, limit=5).next_cursor == ""


def test_list_is_one_query_and_reads_no_texts(alice: User, django_assert_num_queries: Any) -> None:
    many_conversations(alice, 60)
    with django_assert_num_queries(1) as captured:
        page = selectors.conversation_list(alice, limit=50)
        assert [c.title for c in page.conversations][:2] == ["Title 0", "Title 1"]
    assert "system_prompt" not in captured[0]["sql"]


def test_list_finds_words_inside_titles(alice: User) -> None:
    turn(alice, "前缀缓存的问题")
    turn(alice, "Something ELSE")
    assert [c.title for c in selectors.conversation_list(alice, query="缓存").conversations] == ["前缀缓存的问题"]
    assert [c.title for c in selectors.conversation_list(alice, query=" else ").conversations] == ["Something ELSE"]


@pytest.mark.parametrize("query", ["100%", "_", "\x00", "\ud800", "'; DROP TABLE chatapp_user; --"])
def test_list_takes_any_text_as_a_query(alice: User, query: str) -> None:
    turn(alice, "Hello")
    assert selectors.conversation_list(alice, query=query).conversations == []


@pytest.mark.parametrize("cursor", ["x", "1.2", "1.2.3", "1.x.0", "1." + "9" * 40 + "." + "0" * 32, "1.2.3.4"])
def test_list_refuses_a_broken_cursor(alice: User, cursor: str) -> None:
    with pytest.raises(Invalid):
        selectors.conversation_list(alice, cursor=cursor)


# --- presets ----------------------------------------------------------------------------------------------------------


def test_preset_is_a_public_one_or_an_own_one(alice: User, bob: User) -> None:
    own = Preset.objects.create(name="Mine", owner=alice)
    other = Preset.objects.create(name="Bob's", owner=bob)
    public = Preset.objects.create(name="Public")
    assert selectors.preset_get(alice, None) is None
    default = Preset.objects.create(name="Zero", is_default=True)
    assert [selectors.preset_get(alice, id_) for id_ in (own.id, public.id, None)] == [own, public, default]
    with pytest.raises(NotFound):
        selectors.preset_get(alice, other.id)


# --- the active path --------------------------------------------------------------------------------------------------


def test_transcript_is_the_active_path_with_versions_and_numbers(alice: User) -> None:
    first = turn(alice, "One", "First")
    again = _regenerate(alice, first, "Second")
    turn(alice, "Two", "Third", conversation=first.conversation, parent_id=again.assistant_message.id)
    shown = selectors.transcript(alice, first.conversation.id).messages
    assert [item.message.text for item in shown] == ["One", "Second", "Two", "Third"]
    assert [(item.version, len(item.sibling_ids)) for item in shown] == [(1, 1), (2, 2), (1, 1), (1, 1)]
    assert shown[1].previous_id == first.assistant_message.id
    assert shown[1].next_id is None
    assert [item.generation is not None for item in shown] == [False, True, False, True]


def test_transcript_shows_versions_of_the_first_message(alice: User) -> None:
    rows = turn(alice, "One")
    turns.edit_create(
        user=alice,
        conversation_id=rows.conversation.id,
        message_id=rows.user_message.id,
        client_id=uuid.uuid4(),
        text="Other",
    )
    shown = selectors.transcript(alice, rows.conversation.id).messages
    assert (shown[0].message.text, shown[0].version, shown[0].previous_id) == ("Other", 2, rows.user_message.id)


def test_transcript_shows_the_newest_generation(alice: User) -> None:
    rows = turn(alice)
    newer = Generation.objects.create(message=rows.assistant_message, model_name="newer")
    assert selectors.transcript(alice, rows.conversation.id).messages[1].generation == newer


def test_transcript_of_an_empty_conversation_is_empty(alice: User) -> None:
    conversation = many_conversations(alice, 1)[0]
    assert selectors.transcript(alice, conversation.id) == selectors.Transcript([], None)


def test_branch_select_shows_the_other_branch_down_to_its_newest_leaf(alice: User) -> None:
    first = turn(alice, "One", "First")
    below = turn(alice, "Two", "Below first", conversation=first.conversation, parent_id=first.assistant_message.id)
    _regenerate(alice, first, "Second")
    branch_select(user=alice, conversation_id=first.conversation.id, message_id=first.assistant_message.id)
    assert Conversation.objects.get().active_leaf == below.assistant_message
    shown = selectors.transcript(alice, first.conversation.id).messages
    assert [item.message.text for item in shown] == ["One", "First", "Two", "Below first"]


@pytest.mark.parametrize("num_messages", [10, 1248])
def test_transcript_windows_cover_the_path_in_as_many_queries_at_any_length(
    alice: User, num_messages: int, django_assert_num_queries: Any
) -> None:
    conversation = long_conversation(alice, num_messages)
    with django_assert_num_queries(4):  # conversation, path, siblings, generations
        window = selectors.transcript(alice, conversation.id, limit=8)
        assert [item.message.text for item in window.messages]
    positions = [item.message.position for item in window.messages]
    while window.older_cursor:
        with django_assert_num_queries(5):  # and the message of the cursor
            window = selectors.transcript(alice, conversation.id, before=window.older_cursor, limit=200)
        positions = [item.message.position for item in window.messages] + positions
    assert positions == list(range(num_messages))


def test_history_is_one_query_at_1248_messages(alice: User, django_assert_num_queries: Any) -> None:
    conversation = long_conversation(alice, 1248)
    leaf = Message.objects.get(conversation=conversation, position=1247)
    with django_assert_num_queries(1):
        path = selectors.history(conversation, leaf)
        assert [(m.role, m.text[:8], m.ids, m.token_fingerprint) for m in path[:1]]
    assert [message.position for message in path] == list(range(1248))


def test_history_holds_the_branch_of_its_leaf_only(alice: User) -> None:
    first = turn(alice, "One", "First")
    _regenerate(alice, first, "Second")
    path = selectors.history(first.conversation, first.assistant_message)
    assert [message.text for message in path] == ["One", "First"]


def test_rows_that_form_a_ring_do_not_keep_a_path_going(alice: User) -> None:
    rows = turn(alice)
    Message.objects.filter(id=rows.user_message.id).update(parent=rows.assistant_message, position=1)
    assert len(selectors.history(rows.conversation, rows.assistant_message)) <= 2
