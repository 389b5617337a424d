"""What is deleted leaves no KV: not in memory, not in files, whatever happens at that moment, whoever deletes it."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from chatapp import executors, kv_keeper, kv_requests, llm
from chatapp.models import Conversation, Message, User
from chatapp.services.accounts import user_delete
from chatapp.services.conversations import conversation_delete
from chatapp.turn.live import Live
from inference.kvcache import kv_folder
from tests.chatapp import kv_world
from tests.chatapp.kv_world import LONG, engine, files, files_of, mentions, numbers, preset, talk

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def installed(settings: Any, tmp_path: Path) -> None:
    kv_world.install(settings, tmp_path)


def delete(reply: Message) -> None:
    conversation_delete(user=reply.conversation.owner, conversation_id=reply.conversation_id)


def assert_gone(*replies: Message) -> None:
    llm.wait_for_purges()
    for reply in replies:
        assert mentions(llm.kv_root(), reply.conversation_id) == []


def test_a_deleted_conversation_leaves_no_file_and_others_keep_theirs(alice: User) -> None:
    with engine():
        gone, kept = (talk(alice, text + LONG, preset=preset().id) for text in ("One. ", "Two. "))
        llm.unload("llama")
        llm.load("llama")
        kv_world.wait_until_ready()
        before = set(files_of(gone.conversation_id))
        assert before
        delete(gone)
        assert_gone(gone)
        assert not before & set(files())
        assert numbers(talk(alice, "Go on.", after=kept)).num_reused_disk > 400


def test_its_memory_is_forgotten_before_the_next_request(alice: User) -> None:
    with engine():
        gone = talk(alice, LONG, preset=preset().id)
        assert kv_world.stats().num_blocks_cached > 20
        delete(gone)
        assert numbers(talk(alice, LONG, preset=preset().id)).num_reused == 0
    assert_gone(gone)


def test_files_of_a_model_that_is_not_loaded_go_as_well(alice: User) -> None:
    with engine():
        gone = talk(alice, LONG, preset=preset().id, model="qwen3")
        llm.unload("qwen3")
        assert files_of(gone.conversation_id)
        delete(gone)
        assert_gone(gone)


def test_a_process_without_an_engine_purges_too(alice: User) -> None:
    with engine():
        gone, kept = (talk(alice, text + LONG, preset=preset().id) for text in ("One. ", "Two. "))
    delete(gone)
    assert_gone(gone)
    assert files_of(kept.conversation_id)


def test_a_request_does_not_wait_for_the_files(alice: User, client: Client) -> None:
    """The view answers while another process has the folder to itself."""
    client.force_login(alice)
    with engine():
        gone = talk(alice, LONG, preset=preset().id)
    with kv_folder.budget_turn(llm.kv_root()):
        answer = client.post(reverse("conversation_delete", args=[gone.conversation_id]))
        assert answer.status_code in (200, 204, 302)
        assert not Conversation.objects.exists()
        assert files_of(gone.conversation_id)
    assert_gone(gone)


def test_an_account_goes_with_the_kv_of_all_its_conversations(alice: User, bob: User) -> None:
    with engine():
        mine = [talk(alice, f"{n} {LONG}", preset=preset().id) for n in range(3)]
        his = talk(bob, LONG, preset=preset().id)
    user_delete(user=alice)
    assert_gone(*mine)
    assert files_of(his.conversation_id)


@pytest.mark.parametrize("what", ["conversation", "user"])
def test_the_bulk_actions_of_the_admin_purge(staff: Client, alice: User, what: str) -> None:
    with engine():
        gone = [talk(alice, f"{n} {LONG}", preset=preset().id) for n in range(2)]
    keys = [reply.conversation_id for reply in gone] if what == "conversation" else [alice.pk]
    values = {"action": "delete_selected", "_selected_action": keys, "post": "yes"}
    assert staff.post(reverse(f"admin:chatapp_{what}_changelist"), values).status_code == 302
    assert not Conversation.objects.exists()
    assert_gone(*gone)


def test_text_that_two_conversations_share_stays_with_the_other(alice: User) -> None:
    one = preset()
    with engine():
        gone, kept = (talk(alice, LONG, preset=one.id) for _ in range(2))
        assert numbers(kept).num_reused > 400
        delete(gone)
        assert_gone(gone)
    assert_gone(gone)
    with engine():
        assert numbers(talk(alice, "Go on.", after=kept)).num_reused_disk > 400


# --- at bad moments ---------------------------------------------------------------------------------------------------


def test_deleted_while_its_reply_is_written(alice: User) -> None:
    long = preset(400)

    async def begun_and_deleted() -> uuid.UUID:
        turn = await kv_world.astart(Live(), alice, LONG, preset=long.id)
        is_written = asyncio.Event()
        turn.on_text = lambda _thinking, _text: is_written.set()
        assert turn.task is not None
        async with asyncio.timeout(60):
            await is_written.wait()
        assert turn.end is None
        await executors.database(conversation_delete, user=alice, conversation_id=turn.conversation_id)
        await turn.task
        return turn.conversation_id

    with engine():
        conversation_id = asyncio.run(begun_and_deleted())
    llm.wait_for_purges()
    assert mentions(llm.kv_root(), conversation_id) == []


def test_deleted_while_it_is_being_saved(alice: User) -> None:
    with engine():
        with kv_folder.budget_turn(llm.kv_root()):  # the writer waits for it
            gone = talk(alice, LONG, preset=preset().id)
            deadline = time.monotonic() + 30
            while (disk := kv_world.stats().cache.disk) is None or not disk.pending_bytes or disk.num_unsaved_blocks:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            delete(gone)
            assert llm.host.running_worker().settle(30)
        assert_gone(gone)
    assert_gone(gone)


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.05])
def test_deleted_while_it_is_being_restored(alice: User, delay_s: float) -> None:
    with engine():
        first = talk(alice, LONG, preset=preset().id)

    async def restored_and_deleted() -> None:
        turn = await kv_world.astart(Live(), alice, "Go on.", after=first)
        await asyncio.sleep(delay_s)
        await executors.database(delete, first)
        assert turn.task is not None
        await turn.task

    with engine():
        asyncio.run(restored_and_deleted())
    assert_gone(first)


def test_deleted_while_its_model_is_being_loaded(alice: User) -> None:
    with engine():
        gone = talk(alice, LONG, preset=preset().id)
    for _ in range(3):
        with engine(is_ready=False):
            delete_at = time.monotonic() + 0.02
            while time.monotonic() < delete_at and not any(folder.is_in_use for folder in llm.kv_folders()):
                pass
            if Conversation.objects.exists():
                delete(gone)
            kv_world.wait_until_ready()
            llm.wait_for_purges()
            disk = kv_world.stats().cache.disk
            assert disk is not None
            assert disk.num_files == len(files())
        assert_gone(gone)


def test_deleted_while_its_model_leaves(alice: User) -> None:
    """The engine saves what it has, and only then comes round to the purge."""
    with engine():
        with kv_folder.budget_turn(llm.kv_root()):
            gone = talk(alice, LONG, preset=preset().id)
            worker = llm.host.running_worker()
            worker._commands.put(lambda: worker._unload("llama"))  # as unload(), without waiting
            delete(gone)
        assert_gone(gone)
    assert_gone(gone)


# --- on behalf of others ----------------------------------------------------------------------------------------------


def test_rows_that_went_past_the_services_are_found_by_the_sweep(alice: User) -> None:
    with engine():
        gone, kept = (talk(alice, text + LONG, preset=preset().id) for text in ("One. ", "Two. "))
        llm.unload("llama")
        gone.conversation.delete()
        assert kv_keeper.sweep() == 1
        assert_gone(gone)
        assert files_of(kept.conversation_id)
        assert kv_keeper.sweep() == 0


def test_the_server_forgets_what_another_process_asks_for(alice: User) -> None:
    root = llm.kv_root()
    data = root.parent
    with engine(), kv_keeper.running():
        reply = talk(alice, LONG, preset=preset().id)
        deadline = time.monotonic() + 30
        while not kv_requests.ask(data, [str(reply.conversation_id)]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert kv_requests.wait(data, 30)
        assert mentions(root, reply.conversation_id) == []
        assert numbers(talk(alice, "Go on.", after=reply)).num_reused == 0
        assert kv_requests.ask(data, [kv_requests.EVERYTHING])
        assert kv_requests.wait(data, 30)
        assert kv_world.stats().num_blocks_cached == 0
    assert not kv_requests.ask(data, ["nobody"])


def test_the_server_is_asked_even_when_the_files_have_been_removed(alice: User) -> None:
    """They may go at any time; what is in memory is there all the same."""
    root = llm.kv_root()
    with engine(), kv_keeper.running():
        reply = talk(alice, LONG, preset=preset().id)
        deadline = time.monotonic() + 30
        while not kv_requests.ask(root.parent, [str(uuid.uuid4())]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert kv_requests.wait(root.parent, 30)
        shutil.rmtree(root)
        assert kv_requests.ask(root.parent, [str(reply.conversation_id)])
        assert kv_requests.wait(root.parent, 30)
        assert numbers(talk(alice, "Go on.", after=reply)).num_reused == 0


def test_a_request_that_fails_is_asked_for_again(tmp_path: Path) -> None:
    asked: list[set[str]] = []

    def fail(names: set[str]) -> None:
        asked.append(names)
        raise OSError(5, "broken")

    assert not kv_requests.ask(tmp_path, ["one"])
    with kv_requests.listening(tmp_path):
        assert kv_requests.ask(tmp_path, ["one"])
        assert kv_requests.ask(tmp_path, ["two"])
        with pytest.raises(OSError, match="broken"):
            kv_requests.answer(tmp_path, fail)
        assert not kv_requests.wait(tmp_path, 0.0)
    kv_requests.answer(tmp_path, asked.append)  # the next server
    assert asked == [{"one", "two"}] * 2
    assert kv_requests.wait(tmp_path, 0.0)
    kv_requests.answer(tmp_path, fail)  # nothing is left to do


def test_who_just_asks_is_not_taken_for_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kv_requests.listening(tmp_path):
        assert kv_requests.ask(tmp_path, ["a"])
    answers: list[bool] = []
    close = os.close

    def close_later(descriptor: int) -> None:  # the lock of the first is held while the second asks
        monkeypatch.undo()
        answers.append(kv_requests.ask(tmp_path, ["b"]))
        close(descriptor)

    monkeypatch.setattr(os, "close", close_later)
    answers.append(kv_requests.ask(tmp_path, ["c"]))
    assert answers == [False, False]
