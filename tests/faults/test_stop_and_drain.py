"""Ends that somebody wants: Stop at any moment, SIGTERM, a second Ctrl-C, a dropped line that is neither."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from tests.faults.browser import Socket, send_frame
from tests.faults.conftest import ServerProcess
from tests.faults.paced_worker import words
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("moment", ["at once", "reading", "writing"])
async def test_stop_ends_a_turn(stopped_server: ServerProcess, moment: str) -> None:
    server = stopped_server
    pace = "1" if moment == "reading" else "0.02"  # so that it is still reading when we hear of it
    server.start(RECOLLECT_TEST_WORDS="1000000", RECOLLECT_TEST_PACE=pace)
    socket = await Socket.open(server.port, server.cookies["ada"])
    accepted = await socket.ask(send_frame())
    if moment != "at once":
        await socket.reach(moment)
    stop = {"type": "turn.stop", "conversation": accepted["conversation"], "message": accepted["message"]}
    await socket.send(stop)
    await socket.send(stop)
    end = await socket.next("turn.end")
    status, text = server.message(accepted["message"])
    assert (end["status"], status) == ("stopped", "stopped")
    assert text == words(text.count(" "))
    await socket.send(stop)  # when it is over: neither an error nor a change
    assert (await socket.ask({"type": "ping"}))["type"] == "pong"
    assert server.message(accepted["message"]) == (status, text)


async def test_another_cannot_stop_it(slow_server: ServerProcess) -> None:
    server = slow_server
    ada = await Socket.open(server.port, server.cookies["ada"])
    bob = await Socket.open(server.port, server.cookies["bob"])
    accepted = await ada.ask(send_frame())
    ids = {"conversation": accepted["conversation"], "message": accepted["message"]}
    assert (await bob.ask({"type": "turn.stop", **ids}))["code"] == "not_found"
    assert (await ada.next("turn.delta"))["message"] == accepted["message"]


async def test_a_dropped_line_is_not_stop(server: ServerProcess) -> None:
    socket = await Socket.open(server.port, server.cookies["ada"])
    message = (await socket.ask(send_frame()))["message"]
    socket.drop()
    async with asyncio.timeout(PATIENCE_S):
        while server.message(message)[0] != "done":
            await asyncio.sleep(0.05)
    assert server.message(message)[1] == words(20)


async def test_the_same_send_many_times_over_two_sockets_is_one_turn(server: ServerProcess) -> None:
    sockets = [await Socket.open(server.port, server.cookies["ada"]) for _ in range(2)]
    frame = send_frame()
    for _ in range(25):
        for socket in sockets:
            await socket.send(frame)
    answers = [await socket.next("turn.accepted", "error") for socket in sockets for _ in range(25)]
    assert {answer["message"] for answer in answers} == {answers[0]["message"]}
    assert [answer["is_duplicate"] for answer in answers].count(False) == 1
    assert server.query("SELECT count(*) FROM chatapp_message") == [(2,)]
    assert (await sockets[0].ask({**frame, "text": "another"}))["code"] == "conflict"


@pytest.mark.slow
async def test_sigterm_lets_short_turns_end_and_interrupts_long_ones(slow_server: ServerProcess) -> None:
    server = slow_server
    sockets = [await Socket.open(server.port, server.cookies["ada"]) for _ in range(3)]
    messages = [(await socket.ask(send_frame()))["message"] for socket in sockets for _ in range(5)]
    server.terminate()
    for socket in sockets:
        await socket.next("server.draining")
    assert server.get("/healthz/ready")[0] == 503
    assert server.get("/healthz/live")[0] == 200
    assert (await sockets[0].ask(send_frame()))["code"] == "draining"
    await sockets[0].next("turn.delta")  # turns go on, for seven seconds
    assert await asyncio.gather(*(socket.close_code() for socket in sockets)) == [1001] * 3
    assert server.wait() == 0
    for message in messages:
        status, text = server.message(message)
        assert status == "interrupted"
        assert text == words(text.count(" "))


async def test_sigterm_waits_for_a_turn_that_is_nearly_done(server: ServerProcess) -> None:
    socket = await Socket.open(server.port, server.cookies["ada"])
    message = (await socket.ask(send_frame()))["message"]
    server.terminate()
    assert (await socket.next("turn.end"))["status"] == "done"
    assert await socket.close_code() == 1001
    assert server.wait() == 0
    assert server.message(message) == ("done", words(20))


async def test_a_second_ctrl_c_does_not_wait(slow_server: ServerProcess) -> None:
    server = slow_server
    socket = await Socket.open(server.port, server.cookies["ada"])
    await socket.ask(send_frame())
    server.terminate(signal.SIGINT)
    await socket.next("server.draining")
    server.terminate(signal.SIGINT)
    server.wait()


async def test_the_log_has_ids_and_no_texts(server: ServerProcess) -> None:
    socket = await Socket.open(server.port, server.cookies["ada"])
    accepted = await socket.ask(send_frame("my secret question"))
    await socket.next("turn.end")
    await socket.ask(json.dumps({"type": "secret\r\nforged line"}))
    server.terminate()
    server.wait()
    assert accepted["message"] in server.log()
    assert "secret" not in server.log()
    assert "w19" not in server.log()
    assert "Traceback" not in server.log()
