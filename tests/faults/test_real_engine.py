"""The same crash, with the real engine and the real model behind the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.browser import Socket, send_frame
from tests.faults.conftest import ServerProcess

pytestmark = [pytest.mark.model, pytest.mark.slow]


async def test_killed_in_mid_reply_it_goes_on_where_it_was(stopped_server: ServerProcess, model_path: Path) -> None:
    server = stopped_server
    server.module = "manage"
    server.start(RECOLLECT_MODEL=str(model_path))
    socket = await Socket.open(server.port, server.cookies["ada"])
    accepted = await socket.ask(send_frame("Write a long story about the keeper of a lighthouse."))
    message = accepted["message"]
    shown = ""
    while len(shown) < 80:
        frame = await socket.next("turn.delta", "turn.end")
        assert frame["type"] == "turn.delta", "the reply was shorter than the test needs"
        shown = frame["blocks"][-1]["html"]
    server.kill()

    server.start(RECOLLECT_MODEL=str(model_path))
    status, partial = server.message(message)
    assert status == "interrupted"
    socket = await Socket.open(server.port, server.cookies["ada"])
    await socket.send({"type": "turn.continue", "conversation": accepted["conversation"], "message": message})
    await socket.reach("writing")
    await socket.send({"type": "turn.stop", "conversation": accepted["conversation"], "message": message})
    end = await socket.next("turn.end")
    status, text = server.message(message)
    assert (end["status"], status) == ("stopped", "stopped")
    assert text.startswith(partial)
    assert server.query("SELECT count(*) FROM chatapp_message") == [(2,)]

    # The next turn reuses all but its own words: what was generated is replayed by its ids.
    frame = send_frame("Thanks.", conversation=accepted["conversation"], parent=message, is_new=False)
    await socket.send(frame)
    answer = await socket.next("turn.accepted")
    await socket.reach("writing")
    await socket.send({"type": "turn.stop", **{name: answer[name] for name in ("conversation", "message")}})
    stats = (await socket.next("turn.end"))["stats"]
    assert stats["reused_ram"] > 0.5 * stats["prompt_tokens"]
    assert stats["prompt_tokens"] == stats["reused_ram"] + stats["reused_disk"] + stats["computed"]
