"""A PostgreSQL server that goes away in the middle of a reply and comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.faults.away_postgres import Postgres, own_postgres
from tests.faults.browser import Socket, send_frame
from tests.faults.conftest import ServerProcess, environment
from tests.faults.paced_worker import words

pytestmark = pytest.mark.slow


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with own_postgres() as postgres:
        yield postgres


@pytest.fixture
def server(postgres: Postgres, tmp_path: Path) -> Iterator[ServerProcess]:
    """Words of 20 ms, so that a restart falls into the reply."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.prepare"],
        cwd=ROOT,
        env=environment(tmp_path, DATABASE_URL=postgres.url),
        capture_output=True,
        text=True,
        check=True,
    )
    server = ServerProcess(tmp_path, json.loads(done.stdout))
    server.start(DATABASE_URL=postgres.url, RECOLLECT_TEST_WORDS="200", RECOLLECT_TEST_PACE="0.02")
    yield server
    server.kill()


async def written(socket: Socket, num_words: int) -> None:
    while (await socket.next("turn.delta"))["blocks"][-1]["html"].count("w") < num_words:
        pass


async def test_a_restart_in_mid_reply_costs_nothing(server: ServerProcess, postgres: Postgres) -> None:
    socket = await Socket.open(server.port, server.cookies["ada"])
    message = (await socket.ask(send_frame()))["message"]
    await written(socket, 50)
    postgres.control("restart", "-m", "immediate")
    assert (await socket.next("turn.end"))["status"] == "done"
    assert postgres.message(message) == ("done", words(200))
    again = await socket.ask(send_frame())  # without a restart of the application
    assert again["type"] == "turn.accepted"
    assert server.get("/healthz/ready")[0] == 200


async def test_while_it_is_away_sends_are_refused_and_the_reply_is_kept(
    server: ServerProcess, postgres: Postgres
) -> None:
    socket = await Socket.open(server.port, server.cookies["ada"])
    other = await Socket.open(server.port, server.cookies["ada"])
    message = (await socket.ask(send_frame()))["message"]
    await written(socket, 20)
    postgres.control("stop", "-m", "immediate")
    await other.send(send_frame())
    assert (await other.next("error"))["code"] == "storage_unavailable"
    assert server.get("/healthz/live")[0] == 200
    await written(socket, 150)  # the engine went on
    postgres.start()
    assert (await socket.next("turn.end"))["status"] == "done"
    assert postgres.message(message) == ("done", words(200))


def test_the_readiness_check_says_so(server: ServerProcess, postgres: Postgres) -> None:
    postgres.control("stop", "-m", "immediate")
    status, body = server.get("/healthz/ready", Cookie=f"sessionid={server.cookies['ada']}")
    assert (status, json.loads(body)) == (503, {"ready": False, "database": "unavailable", "engine": "ready"})
    postgres.start()


async def test_after_a_long_outage_it_is_found_again_at_once(server: ServerProcess, postgres: Postgres) -> None:
    cookie = server.cookies["ada"]
    postgres.control("stop", "-m", "immediate")
    for _ in range(2):  # each waits for the pool: by now its pauses have grown
        assert (await (await Socket.open(server.port, cookie)).next())["code"] == "storage_unavailable"
    postgres.start()
    socket = await Socket.open(server.port, cookie)
    await socket.send({"type": "ping"})
    assert (await socket.next())["type"] == "pong"
