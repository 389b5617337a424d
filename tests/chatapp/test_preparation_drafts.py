"""What is being written is read before it is sent: as a guess that nothing depends on, and that leaves no trace."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from chatapp import model_catalogue
from chatapp.models import Conversation, Message, Preset, User
from chatapp.turn.preparation import preparation
from tests.chatapp import rows
from tests.chatapp.conftest import opened, send_frame, until
from tests.chatapp.fake_worker import FakeWorker
from tests.chatapp.test_preparation import settled, talk, watch

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = "A long message about lighthouses. " * 20


def draft(conversation_id: object, text: str | None = TEXT, **fields: Any) -> dict[str, Any]:
    return {"type": "draft.warm", "conversation": str(conversation_id), "text": text, **fields}


def after(made: rows.TurnRows, text: str) -> dict[str, Any]:
    ids = {"conversation": str(made.conversation.id), "parent": str(made.assistant_message.id)}
    return send_frame(text, is_new=False, **ids)


async def test_the_prompt_of_the_send_begins_with_the_draft(alice: User, worker: FakeWorker) -> None:
    made = await talk(alice)
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await settled(socket)
        await socket.send(draft(made.conversation.id))
        await settled(socket)
        history, prepared = worker.prefills
        await socket.ask(after(made, TEXT + "And one more sentence."))
        await until(lambda: len(worker.requests) == 1)
    asked = worker.requests[0].prompt_ids.tolist()
    ids = prepared.prompt_ids.tolist()
    assert asked[: len(ids)] == ids
    assert len(ids) > len(history.prompt_ids) + len(TEXT) - 10
    assert (prepared.is_low_retention, prepared.is_prefill_only) == (True, True)
    assert (prepared.salt, prepared.tags) == (history.salt, history.tags)


async def test_so_does_the_first_message_of_a_conversation(alice: User, worker: FakeWorker) -> None:
    await Preset.objects.acreate(name="Default", is_default=True, system_prompt="Be kind.")
    conversation_id = uuid.uuid4()
    async with opened(alice) as socket:
        await socket.send(draft(conversation_id, is_new=True))
        await settled(socket)
        assert await Conversation.objects.acount() == 0
        await socket.ask(send_frame(TEXT, conversation=str(conversation_id)))
        await until(lambda: len(worker.requests) == 1)
    (prepared,), asked = worker.prefills, worker.requests[0]
    ids = prepared.prompt_ids.tolist()
    assert asked.prompt_ids[: len(ids)].tolist() == ids
    assert len(ids) > len(TEXT)
    assert asked.num_public_tokens == prepared.num_public_tokens > 0
    assert (asked.salt, asked.tags) == (prepared.salt, prepared.tags)


async def test_a_draft_that_is_edited_takes_the_place_of_the_old_one(alice: User, worker: FakeWorker) -> None:
    worker.is_holding = True
    conversation_id = uuid.uuid4()
    async with opened(alice) as socket:
        await socket.send(draft(conversation_id, is_new=True))
        await until(lambda: len(worker.prefills) == 1)
        await socket.send(draft(conversation_id, "Quite another message. " * 10, is_new=True))
        await until(lambda: len(worker.prefills) == 2)
        assert list(worker._listeners) == [worker.prefills[1].request_id]
        await socket.send(draft(conversation_id, None, is_new=True))
        await until(lambda: not worker._listeners)
        await until(lambda: preparation.is_idle)


@pytest.mark.parametrize("is_new", [True, False])
async def test_leaving_cancels(alice: User, worker: FakeWorker, is_new: bool) -> None:
    made = await talk(alice)
    worker.is_holding = True
    conversation_id = uuid.uuid4() if is_new else made.conversation.id
    async with opened(alice) as socket:
        if not is_new:
            await socket.send(watch(made))
        await socket.send(draft(conversation_id, is_new=is_new))
        await until(lambda: any(request.is_low_retention for request in worker.prefills))
    await until(lambda: not worker._listeners)
    await until(lambda: preparation.is_idle)


async def test_the_send_takes_the_place_of_its_draft(alice: User, worker: FakeWorker) -> None:
    worker.is_holding = True
    conversation_id = uuid.uuid4()
    async with opened(alice) as socket:
        await socket.send(draft(conversation_id, is_new=True))
        await until(lambda: len(worker.prefills) == 1)
        await socket.ask(send_frame(TEXT, conversation=str(conversation_id)))
        await until(lambda: len(worker.requests) == 1)
        await until(lambda: list(worker._listeners) == [worker.requests[0].request_id])
        await socket.send(draft(conversation_id))  # while a reply is written there is nothing to do
        await settled(socket)
    assert len(worker.prefills) == 1


async def test_a_draft_leaves_no_trace(alice: User, worker: FakeWorker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = await talk(alice)
    before = [message async for message in Message.objects.order_by("id").values()]
    secret = "the secret harbour " * 20
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await socket.send(draft(made.conversation.id, secret))
        await settled(socket)
        await socket.send(draft(uuid.uuid4(), secret, is_new=True))
        await settled(socket)
    assert len(worker.prefills) == 3
    assert [message async for message in Message.objects.order_by("id").values()] == before
    assert await Conversation.objects.acount() == 1
    assert "harbour" not in caplog.text


async def test_too_many_drafts_are_not_read_and_cost_the_messages_nothing(alice: User, worker: FakeWorker) -> None:
    conversation_id = uuid.uuid4()
    text = "x" * 100_000
    async with opened(alice) as socket:
        for _ in range(10):  # half a megabyte is read along at once
            await socket.send(draft(conversation_id, text[:-1], is_new=True))
            await settled(socket)
        assert len(worker.prefills) <= 6
        assert (await socket.ask({"type": "ping"}))["type"] == "pong"


async def test_a_draft_for_a_preset_or_model_that_is_not_there_is_no_trouble(alice: User, worker: FakeWorker) -> None:
    await sync_to_async(model_catalogue.installed)()  # looks into the model once, as the page has done
    async with opened(alice) as socket:
        await socket.send(draft(uuid.uuid4(), is_new=True, preset=str(uuid.uuid4())))
        await socket.send(draft(uuid.uuid4(), is_new=True, model="no such model"))
        await settled(socket)
    assert worker.prefills == []


@pytest.mark.parametrize("has_recall", [True, False])
async def test_in_a_long_conversation_the_window_is_that_of_the_send(
    alice: User, worker: FakeWorker, has_recall: bool
) -> None:
    """Of 4,096 tokens a reply gets 512; past 85 % of the rest turns leave until 55 % are left."""
    made = await sync_to_async(rows.turn)(alice, "x" * 1500, "y" * 1500)
    await Conversation.objects.aupdate(has_recall=has_recall, context_policy="truncate")
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await settled(socket)
        await socket.send(draft(made.conversation.id))
        await settled(socket)
        history, *drafts = worker.prefills
        await socket.ask(after(made, TEXT))
        await until(lambda: len(worker.requests) == 1)
    asked = worker.requests[0].prompt_ids.tolist()
    assert len(history.prompt_ids) > 3000
    assert len(asked) < 1000  # the draft alone
    assert len(drafts) == (0 if has_recall else 1)  # else something recalled may come in front of it
    for prepared in drafts:
        assert asked[: len(prepared.prompt_ids)] == prepared.prompt_ids.tolist()
