"""What comes from outside and is too much or not ours: origins, bodies, frames, floods, deaf readers, full disks."""

from __future__ import annotations

import asyncio
import socket as sockets

import pytest

from chatapp import wire
from tests.faults.browser import Refused, Socket, send_frame
from tests.faults.conftest import ServerProcess
from tests.patience import PATIENCE_S

MEBIBYTE = 1024**2


@pytest.mark.parametrize(
    "origin", [None, "null", "https://evil.example", "http://127.0.0.1:1", "https://127.0.0.1:{port}"]
)
async def test_foreign_pages_get_403(server: ServerProcess, origin: str | None) -> None:
    with pytest.raises(Refused, match="403"):
        await Socket.open(server.port, server.cookies["ada"], Origin=origin and origin.format(port=server.port))


async def test_a_root_path_header_changes_nothing(server: ServerProcess) -> None:
    plain = server.get("/login/")[1]
    with_header = server.get("/login/", **{"Daphne-Root-Path": "/evil"})[1]
    assert "/evil" not in with_header
    assert len(plain) == len(with_header)
    socket = await Socket.open(server.port, server.cookies["ada"], Daphne_Root_Path="/evil")
    assert (await socket.ask({"type": "ping"}))["type"] == "pong"


def post(port: int, head: str, chunk: bytes, num_chunks: int) -> bytes:
    """What comes back while a body is being sent; sending ends when the server will not have more."""
    with sockets.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(f"POST /login/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{head}\r\n\r\n".encode())
        connection.setblocking(False)
        for _ in range(num_chunks):
            connection.settimeout(PATIENCE_S)
            try:
                connection.sendall(chunk)
            except (BrokenPipeError, ConnectionResetError):
                break
        connection.settimeout(PATIENCE_S)
        try:
            return connection.recv(4096)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_of_64_mib_is_refused_without_being_kept(server: ServerProcess, is_chunked: bool) -> None:
    before = server.rss_bytes()
    if is_chunked:
        chunk = b"%x\r\n" % MEBIBYTE + bytes(MEBIBYTE) + b"\r\n"
        answer = post(server.port, "Transfer-Encoding: chunked", chunk, 64)
    else:
        answer = post(server.port, f"Content-Length: {64 * MEBIBYTE}", bytes(MEBIBYTE), 64)
    assert answer.startswith(b"HTTP/1.1 413")
    assert server.rss_bytes() - before < 8 * MEBIBYTE
    assert server.get("/healthz/live")[0] == 200


async def test_a_frame_over_the_limit_ends_the_socket_and_not_the_server(server: ServerProcess) -> None:
    before = server.rss_bytes()
    socket = await Socket.open(server.port, server.cookies["ada"])
    await socket.send("x" * (wire.MAX_FRAME_BYTES + 1))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await socket.next()
    assert server.rss_bytes() - before < 8 * MEBIBYTE
    assert server.get("/healthz/live")[0] == 200


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"type": "ping", "type": "ping"}', '{"type": NaN}', "\x00"])
async def test_a_wrong_frame_gets_an_error_and_the_socket_stays(server: ServerProcess, text: str) -> None:
    socket = await Socket.open(server.port, server.cookies["ada"])
    assert (await socket.ask(text))["code"] == "invalid"
    assert (await socket.ask({"type": "ping"}))["type"] == "pong"


async def test_a_flood_is_closed_with_4429(server: ServerProcess) -> None:
    socket = await Socket.open(server.port, server.cookies["ada"])
    for _ in range(300):
        await socket.send({"type": "ping"})
    assert await socket.close_code() == 4429


async def test_the_longest_chinese_message_gets_an_answer(server: ServerProcess) -> None:
    socket = await Socket.open(server.port, server.cookies["ada"])
    answer = await socket.ask(send_frame("界" * wire.MAX_MESSAGE_CHARS))
    assert answer["code"] == "window_full"  # three bytes each, and the paced model's tokens are bytes
    assert answer["detail"]["num_prompt_tokens"] > 3 * wire.MAX_MESSAGE_CHARS


async def test_more_turns_than_places_are_refused_at_once(stopped_server: ServerProcess) -> None:
    server = stopped_server
    server.start(
        RECOLLECT_TEST_WORDS="1000000",
        RECOLLECT_TEST_PACE="0.05",
        RECOLLECT_MAX_RUNNING="4",
        RECOLLECT_MAX_WAITING="4",
    )
    ada = await Socket.open(server.port, server.cookies["ada"])
    answers = [await ada.ask(send_frame()) for _ in range(7)]
    assert [answer["type"] for answer in answers] == ["turn.accepted"] * 7
    assert (await ada.ask(send_frame()))["code"] == "busy"
    bob = await Socket.open(server.port, server.cookies["bob"])
    assert (await bob.ask(send_frame()))["type"] == "turn.accepted"  # the last place is for who has none
    await ada.send({"type": "turn.stop", **{name: answers[0][name] for name in ("conversation", "message")}})
    await ada.next("turn.end")
    assert (await bob.ask(send_frame()))["code"] == "busy"


async def test_a_full_disk_refuses_the_send_and_loses_nothing(stopped_server: ServerProcess) -> None:
    server = stopped_server
    server.start(RECOLLECT_TEST_MAX_FILE=str(MEBIBYTE), RECOLLECT_TEST_WORDS="2")
    socket = await Socket.open(server.port, server.cookies["ada"])
    acked = []
    for _ in range(100):
        frame = send_frame("x" * 50_000)
        answer = await socket.ask(frame)
        if answer["type"] == "error":
            break
        acked.append(frame["client_id"])
        await socket.next("turn.end")
    assert answer["code"] == "storage_unavailable"
    assert "full" in answer["message"]
    assert acked
    assert (await socket.ask({"type": "ping"}))["type"] == "pong"
    server.kill()
    assert server.query("PRAGMA integrity_check") == [("ok",)]
    for client_id in acked:
        assert server.query("SELECT count(*) FROM chatapp_message WHERE client_id = ?", client_id) == [(1,)]
    server.start(RECOLLECT_TEST_WORDS="2")  # there is room again
    socket = await Socket.open(server.port, server.cookies["ada"])
    assert (await socket.ask(send_frame()))["type"] == "turn.accepted"
    assert (await socket.next("turn.end"))["status"] == "done"


@pytest.mark.slow
async def test_a_tab_that_does_not_read_costs_bounded_memory(stopped_server: ServerProcess) -> None:
    server = stopped_server
    server.start(RECOLLECT_TEST_WORDS="100000", RECOLLECT_TEST_PACE="0.0005")
    reader = await Socket.open(server.port, server.cookies["bob"])
    deaf = await Socket.open(server.port, server.cookies["ada"])
    await deaf.send(send_frame())
    await asyncio.sleep(3)
    before = server.rss_bytes()
    await asyncio.sleep(10)
    assert server.rss_bytes() - before < 16 * MEBIBYTE
    assert (await reader.ask({"type": "ping"}))["type"] == "pong"
