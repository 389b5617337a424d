"""Opening a conversation computes what its next prompt begins with: for whoever stays, once, in nobody's way."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from chatapp import hints, llm
from chatapp.models import ContextPolicy, Conversation, Message, MessageStatus, User
from chatapp.services import conversations, summaries
from chatapp.turn import ahead, attention, run
from chatapp.turn import preparation as room
from chatapp.turn.live import live
from chatapp.turn.preparation import preparation
from tests.chatapp import rows
from tests.chatapp.conftest import Socket, opened, send_frame, until
from tests.chatapp.fake_worker import FakeWorker

pytestmark = pytest.mark.django_db(transaction=True)

Rows = rows.TurnRows


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PAUSE_S", 0.01)


@pytest.fixture
def histories(monkeypatch: pytest.MonkeyPatch) -> list[uuid.UUID]:
    """The conversations whose history has been read: the one large query."""
    read: list[uuid.UUID] = []
    original = ahead.read

    def noted(conversation: Conversation) -> Any:
        read.append(conversation.id)
        return original(conversation)

    monkeypatch.setattr(ahead, "read", noted)
    return read


def watch(made: Rows) -> dict[str, str]:
    return {"type": "watch", "conversation": str(made.conversation.id)}


def unwatch(made: Rows) -> dict[str, str]:
    return {"type": "unwatch", "conversation": str(made.conversation.id)}


async def talk(user: User, text: str = "Hello") -> Rows:
    return await sync_to_async(rows.turn)(user, text, "Hi! " * 10)


async def settled(socket: Socket) -> None:
    """All that was asked for has been done."""
    assert (await socket.ask({"type": "ping"}))["type"] == "pong"
    await until(lambda: preparation.is_idle)


async def hint(user: User, made: Rows) -> None:
    await hints.aconversation_changed(user.pk, made.conversation.id)


async def test_opening_computes_what_the_next_prompt_begins_with(alice: User, worker: FakeWorker) -> None:
    made = await talk(alice)
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await settled(socket)
        (prepared,) = worker.prefills
        frame = {"is_new": False, "conversation": str(made.conversation.id), "parent": str(made.assistant_message.id)}
        await socket.ask(send_frame("And now?", **frame))
        await until(lambda: len(worker.requests) == 1)
    asked = worker.requests[0]
    assert len(prepared.prompt_ids) > 30
    assert asked.prompt_ids[: len(prepared.prompt_ids)].tolist() == prepared.prompt_ids.tolist()
    assert (asked.salt, asked.tags, asked.num_public_tokens) == (
        prepared.salt,
        prepared.tags,
        prepared.num_public_tokens,
    )
    assert (prepared.is_prefill_only, prepared.is_low_retention) == (True, False)


async def test_a_tab_is_told_how_far_it_is(alice: User, worker: FakeWorker) -> None:
    worker.is_holding = True
    made = await talk(alice)
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await until(lambda: len(worker.prefills) == 1)
        worker.read(10, 30, worker.prefills[0].request_id)
        frame = await socket.next("prepared")
        assert frame == {
            "type": "prepared",
            "conversation": str(made.conversation.id),
            "done": 10,
            "total": 30,
            "is_draft": False,
        }


async def test_leafing_through_thirty_conversations_reads_the_last_one_only(
    alice: User, worker: FakeWorker, histories: list[uuid.UUID]
) -> None:
    made = [await talk(alice) for _ in range(30)]
    async with opened(alice) as socket:
        for each in made[:-1]:
            await socket.send(watch(each))
            await socket.send(unwatch(each))
        await socket.send(watch(made[-1]))
        await settled(socket)
    assert histories == [made[-1].conversation.id]
    assert len(worker.prefills) == 1


async def test_thirty_tabs_at_once_are_a_few_jobs(alice: User, worker: FakeWorker, histories: list[uuid.UUID]) -> None:
    worker.is_holding = True
    made = [await talk(alice) for _ in range(30)]
    async with opened(alice) as socket:
        for each in made:
            await socket.send(watch(each))
        assert (await socket.ask({"type": "ping"}))["type"] == "pong"
        await until(lambda: len(worker.prefills) == 2)
        assert len(histories) == 2  # nobody reads rows for what only waits
        assert preparation._spare_time.num_waiting <= 6


@pytest.mark.parametrize("how", ["unwatch", "close", "logout"])
async def test_leaving_cancels(alice: User, worker: FakeWorker, how: str) -> None:
    worker.is_holding = True
    made = await talk(alice)
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await until(lambda: len(worker.prefills) == 1)
        if how == "unwatch":
            await socket.send(unwatch(made))
        elif how == "close":
            await socket.close()
        else:
            await sync_to_async(User.objects.filter(id=alice.id).update)(is_active=False)
            await sync_to_async(hints.account_changed)(alice.pk)
        await until(lambda: not worker._listeners)
        await until(lambda: preparation.is_idle)


async def test_two_tabs_are_prepared_for_once_and_the_last_one_that_leaves_cancels(
    alice: User, worker: FakeWorker
) -> None:
    worker.is_holding = True
    made = await talk(alice)
    async with opened(alice) as one, opened(alice) as two:
        for socket in (one, two):
            await socket.send(watch(made))
        await until(lambda: len(worker.prefills) == 1)
        await one.send(unwatch(made))
        assert (await one.ask({"type": "ping"}))["type"] == "pong"
        assert len(worker._listeners) == 1
        await two.send(unwatch(made))
        await until(lambda: not worker._listeners)
    assert len(worker.prefills) == 1


async def test_a_turn_takes_the_place_of_what_was_being_prepared(alice: User, worker: FakeWorker) -> None:
    worker.is_holding = True
    made = await talk(alice)
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await until(lambda: len(worker.prefills) == 1)
        frame = {"is_new": False, "conversation": str(made.conversation.id), "parent": str(made.assistant_message.id)}
        await socket.ask(send_frame("And now?", **frame))
        await until(lambda: len(worker.requests) == 1)
        await until(lambda: list(worker._listeners) == [worker.requests[0].request_id])
        await hint(alice, made)  # while it runs there is nothing to prepare
        worker.write("So.")
        worker.finish()
        await socket.next("turn.end")
        await hint(alice, made)  # and after it all of it is there
        await settled(socket)
    assert len(worker.prefills) == 1


async def test_another_branch_or_model_is_prepared_for_and_another_title_is_not(
    alice: User, worker: FakeWorker
) -> None:
    made = await talk(alice)
    first = made.assistant_message.id
    frame = await sync_to_async(rows.turns.regenerate_create)(
        user=alice, conversation_id=made.conversation.id, message_id=first, client_id=uuid.uuid4()
    )
    assert await sync_to_async(rows.close)(frame, "Another answer")
    conversation_id = made.conversation.id
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await settled(socket)
        await sync_to_async(conversations.conversation_rename)(
            user=alice, conversation_id=conversation_id, title="Another title"
        )
        await hint(alice, made)
        await settled(socket)
        assert len(worker.prefills) == 1
        await sync_to_async(conversations.branch_select)(user=alice, conversation_id=conversation_id, message_id=first)
        await hint(alice, made)
        await until(lambda: len(worker.prefills) == 2)
        await settled(socket)
        await Conversation.objects.filter(id=conversation_id).aupdate(model_name="other")
        await hint(alice, made)
        await until(lambda: len(worker.prefills) == 3)
        await settled(socket)
    one, other, _ = (bytes(i for i in request.prompt_ids.tolist() if i < 256) for request in worker.prefills)
    assert b"Another answer" in one
    assert b"Hi! Hi!" in other


async def test_another_policy_is_prepared_for(alice: User, worker: FakeWorker) -> None:
    made = await talk(alice)
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await settled(socket)
        await Conversation.objects.aupdate(context_policy=ContextPolicy.RECENT, recent_tokens=1)
        await hint(alice, made)
        await until(lambda: len(worker.prefills) == 2)
        await settled(socket)


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_a_summary_in_other_words_is_prepared_for(alice: User, worker: FakeWorker, is_waiting: bool) -> None:
    worker.opened.max_model_len = 4000 if is_waiting else 600
    made = await talk(alice)
    for _ in range(6):
        values = {"conversation": made.conversation, "parent_id": made.assistant_message.id}
        made = await sync_to_async(rows.turn)(alice, "And then?", "This. " * 10, **values)
    await Conversation.objects.aupdate(context_policy=ContextPolicy.SUMMARISE)
    until_id = (await Message.objects.aget(position=1)).id
    create, edit = sync_to_async(summaries.summary_create), sync_to_async(summaries.summary_edit)
    summary = await create(until_id=until_id, text="In its own words.", model_name="m")
    assert summary is not None
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await settled(socket)
        num_before = len(worker.prefills)
        await edit(user=alice, conversation_id=made.conversation.id, summary_id=summary.id, text="In my words.")
        await hint(alice, made)
        await until(lambda: len(worker.prefills) > num_before)
        await settled(socket)
        prepared = [bytes(i for i in request.prompt_ids.tolist() if i < 256) for request in worker.prefills]
        assert any(b"In my words." in text for text in prepared[num_before:])
        num_before = len(worker.prefills)
        await hint(alice, made)
        await settled(socket)
        assert len(worker.prefills) == num_before, "once"


async def test_without_a_cache_or_an_engine_nothing_is_read(
    alice: User, worker: FakeWorker, histories: list[uuid.UUID], settings: Any
) -> None:
    made = await talk(alice)
    async with opened(alice) as socket:
        settings.RECOLLECT_PREFIX_CACHE = False
        await socket.send(watch(made))
        await settled(socket)
        settings.RECOLLECT_PREFIX_CACHE = True
        llm.host.handle.worker = None
        await socket.send(unwatch(made))
        await socket.send(watch(made))
        await settled(socket)
    assert histories == []


async def test_a_model_that_is_not_loaded_is_loaded_where_there_is_room(
    alice: User, worker: FakeWorker, histories: list[uuid.UUID]
) -> None:
    made = await talk(alice)
    worker.model_state, worker.has_room = "unloaded", False
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await settled(socket)
        assert (worker.model_state, histories, worker.prefills) == ("unloaded", [], [])
        await socket.send(unwatch(made))
        worker.has_room = True
        await socket.send(watch(made))
        await settled(socket)
    assert worker.model_state == "ready"
    assert len(worker.prefills) == 1


async def test_a_history_that_fails_is_no_trouble(alice: User, worker: FakeWorker) -> None:
    made = await talk(alice)
    worker.state = "failed"
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await settled(socket)
    assert worker.prefills == []


async def test_of_a_deleted_conversation_nothing_is_kept(alice: User, worker: FakeWorker) -> None:
    worker.is_holding = True
    made = await talk(alice)
    tag = str(made.conversation.id)
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await until(lambda: len(worker.prefills) == 1)
        await sync_to_async(conversations.conversation_delete)(user=alice, conversation_id=made.conversation.id)
        worker.purged.clear()  # that purge may have come before the KV
        await hints.aconversation_changed(alice.pk, made.conversation.id, is_deleted=True)
        await until(lambda: not worker._listeners)
        await until(lambda: worker.purged == [tag])
        await settled(socket)


async def test_the_end_of_the_server_cancels(alice: User, worker: FakeWorker) -> None:
    worker.is_holding = True
    made = await talk(alice)
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await until(lambda: len(worker.prefills) == 1)
        await run.drain(live, grace_s=0.01)
        await until(lambda: not worker._listeners)
        assert preparation.is_idle
        assert preparation._attention._timer is None


async def test_a_reply_that_another_process_writes_is_left_alone(alice: User, worker: FakeWorker) -> None:
    begun = await sync_to_async(rows.send)(alice)
    assert begun.assistant_message.status == MessageStatus.QUEUED
    async with opened(alice) as socket:
        await socket.send(watch(begun))
        await settled(socket)
    assert worker.prefills == []


# --- hints to the eviction --------------------------------------------------------------------------------------------


async def test_what_is_open_is_protected_and_for_some_minutes_after(
    alice: User, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "RENEW_EVERY_S", 0.01)
    made = await talk(alice)
    tag = str(made.conversation.id)
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await until(lambda: worker.hints.count((tag, attention.LEASE_S)) > 3)  # renewed
        await socket.send(unwatch(made))
        await until(lambda: worker.hints[-1] == (tag, attention.AFTERWARDS_S))
    assert preparation._attention._timer is None


async def test_a_turn_protects_its_conversation(alice: User, worker: FakeWorker) -> None:
    async with opened(alice) as socket:
        accepted = await socket.ask(send_frame())
        await until(lambda: len(worker.requests) == 1)
        assert (accepted["conversation"], attention.LEASE_S) in worker.hints
        worker.finish()
        await socket.next("turn.end")
    await until(lambda: worker.hints[-1] == (accepted["conversation"], attention.AFTERWARDS_S))


async def test_an_archived_conversation_is_not_prepared_when_opened(alice: User, worker: FakeWorker) -> None:
    made = await talk(alice)
    await Conversation.objects.aupdate(is_archived=True)
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await settled(socket)
    assert (worker.prefills, worker.hints) == ([], [])


async def test_archiving_what_is_open_ends_its_protection_and_taking_it_out_prepares_it(
    alice: User, worker: FakeWorker
) -> None:
    made = await talk(alice)
    tag = str(made.conversation.id)
    archive = sync_to_async(conversations.conversation_archive)
    async with opened(alice) as socket:
        await socket.send(watch(made))
        await settled(socket)
        await archive(user=alice, conversation_id=made.conversation.id, is_archived=True)
        await hint(alice, made)
        await until(lambda: worker.hints.count((tag, -1)) == 2)
        await settled(socket)
        assert made.conversation.id not in preparation._attention._open
        await archive(user=alice, conversation_id=made.conversation.id, is_archived=False)
        await hint(alice, made)
        await until(lambda: len(worker.prefills) == 2)
        await settled(socket)
        assert worker.hints[-2:] == [(tag, 0), (tag, attention.LEASE_S)]
