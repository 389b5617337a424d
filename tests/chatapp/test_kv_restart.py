"""Cached KV in the data folder, from one start of the engine to the next: reused, or a miss; never another reply."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from chatapp import llm
from chatapp.models import Message, User
from inference.kvcache import kv_folder
from tests.chatapp import kv_world
from tests.chatapp.kv_world import LONG, engine, files, numbers, preset, talk

pytestmark = pytest.mark.django_db(transaction=True)

QUESTION = "And which of them is the driest?"


@pytest.fixture(autouse=True)
def installed(settings: Any, tmp_path: Path) -> None:
    kv_world.install(settings, tmp_path)


def asked_without_disk(settings: Any, user: User, after: Message) -> str:
    """The reply of an engine that has neither memory nor files of this conversation."""
    budget, settings.RECOLLECT_KV_DISK_BYTES = settings.RECOLLECT_KV_DISK_BYTES, 0
    with engine():
        reply = talk(user, QUESTION, after=after)
    settings.RECOLLECT_KV_DISK_BYTES = budget
    assert numbers(reply).num_reused == 0
    return reply.text


def test_after_a_restart_the_whole_history_comes_from_disk(alice: User, settings: Any) -> None:
    with engine():
        first = talk(alice, LONG, preset=preset().id)
    with engine():
        reply = talk(alice, QUESTION, after=first)
    before, after = numbers(first), numbers(reply)
    assert before.num_prompt_tokens > 400
    assert after.num_reused_ram == 0
    # All that was computed: the last token of a reply is known, and was never an input.
    assert after.num_reused_disk >= before.num_prompt_tokens + before.num_generated - 1
    assert after.num_computed == after.num_prompt_tokens - after.num_reused_disk
    assert reply.text == asked_without_disk(settings, alice, first)


def test_a_budget_of_zero_writes_nothing_and_a_cache_that_is_off_neither(alice: User, settings: Any) -> None:
    settings.RECOLLECT_KV_DISK_BYTES = 0
    with engine():
        talk(alice, LONG, preset=preset().id)
        assert kv_world.stats().cache.disk is None
    assert not llm.kv_root().exists()
    settings.RECOLLECT_KV_DISK_BYTES, settings.RECOLLECT_PREFIX_CACHE = 64 << 20, False
    with engine():
        talk(alice, LONG, preset=preset().id)
    assert not llm.kv_root().exists()


def test_a_model_that_is_unloaded_and_comes_back_knows_its_conversations(alice: User) -> None:
    with engine():
        first = talk(alice, LONG, preset=preset().id)
        llm.unload("llama")
        reply = talk(alice, QUESTION, after=first)  # loads it
    assert numbers(reply).num_reused_disk > 400


def test_each_model_has_its_own_files(alice: User) -> None:
    with engine():
        first = talk(alice, LONG, preset=preset().id)
        second = talk(alice, LONG, preset=preset().id, model="qwen3")
    assert len(list(llm.kv_root().glob("*/lock"))) == 2
    with engine():
        assert numbers(talk(alice, QUESTION, after=first)).num_reused_disk > 400
        assert numbers(talk(alice, QUESTION, after=second)).num_reused_disk > 400


# --- what happens to files between two starts -------------------------------------------------------------------------


def payload_start(data: bytes) -> int:
    return int.from_bytes(data[32:40], "little")


def flip(place: Callable[[bytes], int]) -> Callable[[list[Path]], None]:
    def damage(paths: list[Path]) -> None:
        for path in paths:
            data = bytearray(path.read_bytes())
            data[place(data)] ^= 4
            path.write_bytes(data)

    return damage


def truncate(paths: list[Path]) -> None:
    for path in paths:
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def empty(paths: list[Path]) -> None:
    for path in paths:
        path.write_bytes(b"")


def delete(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


def swap_payloads(paths: list[Path]) -> None:
    """Each header before the payload of the other file: of two conversations that differ in their first word."""
    one, two = sorted(paths, key=lambda path: -path.stat().st_size)[:2]
    assert one.stat().st_size == two.stat().st_size
    first, second = one.read_bytes(), two.read_bytes()
    start = payload_start(first)
    one.write_bytes(first[:start] + second[start:])
    two.write_bytes(second[:start] + first[start:])


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (flip(lambda data: 3), "format"),
        (flip(lambda data: 200), "header"),
        (flip(payload_start), "checksum"),
        (truncate, "truncated"),
        (empty, "truncated"),
        (delete, ""),
        (swap_payloads, "checksum"),
    ],
    ids=["magic", "header", "payload", "truncated", "emptied", "deleted", "swapped"],
)
def test_damaged_files_are_misses_and_the_turn_goes_on(
    alice: User, settings: Any, damage: Callable[[list[Path]], None], cause: str
) -> None:
    with engine():
        first = talk(alice, LONG, preset=preset().id)
        talk(alice, LONG.replace("Tell", "Sell"), preset=preset().id)
    damage(files())
    with engine():
        reply = talk(alice, QUESTION, after=first)
        disk = kv_world.stats().cache.disk
    assert disk is not None
    assert set(disk.failed_restores) == ({cause} if cause else set())
    after = numbers(reply)
    assert after.num_reused_disk < 400
    assert after.num_prompt_tokens == after.num_reused + after.num_computed
    assert reply.text == asked_without_disk(settings, alice, first)


def other_weights(folder: Path, settings: Any) -> None:
    """A little more of everything in one tensor, under the same name."""
    path = folder / "models" / "llama" / "model.safetensors"
    data = bytearray(path.read_bytes())
    values = np.frombuffer(data, "<u2", 32, len(data) - 64)
    values[:] = values ^ 1  # the last bit of each
    path.write_bytes(data)


def other_template(folder: Path, settings: Any) -> None:
    path = folder / "models" / "llama" / "tokenizer_config.json"
    found = json.loads(path.read_text())
    found["chat_template"] = found["chat_template"] + "{# another #}"
    path.write_text(json.dumps(found))


def other_block_size(folder: Path, settings: Any) -> None:
    settings.RECOLLECT_BLOCK_SIZE = 32


def other_kernels(folder: Path, settings: Any) -> None:
    settings.RECOLLECT_KERNELS = "generic"


@pytest.mark.parametrize(
    "change",
    [other_weights, other_template, other_block_size, pytest.param(other_kernels, marks=pytest.mark.slow)],
)
def test_what_another_engine_has_computed_is_not_used(
    alice: User, settings: Any, tmp_path: Path, change: Callable[[Path, Any], None]
) -> None:
    with engine():
        first = talk(alice, LONG, preset=preset().id)
    before = files()
    change(tmp_path, settings)
    with engine():
        reply = talk(alice, QUESTION, after=first)
        disk = kv_world.stats().cache.disk
    assert disk is not None
    assert numbers(reply).num_reused == 0
    assert disk.failed_restores == {}
    assert set(before) < set(files())  # each in a folder of its own
    assert reply.text == asked_without_disk(settings, alice, first)


def test_the_time_of_files_and_rows_does_not_matter(alice: User) -> None:
    """A day after the clock was put back, or after more than a year."""
    for days in (-1, 400):
        with engine():
            first = talk(alice, f"{days} {LONG}", preset=preset().id)
        for path in files():
            os.utime(path, (path.stat().st_mtime - 86_400 * days,) * 2)
        with engine():
            assert numbers(talk(alice, QUESTION, after=first)).num_reused_disk > 400


# --- what an operator sees --------------------------------------------------------------------------------------------


def engine_page(staff: Client) -> str:
    return html.unescape(staff.get(reverse("admin:engine")).content.decode())


def test_the_engine_page_shows_the_files_the_budget_and_what_failed(staff: Client, alice: User) -> None:
    with engine():
        first = talk(alice, LONG, preset=preset().id)
    flip(payload_start)(files()[:1])
    with engine():
        talk(alice, QUESTION, after=first)
        page = engine_page(staff)
    assert "/ 64.0\xa0MB" in page
    assert "checksum" in page


def test_the_engine_page_says_why_nothing_is_kept(staff: Client, alice: User, settings: Any) -> None:
    with engine():
        talk(alice, LONG, preset=preset().id)
    (inside,) = llm.kv_root().glob("*/")
    descriptor = kv_folder.lock(inside)  # as another process has it
    try:
        with engine():
            talk(alice, LONG, preset=preset().id)
            assert f"{inside} is in use by another process" in engine_page(staff)
    finally:
        os.close(descriptor)
    settings.RECOLLECT_KV_DISK_BYTES = 0
    with engine():
        assert "Nothing is kept on disk:" in engine_page(staff)
