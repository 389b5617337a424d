"""Starting: what is refused, with which words, and what a start leaves alone."""

from __future__ import annotations

import asyncio
import socket as sockets
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chatapp.word_encoder import write_encoder
from tests.faults.browser import Socket, send_frame
from tests.faults.conftest import ServerProcess
from tests.patience import PATIENCE_S

Manage = Callable[..., "subprocess.CompletedProcess[str]"]


def test_pending_migrations_are_refused_with_the_command(data: Path, manage: Manage) -> None:
    (data / "recollect.sqlite3").unlink()
    done = manage("serve", "--port", "0")
    assert done.returncode == 1
    assert "python manage.py migrate" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_server_on_the_same_folder_is_refused(server: ServerProcess, manage: Manage) -> None:
    assert server.process is not None
    done = manage("serve", "--port", "0")
    assert done.returncode == 1
    assert f"(process {server.process.pid})" in done.stderr
    assert "Traceback" not in done.stderr
    assert server.get("/healthz/ready")[0] == 200


def test_a_port_in_use_is_named(data: Path, manage: Manage) -> None:
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = manage("serve", "--port", str(port))
    assert done.returncode == 1
    assert f"127.0.0.1:{port}: Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_an_address_that_is_not_of_this_machine_is_explained(data: Path, manage: Manage, host: str) -> None:
    done = manage("serve", "--port", "0", RECOLLECT_HOST=host)
    assert done.returncode == 1
    assert f"Cannot listen on {host}:0" in done.stderr
    assert "RECOLLECT_HOST must be an address of this machine" in done.stderr
    assert "Another program" not in done.stderr
    assert "Traceback" not in done.stderr


async def test_without_a_model_it_starts_and_says_how_to_get_one(stopped_server: ServerProcess) -> None:
    server = stopped_server
    server.module = "manage"
    missing = str(server.data / "missing.gguf")
    server.start(path="/healthz/live", RECOLLECT_MODEL=missing)
    assert any("MISSING" in line and "fetch_model" in line for line in server.output)
    assert server.get("/healthz/ready") == (503, '{"ready": false, "database": "ok", "engine": "failed"}')
    assert server.get("/healthz/live")[0] == 200
    socket = await Socket.open(server.port, server.cookies["ada"])
    answer = await socket.ask(send_frame())
    assert answer["code"] == "engine_unavailable"
    assert "python manage.py fetch_model" in answer["message"]
    assert server.query("SELECT count(*) FROM chatapp_message") == [(0,)]


async def test_ask_beside_a_server_leaves_its_turns_alone(slow_server: ServerProcess, manage: Manage) -> None:
    server = slow_server
    socket = await Socket.open(server.port, server.cookies["ada"])
    message = (await socket.ask(send_frame()))["message"]
    done = manage("ask", "--user", "bob", "Hello", RECOLLECT_MODEL=str(server.data / "missing.gguf"))
    assert "could not be loaded" in done.stderr
    assert server.message(message)[0] != "interrupted"
    assert (await socket.next("turn.delta"))["message"] == message


@pytest.mark.slow  # it is 4 s until the server begins
async def test_what_was_said_without_an_encoder_is_encoded_after_the_start_with_one(
    stopped_server: ServerProcess, tmp_path: Path
) -> None:
    server = stopped_server
    server.start()
    socket = await Socket.open(server.port, server.cookies["ada"])
    await socket.ask(send_frame("My cat is called Mitzi"))
    await socket.next("turn.end")
    server.terminate()
    assert server.wait() == 0
    assert server.query("SELECT count(*) FROM chatapp_messagevector") == [(0,)]
    server.start(RECOLLECT_EMBEDDINGS=str(write_encoder(tmp_path / "words", ["cat", "kitten"])))
    async with asyncio.timeout(PATIENCE_S):
        while server.query("SELECT count(*) FROM chatapp_messagevector") != [(2,)]:
            await asyncio.sleep(0.05)
    socket = await Socket.open(server.port, server.cookies["ada"])
    await socket.ask(send_frame("And the kitten?"))
    await socket.next("turn.end")
    async with asyncio.timeout(PATIENCE_S):
        while server.query("SELECT count(*) FROM chatapp_messagevector") != [(4,)]:
            await asyncio.sleep(0.05)
    assert "Mitzi" not in server.log()


def test_an_encoder_that_is_not_there_is_refused_with_the_way_out(data: Path, manage: Manage) -> None:
    done = manage("serve", "--port", "0", RECOLLECT_EMBEDDINGS=str(data / "gone"))
    assert done.returncode == 1
    assert "recollect.E011" in done.stderr
    assert "Leave it empty" in done.stderr
    assert "Traceback" not in done.stderr


def test_beyond_loopback_the_first_visit_needs_the_link(stopped_server: ServerProcess, manage: Manage) -> None:
    server = stopped_server
    (server.data / "recollect.sqlite3").unlink()
    assert manage("migrate", "--verbosity", "0").returncode == 0
    server.start(RECOLLECT_ALLOWED_HOSTS="chat.example")
    (link,) = (line.split()[-1] for line in server.output if line.startswith("First visit"))
    path = link[link.index("/setup/") :]
    assert server.get("/setup/")[0] == server.get("/setup/?token=guessed")[0] == 404
    assert server.get(path)[0] == 200
