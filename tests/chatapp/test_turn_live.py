"""The live registry: what a tab shows is what the turn holds, whoever comes, goes, lags or sits beside it."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chatapp import wire
from chatapp.turn.live import CLOSE_SLOW, MAX_PENDING_FRAMES, Live, LiveTurn, Watcher
from tests.examples import examples

CONVERSATION, MESSAGE = uuid.UUID(int=1), uuid.UUID(int=2)


def blocks_of(text: str) -> list[wire.Block]:
    """A paragraph a block: as in Markdown, the last one is open, and a line below can change what stood above."""
    paragraphs = text.split("\n\n")
    return [wire.Block(i, part, i < len(paragraphs) - 1) for i, part in enumerate(paragraphs)]


def publish(live: Live, turn: LiveTurn, text: str) -> None:
    new = blocks_of(text)
    changed = [block for block in new if block.index >= len(turn.blocks) or turn.blocks[block.index] != block]
    live.publish_blocks(turn, changed, len(new))


class Tab:
    """What a browser does with the frames."""

    def __init__(self, live: Live, **limits: Any) -> None:
        self.watcher = Watcher(live, **limits)
        self.seq = -1
        self.html: list[str] = []
        self.stage = self.problem = ""
        self.end: dict[str, Any] | None = None

    def read(self) -> None:
        for text in self.watcher.take():
            self.apply(json.loads(text))

    def apply(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "turn.snapshot":
            assert frame["seq"] >= self.seq
            self.html, self.stage = [block["html"] for block in frame["blocks"]], frame["stage"]
            self.problem = frame["problem"]
        else:
            assert frame["seq"] == self.seq + 1 or (frame["type"] == "turn.end" and frame["seq"] > self.seq)
            if frame["type"] == "turn.delta":
                for block in frame["blocks"]:
                    self.html[block["index"] : block["index"] + 1] = [block["html"]]
                del self.html[frame["num_blocks"] :]
            elif frame["type"] == "turn.stage":
                self.stage, self.problem = frame["stage"], frame["problem"]
            else:
                self.html, self.end = [block["html"] for block in frame["blocks"]], frame
        self.seq = frame["seq"]

    def acknowledge(self) -> None:
        self.watcher.ack(MESSAGE, self.seq)


tabs = st.integers(0, 2)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.text("ab \n", min_size=1, max_size=30)),
        st.tuples(st.just("cut"), st.integers(1, 20)),  # a block takes back what it showed
        st.tuples(st.just("stage"), st.integers(0, 9)),
        st.tuples(st.sampled_from(["watch", "unwatch", "read", "ack", "reconnect"]), tabs),
    ),
    max_size=60,
)


@settings(max_examples=examples(300), deadline=None)
@given(steps, st.sampled_from([1, 300, 2000, 1 << 20]))
def test_whatever_happens_on_the_way_all_tabs_end_with_the_text_of_the_turn(steps: list[Any], credit: int) -> None:
    async def play() -> None:
        live, text = Live(), ""
        turn = LiveTurn(CONVERSATION, MESSAGE, 1)
        open_tabs = [Tab(live, max_unacked_chars=credit) for _ in range(3)]
        live.add(turn)
        for action, value in steps:
            if action == "write":
                text += value
                publish(live, turn, text)
            elif action == "cut":
                text = text[:-value]
                publish(live, turn, text)
            elif action == "stage":
                live.publish_stage(turn, stage="reading", position=0, num_done=value, num_total=9)
            elif action == "watch":
                open_tabs[value].watcher.watch(CONVERSATION)
            elif action == "unwatch":
                open_tabs[value].read()
                open_tabs[value].watcher.unwatch(CONVERSATION)
            elif action == "read":
                open_tabs[value].read()
            elif action == "ack":
                open_tabs[value].read()
                open_tabs[value].acknowledge()
            else:
                open_tabs[value].watcher.close(1001)
                open_tabs[value] = Tab(live, max_unacked_chars=credit)
        for tab in open_tabs:
            tab.watcher.watch(CONVERSATION)
        live.publish_end(turn, status="done", blocks=blocks_of(text), stats=None, error="")
        for tab in open_tabs:
            for _ in range(3):  # what a lagging tab is owed comes with its acknowledgements
                tab.read()
                tab.acknowledge()
            assert tab.end is not None
            assert tab.html == [block.html for block in blocks_of(text)]
            assert tab.seq == turn.seq
            assert tab.watcher._unacked_chars == 0
            assert not tab.watcher._lags
            tab.watcher.close(1001)
        assert not live.turns
        assert not live._watchers_of
        assert live.num_sockets == 0

    asyncio.run(play())


async def test_a_tab_that_comes_late_gets_a_snapshot_and_the_tail() -> None:
    live = Live()
    turn = LiveTurn(CONVERSATION, MESSAGE, 1)
    live.add(turn)
    publish(live, turn, "one\n\ntwo")
    tab = Tab(live)
    tab.watcher.watch(CONVERSATION)
    tab.read()
    assert (tab.html, tab.seq) == (["one", "two"], 1)
    publish(live, turn, "one\n\ntwo three")
    tab.read()
    assert (tab.html, tab.seq) == (["one", "two three"], 2)


async def test_frames_go_only_to_those_who_watch_that_conversation() -> None:
    live = Live()
    turn = LiveTurn(CONVERSATION, MESSAGE, 1)
    live.add(turn)
    tab = Tab(live)
    tab.watcher.watch(uuid.UUID(int=77))
    publish(live, turn, "private")
    assert tab.watcher.take() == []


async def test_a_tab_that_does_not_acknowledge_gets_one_snapshot_when_it_does() -> None:
    live = Live()
    turn = LiveTurn(CONVERSATION, MESSAGE, 1)
    tab = Tab(live, max_unacked_chars=2000)
    tab.watcher.watch(CONVERSATION)
    live.add(turn)
    text = ""
    for _ in range(500):
        text += "word "
        publish(live, turn, text)
    assert sum(map(len, tab.watcher._pending)) <= 2000  # bounded, however much was written
    tab.read()
    shown = tab.seq
    assert shown < turn.seq
    tab.acknowledge()
    (snapshot,) = (json.loads(frame) for frame in tab.watcher.take())
    assert (snapshot["type"], snapshot["seq"]) == ("turn.snapshot", turn.seq)
    tab.apply(snapshot)
    assert tab.html == [text]


async def test_a_tab_that_stays_away_is_closed() -> None:
    live = Live()
    turn = LiveTurn(CONVERSATION, MESSAGE, 1)
    tab = Tab(live, max_unacked_chars=500, stall_s=0.01)
    tab.watcher.watch(CONVERSATION)
    live.add(turn)
    for num in range(1, 50):
        publish(live, turn, "word " * num)
    sent = [frame async for frame in tab.watcher.frames()]  # ends by itself
    assert sum(map(len, sent)) <= 500
    assert tab.watcher.close_code == CLOSE_SLOW
    assert live.num_sockets == 0


async def test_a_tab_that_catches_up_in_time_is_not_closed() -> None:
    live = Live()
    turn = LiveTurn(CONVERSATION, MESSAGE, 1)
    tab = Tab(live, max_unacked_chars=500, stall_s=0.01)
    tab.watcher.watch(CONVERSATION)
    live.add(turn)
    for num in range(1, 50):
        publish(live, turn, "word " * num)
    tab.read()
    tab.acknowledge()
    await asyncio.sleep(0.03)
    assert tab.watcher.close_code is None


async def test_answers_that_nobody_reads_are_bounded() -> None:
    tab = Tab(Live())
    for _ in range(MAX_PENDING_FRAMES + 1):
        tab.watcher.reply(wire.Pong())
    assert tab.watcher.close_code == CLOSE_SLOW


async def test_the_last_words_of_a_server_are_sent_before_the_close() -> None:
    live = Live()
    watcher = Watcher(live)
    live.broadcast(wire.ServerDraining())
    live.close_all()
    assert [json.loads(frame)["type"] async for frame in watcher.frames()] == ["server.draining"]
    assert watcher.close_code == 1001


async def test_a_tab_that_leaves_owes_nothing_for_what_it_saw() -> None:
    live = Live()
    tab = Tab(live, max_unacked_chars=2000)
    for num in range(100):  # from conversation to conversation, each left with its last frame not acknowledged
        turn = LiveTurn(uuid.uuid4(), uuid.uuid4(), num)
        tab.watcher.watch(turn.conversation_id)
        live.add(turn)
        publish(live, turn, "a reply of some length " * 5)
        live.publish_end(turn, status="done", blocks=turn.blocks, stats=None, error="")
        assert tab.watcher.unwatch(turn.conversation_id)
    assert tab.watcher._unacked_chars == 0
    assert not tab.watcher._lags


async def test_the_next_turn_may_begin_before_the_last_frame_of_the_one_before() -> None:
    live = Live()
    watcher = Watcher(live)
    watcher.watch(CONVERSATION)
    first, second = LiveTurn(CONVERSATION, uuid.uuid4(), 1), LiveTurn(CONVERSATION, uuid.uuid4(), 1)
    live.add(first)
    live.add(second)
    live.publish_end(first, status="done", blocks=[], stats=None, error="")
    assert live.in_conversation(CONVERSATION) is second
    live.publish_end(second, status="done", blocks=[], stats=None, error="")
    ended = [frame["message"] for frame in map(json.loads, watcher.take()) if frame["type"] == "turn.end"]
    assert ended == [str(first.message_id), str(second.message_id)]
    assert live.in_conversation(CONVERSATION) is None


async def test_a_reply_may_be_continued_before_its_last_frame() -> None:
    live = Live()
    first, again = LiveTurn(CONVERSATION, MESSAGE, 1), LiveTurn(CONVERSATION, MESSAGE, 1, seq=100)
    live.add(first)
    live.add(again)
    live.publish_end(first, status="stopped", blocks=[], stats=None, error="")
    assert live.get(MESSAGE) is again
    live.publish_end(again, status="done", blocks=[], stats=None, error="")
    assert not live.turns


async def test_a_closed_socket_watches_nothing() -> None:
    live = Live()
    watcher = Watcher(live)
    watcher.close(1001)
    watcher.watch(CONVERSATION)
    live.add(LiveTurn(CONVERSATION, MESSAGE, 1))
    assert watcher.take() == []
    assert not live._watchers_of
