"""Turns in the database: stored before anything is computed, once, and ended exactly once."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import IntegrityError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatapp import search
from chatapp.errors import Conflict, Invalid, NotFound
from chatapp.models import (
    Conversation,
    Generation,
    Message,
    MessageStatus,
    Preset,
    Role,
    ThinkingInHistory,
    TitleSource,
    User,
)
from chatapp.services import turns
from chatapp.text import is_blank
from chatapp.wire import MAX_MESSAGE_CHARS
from tests.chatapp.rows import NUMBERS, close, long_conversation, send, turn
from tests.examples import examples

pytestmark = pytest.mark.django_db

ENDS = [MessageStatus.DONE, MessageStatus.STOPPED, MessageStatus.INTERRUPTED, MessageStatus.FAILED]


# --- the first send ---------------------------------------------------------------------------------------------------


def test_first_send_makes_conversation_question_and_open_reply(alice: User) -> None:
    rows = send(alice, "What is a prefix cache?")
    conversation = Conversation.objects.get()
    assert (conversation.owner, conversation.title) == (alice, "What is a prefix cache?")
    assert conversation.title_source == TitleSource.FIRST_WORDS
    assert conversation.active_leaf_id == rows.assistant_message.id
    question, reply = Message.objects.order_by("position")
    assert (question.role, question.status, question.position) == (Role.USER, MessageStatus.DONE, 0)
    assert (reply.role, reply.status, reply.position) == (Role.ASSISTANT, MessageStatus.QUEUED, 1)
    assert reply.parent == question
    assert (rows.user_message, rows.assistant_message, rows.is_duplicate) == (question, reply, False)


def test_next_send_goes_below_the_reply(alice: User) -> None:
    first = turn(alice)
    second = send(alice, "And then?", conversation=first.conversation, parent_id=first.assistant_message.id)
    assert second.user_message.parent == first.assistant_message
    assert second.user_message.position == 2
    assert Conversation.objects.get().active_leaf == second.assistant_message


@pytest.mark.parametrize("text", ["", " ", "\n\t\u3000", "\u200b\ufeff\u2060"])
def test_empty_text_is_refused(alice: User, text: str) -> None:
    with pytest.raises(Invalid, match="empty"):
        send(alice, text)
    assert not Conversation.objects.exists()


def test_oversized_text_is_refused_with_its_numbers(alice: User) -> None:
    with pytest.raises(Invalid) as caught:
        send(alice, "x" * (MAX_MESSAGE_CHARS + 1))
    assert caught.value.detail == {"num_chars": MAX_MESSAGE_CHARS + 1, "max_chars": MAX_MESSAGE_CHARS}
    assert not Conversation.objects.exists()


def test_text_of_the_greatest_length_is_stored(alice: User) -> None:
    rows = send(alice, "缓" * MAX_MESSAGE_CHARS)
    assert len(Message.objects.get(id=rows.user_message.id).text) == MAX_MESSAGE_CHARS


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b", "\udfff"])
def test_text_that_no_database_holds_is_refused(alice: User, text: str) -> None:
    with pytest.raises(Invalid, match="cannot be stored"):
        send(alice, text)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(min_size=1, max_size=300))
def test_any_text_is_refused_or_stored_exactly(alice: User, text: str) -> None:
    try:
        rows = send(alice, text)
    except Invalid:
        assert is_blank(text) or "\x00" in text
    else:
        assert Message.objects.get(id=rows.user_message.id).text == text


def test_send_takes_as_many_queries_at_any_length(alice: User, django_assert_num_queries: Any) -> None:
    for num_messages in (10, 1248):
        conversation = long_conversation(alice, num_messages)
        with django_assert_num_queries(
            10, exact=False
        ):  # conversation, client id, parent, open one, 2 rows, words, leaf
            send(alice, conversation=conversation, parent_id=conversation.active_leaf_id)


# --- the same send again ----------------------------------------------------------------------------------------------


def test_same_send_twice_is_stored_once(alice: User) -> None:
    client_id, conversation_id = uuid.uuid4(), uuid.uuid4()
    first = send(alice, client_id=client_id, conversation_id=conversation_id)
    again = send(alice, client_id=client_id, conversation_id=conversation_id)
    assert again.is_duplicate
    assert (again.user_message, again.assistant_message) == (first.user_message, first.assistant_message)
    assert Message.objects.count() == 2


def test_same_send_after_a_regeneration_gives_the_first_reply(alice: User) -> None:
    client_id = uuid.uuid4()
    first = turn(alice, client_id=client_id)
    turns.regenerate_create(
        user=alice,
        conversation_id=first.conversation.id,
        message_id=first.assistant_message.id,
        client_id=uuid.uuid4(),
    )
    again = send(alice, client_id=client_id, conversation=first.conversation)
    assert again.assistant_message == first.assistant_message


def test_same_send_after_its_preset_was_deleted_gives_the_same_rows(alice: User) -> None:
    preset = Preset.objects.create(name="Short-lived", owner=alice)
    key = {"client_id": uuid.uuid4(), "conversation_id": uuid.uuid4(), "preset_id": preset.id}
    first = send(alice, **key)
    preset.delete()
    assert send(alice, **key).assistant_message == first.assistant_message


def test_same_client_id_for_another_text_is_a_conflict(alice: User) -> None:
    client_id = uuid.uuid4()
    rows = turn(alice, client_id=client_id)
    with pytest.raises(Conflict, match="client id"):
        send(alice, "Something else", client_id=client_id, conversation=rows.conversation)
    assert Message.objects.count() == 2


def test_same_regeneration_twice_is_stored_once(alice: User) -> None:
    rows = turn(alice)
    client_id = uuid.uuid4()
    key = {"user": alice, "conversation_id": rows.conversation.id, "message_id": rows.assistant_message.id}
    first = turns.regenerate_create(client_id=client_id, **key)
    again = turns.regenerate_create(client_id=client_id, **key)
    assert again.is_duplicate
    assert again.assistant_message == first.assistant_message


def test_client_id_of_a_send_is_a_conflict_for_a_regeneration(alice: User) -> None:
    client_id = uuid.uuid4()
    rows = turn(alice, client_id=client_id)
    with pytest.raises(Conflict):
        turns.regenerate_create(
            user=alice,
            conversation_id=rows.conversation.id,
            message_id=rows.assistant_message.id,
            client_id=client_id,
        )


# --- whose, and where -------------------------------------------------------------------------------------------------


def test_conversation_of_another_person_is_not_found(alice: User, bob: User) -> None:
    rows = turn(alice)
    with pytest.raises(NotFound):
        send(bob, conversation=rows.conversation)
    assert Message.objects.count() == 2


def test_new_conversation_under_the_id_of_another_persons_is_not_found(alice: User, bob: User) -> None:
    rows = turn(alice)
    with pytest.raises(NotFound):
        send(bob, conversation_id=rows.conversation.id, is_new=True)
    assert Conversation.objects.get().owner == alice


def test_unknown_conversation_is_not_found(alice: User) -> None:
    with pytest.raises(NotFound):
        send(alice, is_new=False)
    assert not Conversation.objects.exists()


def test_parent_in_another_conversation_is_not_found(alice: User) -> None:
    here, there = turn(alice), turn(alice)
    with pytest.raises(NotFound):
        send(alice, conversation=here.conversation, parent_id=there.assistant_message.id)


def test_parent_that_is_a_question_is_refused(alice: User) -> None:
    rows = turn(alice)
    with pytest.raises(Invalid):
        send(alice, conversation=rows.conversation, parent_id=rows.user_message.id)


def test_parent_that_does_not_exist_leaves_no_new_conversation_behind(alice: User) -> None:
    with pytest.raises(NotFound):
        send(alice, parent_id=uuid.uuid4())
    assert not Conversation.objects.exists()


def test_second_reply_is_refused_while_one_is_open(alice: User) -> None:
    rows = send(alice)
    key = {"user": alice, "conversation_id": rows.conversation.id}
    with pytest.raises(Conflict, match="still being written"):
        send(alice, conversation=rows.conversation)
    with pytest.raises(Conflict, match="still being written"):
        turns.edit_create(message_id=rows.user_message.id, client_id=uuid.uuid4(), text="Other", **key)
    with pytest.raises(Conflict, match="still being written"):
        turns.regenerate_create(message_id=rows.assistant_message.id, client_id=uuid.uuid4(), **key)
    with pytest.raises(Conflict, match="still being written"):
        turns.continue_open(message_id=rows.assistant_message.id, **key)
    assert Message.objects.count() == 2


# --- presets ----------------------------------------------------------------------------------------------------------


def test_preset_is_frozen_at_creation(alice: User) -> None:
    preset = Preset.objects.create(
        name="Pirate",
        system_prompt="Talk like a pirate.",
        sampling={"temperature": 0.1},
        thinking_in_history=ThinkingInHistory.STRIP,
        is_thinking_off=True,
    )
    rows = send(alice, preset_id=preset.id)
    preset.system_prompt = "Talk like a lawyer."
    preset.thinking_in_history = ThinkingInHistory.KEEP
    preset.is_thinking_off = False
    preset.save()
    conversation = Conversation.objects.get(id=rows.conversation.id)
    assert conversation.system_prompt == "Talk like a pirate."
    assert conversation.system_prompt_is_public
    assert conversation.sampling == {"temperature": 0.1}
    assert (conversation.thinking_in_history, conversation.is_thinking_off) == (ThinkingInHistory.STRIP, True)


def test_default_preset_is_taken_when_none_is_named(alice: User) -> None:
    Preset.objects.create(name="Plain", system_prompt="Be brief.", is_default=True)
    assert send(alice).conversation.system_prompt == "Be brief."


def test_own_preset_is_private(alice: User) -> None:
    preset = Preset.objects.create(name="Mine", owner=alice, system_prompt="My secret.")
    assert not send(alice, preset_id=preset.id).conversation.system_prompt_is_public


def test_preset_of_another_person_is_not_found(alice: User, bob: User) -> None:
    preset = Preset.objects.create(name="Mine", owner=alice)
    with pytest.raises(NotFound):
        send(bob, preset_id=preset.id)


# --- siblings ---------------------------------------------------------------------------------------------------------


def test_edit_makes_a_sibling_and_overwrites_nothing(alice: User) -> None:
    first = turn(alice, "Hello")
    edited = turns.edit_create(
        user=alice,
        conversation_id=first.conversation.id,
        message_id=first.user_message.id,
        client_id=uuid.uuid4(),
        text="Good day",
    )
    assert edited.user_message.parent is None
    assert edited.user_message.position == 0
    assert Message.objects.get(id=first.user_message.id).text == "Hello"
    assert Message.objects.get(id=first.assistant_message.id).text == "Hi!"
    assert Conversation.objects.get().active_leaf == edited.assistant_message


def test_edit_of_a_reply_is_refused(alice: User) -> None:
    rows = turn(alice)
    with pytest.raises(Invalid):
        turns.edit_create(
            user=alice,
            conversation_id=rows.conversation.id,
            message_id=rows.assistant_message.id,
            client_id=uuid.uuid4(),
            text="I never said that",
        )


def test_regeneration_makes_a_sibling_of_the_reply(alice: User) -> None:
    first = turn(alice)
    again = turns.regenerate_create(
        user=alice,
        conversation_id=first.conversation.id,
        message_id=first.assistant_message.id,
        client_id=uuid.uuid4(),
    )
    assert again.user_message == first.user_message
    assert again.assistant_message.parent == first.user_message
    assert Message.objects.get(id=first.assistant_message.id).text == "Hi!"


def test_regeneration_of_a_question_is_refused(alice: User) -> None:
    rows = turn(alice)
    with pytest.raises(Invalid):
        turns.regenerate_create(
            user=alice, conversation_id=rows.conversation.id, message_id=rows.user_message.id, client_id=uuid.uuid4()
        )


# --- continue ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [MessageStatus.STOPPED, MessageStatus.INTERRUPTED, MessageStatus.FAILED])
def test_unfinished_reply_is_opened_again_with_its_text(alice: User, status: MessageStatus) -> None:
    rows = send(alice)
    close(rows, "Once upon", status=status, error="gone" if status == MessageStatus.FAILED else "")
    again = turns.continue_open(user=alice, conversation_id=rows.conversation.id, message_id=rows.assistant_message.id)
    reply = Message.objects.get(id=rows.assistant_message.id)
    assert again.assistant_message == reply
    assert (reply.status, reply.text, reply.error, reply.ids) == (MessageStatus.QUEUED, "Once upon", "", (1, 2, 3))
    assert reply.finished_at is None


def test_reply_cut_by_length_can_be_continued(alice: User) -> None:
    rows = send(alice)
    close(rows, generation=turns.GenerationNumbers(model_name="tiny", finish_reason="length"))
    turns.continue_open(user=alice, conversation_id=rows.conversation.id, message_id=rows.assistant_message.id)


def test_complete_reply_cannot_be_continued(alice: User) -> None:
    rows = turn(alice)
    with pytest.raises(Conflict, match="complete"):
        turns.continue_open(user=alice, conversation_id=rows.conversation.id, message_id=rows.assistant_message.id)


def test_reply_that_was_answered_cannot_be_continued(alice: User) -> None:
    rows = send(alice)
    close(rows, status=MessageStatus.STOPPED)
    turn(alice, "Go on", conversation=rows.conversation, parent_id=rows.assistant_message.id)
    with pytest.raises(Conflict, match="gone on below"):
        turns.continue_open(user=alice, conversation_id=rows.conversation.id, message_id=rows.assistant_message.id)


# --- progress, saving, the end ----------------------------------------------------------------------------------------


def test_saved_text_and_ids_come_back(alice: User) -> None:
    rows = send(alice)
    ids = [0, 1, 2**32 - 1]
    assert turns.turn_progress(message_id=rows.assistant_message.id, status=MessageStatus.WRITING)
    assert turns.turn_save(message_id=rows.assistant_message.id, text="So far", token_ids=ids, token_fingerprint="abc")
    reply = Message.objects.get(id=rows.assistant_message.id)
    assert (reply.status, reply.text, reply.ids, reply.token_fingerprint) == ("writing", "So far", tuple(ids), "abc")


def test_nul_from_a_model_is_stored_as_a_replacement_and_keeps_its_ids(alice: User) -> None:
    rows = send(alice)
    close(rows, "a\x00b", token_ids=[7])
    reply = Message.objects.get(id=rows.assistant_message.id)
    assert (reply.text, reply.ids) == ("a\ufffdb", (7,))


@pytest.mark.parametrize("status", ENDS)
def test_only_the_first_close_counts(alice: User, status: MessageStatus) -> None:
    rows = send(alice)
    assert close(rows, "First", status=status)
    for other in ENDS:
        assert not close(rows, "Second", status=other)
    assert not turns.turn_save(message_id=rows.assistant_message.id, text="Late", token_ids=[9], token_fingerprint="x")
    assert not turns.turn_progress(message_id=rows.assistant_message.id, status=MessageStatus.WRITING)
    reply = Message.objects.get(id=rows.assistant_message.id)
    assert (reply.status, reply.text, reply.ids) == (status, "First", (1, 2, 3))
    assert reply.finished_at is not None
    assert Generation.objects.count() == 1


def test_close_stores_the_numbers(alice: User) -> None:
    rows = turn(alice)
    generation = Generation.objects.get(message=rows.assistant_message)
    assert (generation.num_prompt_tokens, generation.num_reused, generation.num_computed) == (30, 20, 10)


def test_close_whose_numbers_do_not_add_up_changes_nothing(alice: User) -> None:
    rows = send(alice)
    with pytest.raises(IntegrityError):
        close(rows, generation=turns.GenerationNumbers(model_name="tiny", num_prompt_tokens=3))
    assert Message.objects.get(id=rows.assistant_message.id).is_open


def test_close_without_tokens_stores_no_ids(alice: User) -> None:
    rows = send(alice)
    close(rows, "", token_ids=[], status=MessageStatus.FAILED, error="No model.", generation=None)
    reply = Message.objects.get(id=rows.assistant_message.id)
    assert (reply.ids, reply.token_fingerprint, reply.error) == (None, "", "No model.")


def test_recovery_interrupts_what_was_open_and_keeps_its_text(alice: User) -> None:
    done = turn(alice)
    crashed = send(alice)
    turns.turn_save(message_id=crashed.assistant_message.id, text="Part", token_ids=[5], token_fingerprint="f")
    assert turns.recover_interrupted() == 1
    found = Conversation.objects.filter(id__in=search.conversations_with(alice, "part"))
    assert list(found) == [crashed.conversation]
    reply = Message.objects.get(id=crashed.assistant_message.id)
    assert (reply.status, reply.text, reply.ids) == (MessageStatus.INTERRUPTED, "Part", (5,))
    assert Message.objects.get(id=done.assistant_message.id).status == MessageStatus.DONE
    assert turns.recover_interrupted() == 0


def test_numbers_have_the_columns_of_generation() -> None:
    columns = {field.attname for field in Generation._meta.fields}
    assert set(NUMBERS.__dataclass_fields__) == columns - {"id", "message_id", "created_at"}
