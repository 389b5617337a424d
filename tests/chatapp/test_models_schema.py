"""What the schema itself refuses, whoever writes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from hypothesis import given
from hypothesis import strategies as st

from chatapp.models import Generation, Message, Preset, User, pack_ids, unpack_ids
from tests.chatapp.rows import send, turn

pytestmark = pytest.mark.django_db


@given(st.lists(st.integers(min_value=0, max_value=2**32 - 1)))
def test_token_ids_come_back_as_they_were(ids: list[int]) -> None:
    assert unpack_ids(pack_ids(ids)) == tuple(ids)
    assert unpack_ids(memoryview(pack_ids(ids))) == tuple(ids)


def test_token_ids_are_little_endian_u32() -> None:
    assert pack_ids([1, 0x01020304]) == b"\x01\x00\x00\x00\x04\x03\x02\x01"


def test_message_without_ids_has_none(alice: User) -> None:
    assert send(alice).assistant_message.ids is None


@pytest.mark.parametrize(
    "values",
    [
        {"role": "system"},
        {"status": "paused"},
        {"role": "user", "status": "failed", "client_id": None},
        {"position": 0},
        {"parent": None},
    ],
)
def test_reply_that_makes_no_sense_is_refused(alice: User, values: dict[str, Any]) -> None:
    reply = turn(alice).assistant_message
    with pytest.raises(IntegrityError), transaction.atomic():
        Message.objects.filter(id=reply.id).update(**values)


def test_message_is_not_its_own_parent(alice: User) -> None:
    reply = turn(alice).assistant_message
    with pytest.raises(IntegrityError), transaction.atomic():
        Message.objects.filter(id=reply.id).update(parent=reply)


def test_second_open_reply_in_a_conversation_is_refused(alice: User) -> None:
    first = turn(alice)
    second = turn(alice, conversation=first.conversation)
    Message.objects.filter(id=first.assistant_message.id).update(status="writing")
    with pytest.raises(IntegrityError), transaction.atomic():
        Message.objects.filter(id=second.assistant_message.id).update(status="queued")


def test_client_id_is_unique_in_a_conversation_only(alice: User) -> None:
    client_id = uuid.uuid4()
    first = turn(alice, client_id=client_id)
    turn(alice, client_id=client_id)
    with pytest.raises(IntegrityError), transaction.atomic():
        Message.objects.filter(id=first.assistant_message.id).update(client_id=client_id)


def test_prompt_tokens_add_up(alice: User) -> None:
    reply = turn(alice).assistant_message
    with pytest.raises(IntegrityError), transaction.atomic():
        Generation.objects.create(message=reply, model_name="x", num_prompt_tokens=3, num_computed=2)


def test_two_public_presets_of_one_name_are_refused(alice: User, bob: User) -> None:
    Preset.objects.create(name="Same")
    Preset.objects.create(name="Same", owner=alice)
    Preset.objects.create(name="Same", owner=bob)
    for owner in (None, alice):
        with pytest.raises(IntegrityError), transaction.atomic():
            Preset.objects.create(name="Same", owner=owner)


def test_one_default_preset_which_is_public(alice: User) -> None:
    Preset.objects.create(name="A", is_default=True)
    for values in ({"name": "B"}, {"name": "C", "owner": alice}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Preset.objects.create(is_default=True, **values)


def test_one_owner(alice: User, bob: User) -> None:
    User.objects.filter(pk=alice.pk).update(is_owner=True)
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.filter(pk=bob.pk).update(is_owner=True)
