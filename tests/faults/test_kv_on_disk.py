"""Cached KV of the real product over the ends of its processes: stopped, killed, killed while it saves, a day later."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.faults.browser import Socket, send_frame
from tests.faults.conftest import ServerProcess, environment
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.model, pytest.mark.slow]

Manage = Callable[..., "subprocess.CompletedProcess[str]"]
SENTENCE = "Sentence {} speaks of the sea, the wind and the light."  # 15 tokens
QUESTION = "What do these sentences speak of?"
DAY_S = 86_400


@dataclass(frozen=True)
class Talk:
    """A conversation and the end of its latest turn."""

    conversation: str
    message: str
    stats: dict[str, Any]


@dataclass
class Product:
    """The product itself with the default model."""

    server: ServerProcess
    model: str

    @property
    def kv(self) -> Path:
        return self.server.data / "kv"

    def start(self, **changes: str) -> None:
        self.server.start(RECOLLECT_MODEL=self.model, **changes)

    async def begin(self, num_sentences: int) -> Talk:
        """A first turn, stopped after the beginning of its reply."""
        socket = await Socket.open(self.server.port, self.server.cookies["ada"])
        text = " ".join(SENTENCE.format(n) for n in range(num_sentences))
        accepted = await socket.ask(send_frame(text))
        ids = {name: accepted[name] for name in ("conversation", "message")}
        await socket.next("turn.delta")
        await socket.send({"type": "turn.stop", **ids})
        end = await socket.next("turn.end")
        socket.drop()
        return Talk(**ids, stats=end["stats"])

    async def ask(self, talk: Talk, text: str = QUESTION) -> tuple[Talk, str]:
        """The next turn, and its reply."""
        socket = await Socket.open(self.server.port, self.server.cookies["ada"])
        ids = {"conversation": talk.conversation, "parent": talk.message}
        await socket.send(send_frame(text, is_new=False, **ids))
        end = await socket.next("turn.end")
        socket.drop()
        status, reply = self.server.message(end["message"])
        assert status == "done"
        return Talk(talk.conversation, end["message"], end["stats"]), reply

    def stop(self) -> None:
        self.server.terminate()
        assert self.server.wait() == 0

    def execute(self, sql: str, *values: str) -> None:
        with sqlite3.connect(self.server.data / "recollect.sqlite3") as connection:
            connection.execute(sql, [value.replace("-", "") for value in values])

    def make_greedy(self, talk: Talk) -> None:
        """From now on a reply depends on nothing but the prompt."""
        self.execute(
            """UPDATE chatapp_conversation SET sampling = '{"temperature": 0.0, "max_tokens": 24}' WHERE id = ?""",
            talk.conversation,
        )

    def mentions(self, conversation: str) -> list[Path]:
        """Files of KV that name a conversation."""
        found = []
        for path in self.kv.rglob("*"):
            try:
                if path.is_file() and conversation.encode() in path.read_bytes():
                    found.append(path)
            except FileNotFoundError:  # renamed or removed in this moment
                continue
        return found

    def wait_until_saved(self) -> None:
        """Until nothing has been written for a second."""
        seen: tuple[int, float] = (0, 0.0)
        while True:
            paths = list(self.kv.glob("*/*"))
            size = sum(path.stat().st_size for path in paths if path.suffix == ".kv")
            if size != seen[0] or any(path.suffix == ".tmp" for path in paths):
                seen = size, time.monotonic()
            elif size and time.monotonic() > seen[1] + 1:
                return
            time.sleep(0.02)


@pytest.fixture
def product(stopped_server: ServerProcess, model_path: Path) -> Product:
    stopped_server.module = "manage"
    return Product(stopped_server, str(model_path))


@pytest.fixture
def without_disk(product: Product, tmp_path: Path) -> Iterator[Callable[[], Product]]:
    """Makes the same installation as it is now, without files of KV."""
    made: list[Product] = []

    def make() -> Product:
        ignored = shutil.ignore_patterns("kv", "kernels", "*.lock")
        copy = shutil.copytree(product.server.data, tmp_path / "copy", ignore=ignored)
        made.append(Product(ServerProcess(copy, product.server.cookies, "manage"), product.model))
        return made[0]

    yield make
    for each in made:
        if each.server.process is not None:
            each.server.kill()


def let_a_day_pass(product: Product) -> None:
    for path in product.kv.rglob("*.kv"):
        os.utime(path, (path.stat().st_atime - DAY_S, path.stat().st_mtime - DAY_S))
    for column in ("created_at", "updated_at"):
        product.execute(f"UPDATE chatapp_conversation SET {column} = datetime({column}, '-1 day')")
    for column in ("created_at", "finished_at"):
        product.execute(f"UPDATE chatapp_message SET {column} = datetime({column}, '-1 day')")


@pytest.mark.parametrize("how", ["stopped", "killed", "a day later"])
async def test_the_next_turn_after_a_restart_computes_what_is_new(
    product: Product, without_disk: Callable[[], Product], how: str
) -> None:
    product.start()
    first = await product.begin(150)
    assert first.stats["prompt_tokens"] > 2000
    if how == "stopped":
        product.stop()
    else:
        product.wait_until_saved()
        product.server.kill()
    product.make_greedy(first)
    if how == "a day later":
        let_a_day_pass(product)
    cold = without_disk()

    product.start()
    after, reply = await product.ask(first)
    stable = first.stats["prompt_tokens"] + first.stats["generated"] - 1  # its last token was never an input
    assert after.stats["reused_disk"] > 2000
    assert after.stats["reused_ram"] + after.stats["reused_disk"] >= stable
    rows = "SELECT num_reused_disk FROM chatapp_generation WHERE message_id = ?"
    assert product.server.query(rows, after.message) == [(after.stats["reused_disk"],)]
    assert product.server.get("/healthz/ready")[0] == 200
    product.stop()

    cold.start(RECOLLECT_KV_DISK_BYTES="0")
    computed, expected = await cold.ask(first)
    assert (computed.stats["reused_ram"], computed.stats["reused_disk"]) == (0, 0)
    assert reply == expected
    assert not cold.kv.exists() or not list(cold.kv.glob("*/*.kv"))


async def test_killed_while_it_saves_it_goes_on_with_what_is_whole(
    product: Product, without_disk: Callable[[], Product]
) -> None:
    product.start()
    first = await product.begin(80)
    async with asyncio.timeout(PATIENCE_S):
        while len(list(product.kv.glob("*/*.kv"))) < 2:  # the system prompt, and a part of the rest
            await asyncio.sleep(0.001)
    product.server.kill()
    num_saved, unfinished = len(list(product.kv.glob("*/*.kv"))), set(product.kv.glob("*/*.tmp"))
    product.make_greedy(first)
    cold = without_disk()

    product.start()
    after, reply = await product.ask(first)
    assert after.stats["reused_disk"] > 0
    assert not unfinished & set(product.kv.glob("*/*.tmp"))  # others are being written
    assert "cannot be used" not in product.server.log()
    assert "Traceback" not in product.server.log()
    product.stop()
    assert len(list(product.kv.glob("*/*.kv"))) > num_saved
    cold.start(RECOLLECT_KV_DISK_BYTES="0")
    assert (await cold.ask(first))[1] == reply


IN_ANOTHER_PROCESS = """
import sys, django
django.setup()
from chatapp.models import Conversation
from chatapp.services.conversations import conversation_delete
conversation = Conversation.objects.get(id=sys.argv[2])
if sys.argv[1] == "service":
    conversation_delete(user=conversation.owner, conversation_id=conversation.id)
