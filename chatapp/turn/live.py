"""The turns that run in this process and the sockets that watch them.

A `Watcher` belongs to one socket. It is given a snapshot, then the tail, seq by seq. What has been sent and not
acknowledged is bounded: a tab that does not read is downgraded to a later snapshot, and closed when it stays away.
Everything here runs on the event loop and awaits nothing but a watcher's next frame; nothing here touches the database.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from chatapp import wire

MAX_UNACKED_CHARS = 256 * 1024
MAX_PENDING_FRAMES = 1024
STALL_S = 30.0
CLOSE_GOING_AWAY = 1001
CLOSE_SLOW = 4408


@dataclass(slots=True, eq=False)
class LiveTurn:
    """A turn on its way. `seq` counts what has been published about it; `blocks` is what a tab shows as of `seq`."""

    conversation_id: UUID
    message_id: UUID
    user_id: int
    on_text: Callable[[str, str], None] | None = None  # a listener in this process: more thinking, more of the answer
    seq: int = 0
    stage: str = "queued"
    position: int = 0
    num_done: int = 0
    num_total: int = 0
    problem: str = ""  # why the database does not take it, while it is "storing"
    blocks: list[wire.Block] = field(default_factory=list)
    thinking: wire.Thinking | None = None
    is_stopping: bool = False  # a person pressed Stop
    end: wire.TurnEnd | None = None
    task: asyncio.Task[None] | None = None

    @property
    def request_id(self) -> str:
        """The name of this turn in the engine."""
        return str(self.message_id)

    def snapshot(self) -> wire.TurnSnapshot:
        """All of the turn as of `seq`."""
        return wire.TurnSnapshot(
            conversation=self.conversation_id,
            message=self.message_id,
            seq=self.seq,
            stage=self.stage,
            blocks=tuple(self.blocks),
            position=self.position,
            done=self.num_done,
            total=self.num_total,
            problem=self.problem,
            thinking=self.thinking,
        )


@dataclass(slots=True)
class _Lag:
    """A turn that a watcher is behind on: no deltas until it has caught up. `end` is the last frame, once it exists."""

    turn: LiveTurn
    timer: asyncio.TimerHandle
    end: str | None = None


@dataclass(slots=True)
class _Unacked:
    """What has been sent about one message and not been acknowledged: (seq, characters), oldest first."""

    conversation_id: UUID
    frames: deque[tuple[int, int]] = field(default_factory=deque)


class Live:
    """The registry: one running turn per conversation, any number of watchers."""

    def __init__(self) -> None:
        self._turns: dict[UUID, LiveTurn] = {}  # by message
        self._turn_of: dict[UUID, LiveTurn] = {}  # by conversation
        self._watchers_of: dict[UUID, set[Watcher]] = {}  # by conversation
        self._sockets: set[Watcher] = set()
        self.on_left: Callable[[UUID], None] = lambda conversation_id: None  # the last tab has gone

    @property
    def turns(self) -> list[LiveTurn]:
        """The running turns, oldest first."""
        return list(self._turns.values())

    @property
    def num_sockets(self) -> int:
        """How many sockets are open."""
        return len(self._sockets)

    def get(self, message_id: UUID) -> LiveTurn | None:
        """The running turn that writes this message."""
        return self._turns.get(message_id)

    def in_conversation(self, conversation_id: UUID) -> LiveTurn | None:
        """The running turn of a conversation."""
        return self._turn_of.get(conversation_id)

    def has_watchers(self, turn: LiveTurn) -> bool:
        """Whether anybody wants to see its blocks."""
        return self.is_open(turn.conversation_id)

    def is_open(self, conversation_id: UUID) -> bool:
        """Whether a tab of this process shows a conversation."""
        return bool(self._watchers_of.get(conversation_id))

    def tell(self, conversation_id: UUID, frame: wire.ServerFrame) -> None:
        """A frame to the tabs that show a conversation. What is not about a turn costs no credit."""
        for watcher in list(self._watchers_of.get(conversation_id, ())):
            watcher.reply(frame)

    def add(self, turn: LiveTurn) -> None:
        """Register a turn and show its beginning to the tabs that watch its conversation.

        The turn before it may still be there: ended in the database, its last frame on the way.
        """
        self._turns[turn.message_id] = turn
        self._turn_of[turn.conversation_id] = turn
        for watcher in self._watchers(turn):
            watcher.show(turn)

    def publish_stage(
        self,
        turn: LiveTurn,
        *,
        stage: str,
        position: int = 0,
        num_done: int = 0,
        num_total: int = 0,
        problem: str = "",
    ) -> None:
        """Tell where the turn is; says nothing when nothing changed."""
        place = (stage, position, num_done, num_total, problem)
        if (turn.stage, turn.position, turn.num_done, turn.num_total, turn.problem) == place:
            return
        turn.stage, turn.position, turn.num_done, turn.num_total, turn.problem = place
        turn.seq += 1
        frame = wire.TurnStage(
            conversation=turn.conversation_id,
            message=turn.message_id,
            seq=turn.seq,
            stage=stage,
            position=position,
            done=num_done,
            total=num_total,
            problem=problem,
        )
        self._publish(turn, frame)

    def publish_blocks(
        self, turn: LiveTurn, changed: Sequence[wire.Block], num_blocks: int, thinking: wire.Thinking | None = None
    ) -> int:
        """Show new and longer blocks. Returns the size of the frame in characters, 0 when nothing changed."""
        if not changed and (num_blocks, thinking) == (len(turn.blocks), turn.thinking):
            return 0
        _apply(turn.blocks, changed, num_blocks)
        turn.thinking = thinking
        turn.seq += 1
        frame = wire.TurnDelta(
            conversation=turn.conversation_id,
            message=turn.message_id,
            seq=turn.seq,
            blocks=tuple(changed),
            num_blocks=num_blocks,
            thinking=thinking,
        )
        return self._publish(turn, frame)

    def publish_end(
        self,
        turn: LiveTurn,
        *,
        status: str,
        blocks: Sequence[wire.Block],
        stats: wire.TurnStats | None,
        error: str,
        thinking: wire.Thinking | None = None,
    ) -> None:
        """The last frame of a turn; it leaves the registry."""
        turn.blocks, turn.thinking = list(blocks), thinking
        turn.seq += 1
        turn.end = wire.TurnEnd(
            conversation=turn.conversation_id,
            message=turn.message_id,
            seq=turn.seq,
            status=status,
            blocks=tuple(blocks),
            stats=stats,
            error=error,
            thinking=thinking,
        )
        if self._turns.get(turn.message_id) is turn:  # else it is being continued already
            del self._turns[turn.message_id]
        if self._turn_of.get(turn.conversation_id) is turn:
            del self._turn_of[turn.conversation_id]
        self._publish(turn, turn.end)

    def broadcast(self, frame: wire.ServerFrame) -> None:
        """The same frame to every socket."""
        for watcher in list(self._sockets):
            watcher.reply(frame)

    def close_all(self, code: int = CLOSE_GOING_AWAY) -> None:
        """Close every socket."""
        for watcher in list(self._sockets):
            watcher.close(code)

    def _publish(self, turn: LiveTurn, frame: wire.ServerFrame) -> int:
        watchers = self._watchers(turn)
        if not watchers:
            return 0
        text = wire.encode(frame)
        for watcher in watchers:
            watcher.push(turn, text)
        return len(text)

    def _watchers(self, turn: LiveTurn) -> list[Watcher]:
        return list(self._watchers_of.get(turn.conversation_id, ()))


class Watcher:
    """One socket's view: its answers and the turns of the conversations that it follows, in the order of saying."""

    def __init__(self, live: Live, *, max_unacked_chars: int = MAX_UNACKED_CHARS, stall_s: float = STALL_S) -> None:
        self.close_code: int | None = None
        self._live = live
        self._max_unacked_chars = max_unacked_chars
        self._stall_s = stall_s
        self._pending: list[str] = []
        self._wakeup = asyncio.Event()
        self._conversations: set[UUID] = set()
        self._unacked: dict[UUID, _Unacked] = {}  # by message
        self._unacked_chars = 0
        self._lags: dict[UUID, _Lag] = {}  # by message
        live._sockets.add(self)

    async def frames(self) -> AsyncIterator[str]:
        """What to send, until `close`; then `close_code` says why."""
        while self.close_code is None:
            self._wakeup.clear()
            for text in self.take():
                yield text
            if self.close_code is None:
                await self._wakeup.wait()
        if self.close_code != CLOSE_SLOW:  # else nobody reads
            for text in self.take():
                yield text

    def take(self) -> list[str]:
        """What waits to be sent, which is then taken as sent."""
        taken = list(self._pending)
        self._pending.clear()
        return taken

    def reply(self, frame: wire.ServerFrame) -> None:
        """An answer to this socket alone."""
        self._enqueue(wire.encode(frame))

    def watch(self, conversation_id: UUID) -> None:
        """Follow a conversation; a running turn is shown at once."""
        if self.close_code is not None:
            return
        self._conversations.add(conversation_id)
        self._live._watchers_of.setdefault(conversation_id, set()).add(self)
        turn = self._live.in_conversation(conversation_id)
        if turn is not None:
            self.show(turn)

    def follows(self, conversation_id: UUID) -> bool:
        """Whether it is among those that this tab watches."""
        return conversation_id in self._conversations

    def unwatch(self, conversation_id: UUID) -> bool:
        """Follow it no longer; what it had not acknowledged there is forgiven. False: it was not followed."""
        if conversation_id not in self._conversations:
            return False
        self._conversations.remove(conversation_id)
        watchers = self._live._watchers_of.get(conversation_id, set())
        watchers.discard(self)
        if not watchers:
            self._live._watchers_of.pop(conversation_id, None)
            self._live.on_left(conversation_id)
        lagging = [message_id for message_id, lag in self._lags.items() if lag.turn.conversation_id == conversation_id]
        unacked = [message_id for message_id, sent in self._unacked.items() if sent.conversation_id == conversation_id]
        for message_id in (*lagging, *unacked):
            self._forgive(message_id)
        return True

    def show(self, turn: LiveTurn) -> None:
        """Send a snapshot, or, without credit, promise one for later."""
        self.push(turn, wire.encode(turn.snapshot()))

    def push(self, turn: LiveTurn, text: str) -> None:
        """One frame about a turn; `turn.seq` is its seq. Without credit it is dropped, and a snapshot owed instead."""
        lag = self._lags.get(turn.message_id)
        if lag is None and self._unacked_chars and self._unacked_chars + len(text) > self._max_unacked_chars:
            timer = asyncio.get_running_loop().call_later(self._stall_s, self.close, CLOSE_SLOW)
            lag = self._lags[turn.message_id] = _Lag(turn, timer)
        if lag is None:
            self._send(turn, text)
        elif turn.end is not None:
            lag.end = text

    def ack(self, message_id: UUID, seq: int) -> bool:
        """The tab has shown `seq` of `message_id`. What it was behind on is sent once half the credit is back.

        False: that was known already, or never sent.
        """
        sent = self._unacked.get(message_id)
        frames = sent.frames if sent is not None else deque()
        is_news = bool(frames and frames[0][0] <= seq)
        while frames and frames[0][0] <= seq:
            self._unacked_chars -= frames.popleft()[1]
        if sent is not None and not frames:
            del self._unacked[message_id]
        for lag in list(self._lags.values()):
            if self._unacked_chars > self._max_unacked_chars // 2:
                break
            lag.timer.cancel()
            del self._lags[lag.turn.message_id]
            self._send(lag.turn, lag.end if lag.end is not None else wire.encode(lag.turn.snapshot()))
        return is_news

    def close(self, code: int) -> None:
        """End `frames` and leave the registry; a second call does nothing."""
        if self.close_code is not None:
            return
        self.close_code = code
        for conversation_id in list(self._conversations):
            self.unwatch(conversation_id)
        for message_id in list(self._lags):
            self._forgive(message_id)
        self._live._sockets.discard(self)
        self._wakeup.set()

    def _send(self, turn: LiveTurn, text: str) -> None:
        sent = self._unacked.setdefault(turn.message_id, _Unacked(turn.conversation_id))
        sent.frames.append((turn.seq, len(text)))
        self._unacked_chars += len(text)
        self._enqueue(text)

    def _enqueue(self, text: str) -> None:
        if self.close_code is not None:
            return
        self._pending.append(text)
        self._wakeup.set()
        if len(self._pending) > MAX_PENDING_FRAMES:
            self.close(CLOSE_SLOW)

    def _forgive(self, message_id: UUID) -> None:
        lag = self._lags.pop(message_id, None)
        if lag is not None:
            lag.timer.cancel()
        sent = self._unacked.pop(message_id, None)
        if sent is not None:
            self._unacked_chars -= sum(num_chars for _seq, num_chars in sent.frames)


def _apply(blocks: list[wire.Block], changed: Sequence[wire.Block], num_blocks: int) -> None:
    """Put changed blocks in their places, as a tab does."""
    for block in changed:
        if block.index < len(blocks):
            blocks[block.index] = block
        else:
            assert block.index == len(blocks), "a block was left out"
            blocks.append(block)
    del blocks[num_blocks:]


live = Live()  # of this process; tests make their own
