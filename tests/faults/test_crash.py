"""kill -9 at any moment: what was acknowledged is there once, every turn has one end, and it can be continued."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.faults.browser import Socket, send_frame
from tests.faults.conftest import ServerProcess
from tests.faults.paced_worker import words
from tests.patience import PATIENCE_S

OPEN = "SELECT count(*) FROM chatapp_message WHERE status IN ('queued', 'reading', 'writing')"
COPIES = "SELECT count(*) FROM chatapp_message WHERE client_id = ?"


async def send_until_killed(server: ServerProcess, frames: list[dict[str, Any]], num_acked: int) -> set[str]:
    """Send all at once; kill as soon as so many are acknowledged. Returns the client ids that were."""
    socket = await Socket.open(server.port, server.cookies["ada"])
    acked: set[str] = set()
    try:
        for frame in frames:
            await socket.send(frame)
        while len(acked) < num_acked:
            acked.add((await socket.next("turn.accepted"))["client_id"])
    finally:
        server.kill()
        socket.drop()
    return acked


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
async def test_an_acknowledged_message_survives_once(stopped_server: ServerProcess, seed: int) -> None:
    server, rounds = stopped_server, random.Random(seed)
    frames = [send_frame(f"message {n}") for n in range(20)]
    server.start(RECOLLECT_TEST_WORDS="3")
    acked = await send_until_killed(server, frames, rounds.randint(1, 20))
    for frame in frames:
        ((num,),) = server.query(COPIES, frame["client_id"])
        assert num == 1 if frame["client_id"] in acked else num <= 1
    server.start(RECOLLECT_TEST_WORDS="3")
    socket = await Socket.open(server.port, server.cookies["ada"])
    for frame in frames:  # a browser sends again what it is not sure of
        answer = await socket.ask(frame)
        assert answer["type"] == "turn.accepted"
        assert answer["is_duplicate"] or frame["client_id"] not in acked
    for frame in frames:
        assert server.query(COPIES, frame["client_id"]) == [(1,)]
    assert server.query("SELECT count(*) FROM chatapp_message") == [(40,)]


@pytest.mark.parametrize("moment", ["queued", "reading", 1, 30])
async def test_a_turn_that_was_cut_off_is_interrupted_and_goes_on(
    stopped_server: ServerProcess, moment: str | int
) -> None:
    server = stopped_server
    server.start(RECOLLECT_TEST_WORDS="60", RECOLLECT_TEST_PACE="1" if moment in ("queued", "reading") else "0.05")
    socket = await Socket.open(server.port, server.cookies["ada"])
    accepted = await socket.ask(send_frame())
    message, shown = accepted["message"], 0
    if moment == "reading":
        await socket.reach("reading")
    elif isinstance(moment, int):
        while shown < moment:
            blocks = (await socket.next("turn.delta"))["blocks"]
            shown = blocks[-1]["html"].count("w")
        async with asyncio.timeout(PATIENCE_S):
            while server.message(message)[1].count(" ") < shown:  # saved while it goes on
                await asyncio.sleep(0.02)
    server.kill()
    socket.drop()
    assert server.query(OPEN) == [(1,)]

    server.start(RECOLLECT_TEST_WORDS="60", RECOLLECT_TEST_PACE="0.001")
    status, text = server.message(message)
    assert status == "interrupted"
    assert text == words(text.count(" "))
    assert text.count(" ") >= shown
    server.kill()
    before = server.query("SELECT * FROM chatapp_message")
    server.start(RECOLLECT_TEST_WORDS="60", RECOLLECT_TEST_PACE="0.001")
    assert server.query("SELECT * FROM chatapp_message") == before  # a second start changes nothing

    socket = await Socket.open(server.port, server.cookies["ada"])
    await socket.send({"type": "turn.continue", "conversation": accepted["conversation"], "message": message})
    assert (await socket.next("turn.end"))["status"] == "done"
    assert server.message(message) == ("done", words(60))  # nothing twice, nothing left out
    assert server.query("SELECT count(*) FROM chatapp_message") == [(2,)]


async def test_the_end_is_stored_before_it_is_said(server: ServerProcess) -> None:
    socket = await Socket.open(server.port, server.cookies["ada"])
    message = (await socket.ask(send_frame()))["message"]
    await socket.next("turn.end")
    server.kill()
    assert server.message(message) == ("done", words(20))
    assert server.query("SELECT num_prompt_tokens > 0 FROM chatapp_generation") == [(1,)]