else:
    conversation.delete()
"""


def delete_elsewhere(product: Product, how: str, conversation: str) -> None:
    """By a process that has no engine: with the service, or past it."""
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, how, conversation]
    subprocess.run(command, cwd=ROOT, env=environment(product.server.data), check=True, timeout=PATIENCE_S)


async def test_other_processes_purge_and_delete_beside_a_server(product: Product, manage: Manage) -> None:
    product.start()
    first = await product.begin(20)
    product.wait_until_saved()
    assert "  yes  " in manage("kv", "status").stdout
    assert manage("kv", "verify").returncode == 0

    done = manage("kv", "purge", "--conversation", first.conversation)
    assert "The running server has forgotten it, too." in done.stdout, done.stderr
    assert product.mentions(first.conversation) == []
    product.make_greedy(first)
    after, _reply = await product.ask(first)
    assert after.stats["reused_disk"] == 0
    assert after.stats["reused_ram"] < 48  # the system prompt at most, which is everybody's
    product.wait_until_saved()
    assert product.mentions(first.conversation)

    delete_elsewhere(product, "service", first.conversation)
    async with asyncio.timeout(PATIENCE_S):
        while product.mentions(first.conversation):
            await asyncio.sleep(0.05)

    second = await product.begin(20)
    product.stop()
    assert product.mentions(first.conversation) == []  # nothing was left in memory that could have been saved
    assert product.mentions(second.conversation)
    delete_elsewhere(product, "past it", second.conversation)
    assert product.mentions(second.conversation)
    product.start()
    async with asyncio.timeout(PATIENCE_S):
        while product.mentions(second.conversation):
            await asyncio.sleep(0.05)
    assert "KV of 1 conversations that are no longer there has been removed" in product.server.log()
