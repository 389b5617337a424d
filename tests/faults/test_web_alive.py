"""While the engine runs flat out, pages come as quickly as they would otherwise, give or take a moment."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from tests.faults.browser import Socket, send_frame
from tests.faults.conftest import ServerProcess

pytestmark = [pytest.mark.model, pytest.mark.slow]

NUM_REQUESTS = 25
NUM_REPLIES = 8
LONG_TEXT = "The keeper climbed the stairs, lit the lamp and wrote down the weather. " * 90  # read for a while


def seconds_per_page(server: ServerProcess) -> list[float]:
    """Of the chat page, with its queries and its template."""
    cookie = f"sessionid={server.cookies['ada']}"
    durations = []
    for _ in range(NUM_REQUESTS):
        started_at = time.perf_counter()
        assert server.get("/", Cookie=cookie)[0] == 200
        durations.append(time.perf_counter() - started_at)
    return durations


async def test_pages_come_within_a_tenth_of_a_second_more(stopped_server: ServerProcess, model_path: Path) -> None:
    server = stopped_server
    server.module = "manage"
    server.start(RECOLLECT_MODEL=str(model_path))
    socket = await Socket.open(server.port, server.cookies["ada"])
    seconds_per_page(server)  # what a process does once
    idle = seconds_per_page(server)
    messages = []
    for number in range(NUM_REPLIES):
        # The number comes first: what prompts have in common is computed once.
        text = f"Chapter {number}. {LONG_TEXT} Copy this chapter word for word."
        messages.append((await socket.ask(send_frame(text)))["message"])

    def statuses() -> set[str]:
        """Stored about once a second."""
        return {server.message(message)[0] for message in messages}

    while statuses() == {"queued"}:
        seconds_per_page(server)
    busy = seconds_per_page(server)
    assert statuses() & {"reading", "writing"}, "the engine had nothing left to do: the replies are too short"
    assert statistics.median(busy) < statistics.median(idle) + 0.1
