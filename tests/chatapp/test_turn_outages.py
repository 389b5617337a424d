"""Turns whose database is away: the reply waits in memory, tabs are told, and it gets its true ending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chatapp.errors import StorageUnavailable
from chatapp.markdown import render_blocks
from chatapp.models import Generation, User
from chatapp.services import turns
from chatapp.turn import writer
from chatapp.turn.live import Live
from tests.chatapp.conftest import ended, send, started, stored, until
from tests.chatapp.fake_worker import FakeWorker
from tests.chatapp.test_turn_live import Tab

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Writes of a running turn fail while `is_down`, for this `reason`."""
    state: dict[str, Any] = {"is_down": False, "reason": "unreachable", "num_refused": 0}

    def failing(function: Callable[..., bool]) -> Callable[..., bool]:
        def call(**kwargs: Any) -> bool:
            if state["is_down"]:
                state["num_refused"] += 1
                raise StorageUnavailable("No.", reason=state["reason"])
            return function(**kwargs)

        return call

    for name in ("turn_save", "turn_progress", "turn_close"):
        monkeypatch.setattr(turns, name, failing(getattr(turns, name)))
    monkeypatch.setattr(writer, "FIRST_RETRY_S", 0.01)
    return state


@pytest.mark.usefixtures("quick_saves")
async def test_a_short_outage_costs_nothing(alice: User, worker: FakeWorker, outage: dict[str, Any]) -> None:
    turn = await started(Live(), alice, send())
    worker.write("kept ")
    outage["is_down"] = True
    await until(lambda: outage["num_refused"] == 1)
    worker.write("in memory")
    worker.finish()
    await until(lambda: outage["num_refused"] >= 3)
    outage["is_down"] = False
    assert (await ended(turn)).status == "done"
    assert (await stored(turn)).text == "kept in memory"


@pytest.mark.parametrize(
    ("reason", "said"), [("full", "disk is full"), ("unreachable", "cannot be reached"), ("damaged", "be written to")]
)
async def test_a_reply_that_is_not_stored_yet_says_so_and_then_has_its_true_ending(
    alice: User, worker: FakeWorker, outage: dict[str, Any], reason: str, said: str
) -> None:
    live = Live()
    tab = Tab(live)
    frame = send()
    tab.watcher.watch(frame.conversation)
    turn = await started(live, alice, frame)
    outage.update(is_down=True, reason=reason)
    worker.write("kept")
    worker.finish(text=" *whole*")
    await until(lambda: turn.stage == "storing")
    late = Tab(live)
    late.watcher.watch(frame.conversation)
    for shown in (tab, late):
        shown.read()
        assert (shown.stage, shown.html, shown.end) == ("storing", list(render_blocks("kept *whole*")), None)
        assert said in shown.problem
        assert "not stored yet" in shown.problem
    seen = turn.seq
    outage["is_down"] = False
    end = await ended(turn)
    assert end.seq > seen
    assert (end.status, end.error, live.turns) == ("done", "", [])
    message = await stored(turn)
    assert (message.status, message.text, message.error) == ("done", "kept *whole*", "")
    assert await Generation.objects.filter(message=message).aexists()
