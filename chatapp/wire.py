"""The WebSocket protocol: one JSON object a frame, `type` says which. Frames from a client are parsed into dataclasses here,
without I/O; frames to a client are dataclasses that `encode` turns into text.

A client never sends history: it names a conversation and a message, and the server reads the rest from the database.
Every frame to a client about a turn carries conversation and message, so that a tab which moved on never shows it elsewhere.

Text of a reply travels as blocks of finished HTML, in order. A block that `is_done` is sent once and never changes; the
last one may be sent again with a longer text. A tab applies `snapshot`, then each `delta` whose seq is one above its own;
on a gap it sends `watch` again.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from chatapp.errors import Invalid

MAX_FRAME_BYTES = 262_144  # also given to Daphne
MAX_MESSAGE_CHARS = 100_000
MAX_JSON_DEPTH = 8


# --- from a client ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watch:
    """Follow one conversation. Answer: a TurnSnapshot when a turn runs there, and everything that follows."""

    TYPE: ClassVar = "watch"
    conversation: uuid.UUID


@dataclass(frozen=True, slots=True)
class Unwatch:
    TYPE: ClassVar = "unwatch"
    conversation: uuid.UUID


@dataclass(frozen=True, slots=True)
class TurnSend:
    """A new user message under `parent` (None: the first). client_id makes it idempotent.

    A conversation that does not exist yet is created under the id that the client chose (`is_new`).
    """

    TYPE: ClassVar = "turn.send"
    conversation: uuid.UUID
    client_id: uuid.UUID
    text: str
    parent: uuid.UUID | None = None
    is_new: bool = False
    preset: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class TurnEdit:
    """A sibling of user message `message` with another text, and a reply to it."""

    TYPE: ClassVar = "turn.edit"
    conversation: uuid.UUID
    message: uuid.UUID
    client_id: uuid.UUID
    text: str


@dataclass(frozen=True, slots=True)
class TurnRegenerate:
    """A sibling of assistant message `message`."""

    TYPE: ClassVar = "turn.regenerate"
    conversation: uuid.UUID
    message: uuid.UUID
    client_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class TurnContinue:
    """Go on writing assistant message `message`, which was stopped, interrupted or cut by length, or failed."""

    TYPE: ClassVar = "turn.continue"
    conversation: uuid.UUID
    message: uuid.UUID


@dataclass(frozen=True, slots=True)
class TurnStop:
    TYPE: ClassVar = "turn.stop"
    conversation: uuid.UUID
    message: uuid.UUID


@dataclass(frozen=True, slots=True)
class Ack:
    """`seq` of `message` has been shown: gives the socket credit for more."""

    TYPE: ClassVar = "ack"
    message: uuid.UUID
    seq: int


@dataclass(frozen=True, slots=True)
class Ping:
    TYPE: ClassVar = "ping"


ClientFrame = Watch | Unwatch | TurnSend | TurnEdit | TurnRegenerate | TurnContinue | TurnStop | Ack | Ping
CLIENT_FRAMES: dict[str, type[ClientFrame]] = {
    cls.TYPE: cls
    for cls in (Watch, Unwatch, TurnSend, TurnEdit, TurnRegenerate, TurnContinue, TurnStop, Ack, Ping)
}


# --- to a client ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """One top-level block of a reply, sanitised HTML."""

    index: int
    html: str
    is_done: bool


@dataclass(frozen=True, slots=True)
class TurnStats:
    """The numbers under a reply. prompt = reused_ram + reused_disk + computed."""

    prompt_tokens: int
    reused_ram: int
    reused_disk: int
    computed: int
    generated: int
    ttft_ms: float
    decode_tok_s: float
    finish_reason: str


@dataclass(frozen=True, slots=True)
class TurnAccepted:
    """Stored, durably. The user message (None for regenerate and continue) and the open assistant message.

    `is_duplicate`: this client_id had been accepted before; nothing was stored twice.
    """

    TYPE: ClassVar = "turn.accepted"
    conversation: uuid.UUID
    client_id: uuid.UUID | None
    user_message: uuid.UUID | None
    user_html: str
    user_text: str
    message: uuid.UUID
    title: str
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class TurnStage:
    """Where a running turn is: queued (position), reading (done of total tokens), writing."""

    TYPE: ClassVar = "turn.stage"
    conversation: uuid.UUID
    message: uuid.UUID
    seq: int
    stage: str
    position: int = 0
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class TurnSnapshot:
    """All of a running turn as of seq; replaces whatever the tab shows for this message."""

    TYPE: ClassVar = "turn.snapshot"
    conversation: uuid.UUID
    message: uuid.UUID
    seq: int
    stage: str
    blocks: tuple[Block, ...]
    position: int = 0
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class TurnDelta:
    """New or longer blocks. Blocks with an index from `num_blocks` on no longer exist (a table grew out of a paragraph)."""

    TYPE: ClassVar = "turn.delta"
    conversation: uuid.UUID
    message: uuid.UUID
    seq: int
    blocks: tuple[Block, ...]
    num_blocks: int


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The turn has ended as `status` and is stored. blocks is the whole reply: what a tab shows equals what is stored."""

    TYPE: ClassVar = "turn.end"
    conversation: uuid.UUID
    message: uuid.UUID
    seq: int
    status: str
    blocks: tuple[Block, ...]
    stats: TurnStats | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class ConversationChanged:
    """A hint: read it again (another tab sent, renamed or deleted)."""

    TYPE: ClassVar = "conversation.changed"
    conversation: uuid.UUID
    title: str = ""
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Error:
    """A refused frame. client_id and conversation say which one, where it had them."""

    TYPE: ClassVar = "error"
    code: str
    message: str
    detail: dict[str, Any] = field(default_factory=dict)
    client_id: uuid.UUID | None = None
    conversation: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class Pong:
    TYPE: ClassVar = "pong"


@dataclass(frozen=True, slots=True)
class ServerDraining:
    """The server is about to stop; reconnect with back-off."""

    TYPE: ClassVar = "server.draining"


ServerFrame = (
    TurnAccepted
    | TurnStage
    | TurnSnapshot
    | TurnDelta
    | TurnEnd
    | ConversationChanged
    | Error
    | Pong
    | ServerDraining
)


def encode(frame: ServerFrame) -> str:
    """JSON text of a frame; UUIDs as strings."""
    return json.dumps({"type": frame.TYPE, **asdict(frame)}, default=str, ensure_ascii=False, separators=(",", ":"))


def parse(text: str) -> ClientFrame:
    """A frame from a client. Raises Invalid, with a sentence for a person, for anything that is not one.

    To be written with the consumer: exact fields, exact types, bounded sizes and depth, no NUL, no lone surrogate.
    """
    raise Invalid("not implemented")
