"""`manage.py kv`: what there is, whether it is sound, and away with it."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from chatapp import kv_requests, llm
from chatapp.models import Message, User
from tests.chatapp import kv_world
from tests.chatapp.kv_world import LONG, engine, files, files_of, preset, talk

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def installed(settings: Any, tmp_path: Path) -> None:
    kv_world.install(settings, tmp_path)


@pytest.fixture
def replies(alice: User, bob: User) -> tuple[Message, Message]:
    """One of Alice's, one of Bob's with another model; both on disk."""
    with engine():
        his = talk(bob, "Hello", preset=preset().id, model="qwen3")
        return talk(alice, LONG, preset=preset().id), his


def printed(*arguments: str) -> list[str]:
    stdout = io.StringIO()
    call_command("kv", *arguments, stdout=stdout)
    return stdout.getvalue().splitlines()


def test_an_empty_folder_is_no_error() -> None:
    assert printed("status")[0].startswith("0 B in 0 files; budget (RECOLLECT_KV_DISK_BYTES): 67.1 MB")
    assert printed("verify") == ["All 0 files are sound (0 B)."]
    assert printed("purge", "--all")[0] == "Removed 0 files of all models."
    assert not llm.kv_root().exists()


def test_status_says_what_belongs_to_which_model_person_and_conversation(replies: tuple[Message, Message]) -> None:
    mine, his = replies
    text = "\n".join(printed("status"))
    for line in ("llama, numpy, blocks of 16", "qwen3, numpy, blocks of 16", "alice", "bob", str(mine.conversation_id)):
        assert line in text
    assert "  no  " in text
    found = json.loads("".join(printed("status", "--json")))
    assert found["bytes"] == sum(path.stat().st_size for path in files())
    assert found["files"] == len(files()) == sum(model["files"] for model in found["models"])
    assert {row["user"]: row["files"] for row in found["users"]} == {
        "alice": len(files_of(mine.conversation_id)),
        "bob": len(files_of(his.conversation_id)),
    }
    assert [row["conversation"] for row in found["conversations"]] == [
        str(mine.conversation_id),
        str(his.conversation_id),
    ]
    assert found["max_bytes"] == 64 << 20
    assert not any(model["is_in_use"] for model in found["models"])
    assert LONG[:20] not in text


def test_status_says_that_a_model_is_in_use_and_that_a_conversation_is_gone(replies: tuple[Message, Message]) -> None:
    replies[1].conversation.delete()  # past the services
    with engine():
        lines = printed("status")
    assert any("llama" in line and "  yes  " in line for line in lines)
    assert any(str(replies[1].conversation_id) in line and "(deleted)" in line for line in lines)


@pytest.mark.usefixtures("replies")
def test_verify_names_the_damaged_files_and_fails() -> None:
    assert printed("verify")[0].startswith(f"All {len(files())} files are sound")
    path, *_ = files()
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    moved = files()[-1].rename(path.with_name("moved.kv"))
    stdout = io.StringIO()
    with pytest.raises(CommandError, match=r"2 of \d+ files cannot be used \(1 \w+, 1 \w+\).*kv purge --all"):
        call_command("kv", "verify", stdout=stdout)
    assert sorted(stdout.getvalue().splitlines()) == sorted([f"{path}: checksum", f"{moved}: misplaced"])
    assert printed("status")[-1] == "Files that cannot be used: 1. See `manage.py kv verify`"  # by their headers


def test_purge_of_a_conversation_a_user_and_everything(replies: tuple[Message, Message]) -> None:
    mine, his = replies
    num_mine = len(files_of(mine.conversation_id))
    removed, said = printed("purge", "--conversation", str(mine.conversation_id))
    assert removed == f"Removed {num_mine} files of 1 conversation."
    assert said == "No server runs on this data folder: nothing is left in memory."
    assert files_of(mine.conversation_id) == []
    assert files_of(his.conversation_id)
    printed("purge", "--user", "bob")
    assert files_of(his.conversation_id) == []
    printed("purge", "--all")
    assert files() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "one of the arguments --conversation --user --all is required"),
        (("--user", "nobody"), "There is no user named 'nobody'.*kv purge --all"),
        (("--conversation", "12"), "invalid UUID value"),
        (("--all", "--user", "alice"), "not allowed with"),
    ],
)
def test_a_purge_of_nothing_in_particular_is_refused(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        printed("purge", *arguments)


def test_a_folder_that_cannot_be_used_is_named_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "budget").mkdir()
    with pytest.raises(CommandError, match=r"kv/budget: Is a directory\. Give the data folder to the user"):
        printed("purge", "--conversation", str(uuid.uuid4()))


def test_a_server_forgets_its_part_whatever_becomes_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "kv" / "budget").mkdir(parents=True)
    name = str(uuid.uuid4())
    asked: list[set[str]] = []
    with kv_requests.listening(tmp_path):
        with pytest.raises(CommandError, match="Is a directory"):
            printed("purge", "--conversation", name)
        kv_requests.answer(tmp_path, asked.append)
    assert asked == [{name}]
