"""The WebSocket protocol: one JSON object a frame, `type` says which. Frames from a client are dataclasses that
wire_parsing makes of text; frames to a client are dataclasses that `encode` turns into text.

A client never sends history: it names a conversation and a message, and the server reads the rest from the database.
Every frame to a client about a turn carries conversation and message: a tab which moved on never shows it elsewhere.

Text of a reply travels as blocks of finished HTML, in order. A block that `is_done` is sent once and never changes; the
last one may be sent again with a longer text. A tab applies `snapshot`, then each `delta` whose seq is one above its
own; on a gap it sends `watch` again. It acknowledges what it has shown: a tab that does not gets snapshots only, and is
closed in the end.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, get_args

MAX_MESSAGE_CHARS = 100_000
MAX_FRAME_BYTES = 6 * MAX_MESSAGE_CHARS + 4096  # JSON may write a character as \uXXXX; Daphne gets this limit as well


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

    A conversation that does not exist yet is created under the id that the client chose (`is_new`), with the preset
    and for the model that are named, or the default ones.
    """

    TYPE: ClassVar = "turn.send"
    conversation: uuid.UUID
    client_id: uuid.UUID
    text: str
    parent: uuid.UUID | None = None
    is_new: bool = False
    preset: uuid.UUID | None = None
    model: str | None = None


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
class DraftWarm:
    """What is being written: the engine may read along while it has nothing else to do. Nothing is stored or answered.

    text None: it is no longer so. The other fields as in TurnSend.
    """

    TYPE: ClassVar = "draft.warm"
    conversation: uuid.UUID
    text: str | None
    is_new: bool = False
    preset: uuid.UUID | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class WindowCount:
    """How full would the window be with this draft? Answer: a WindowCounted with the same number.

    text None: nothing is being written. The other fields as in TurnSend. While one is counted the newest of those that
    follow waits, and the others are never answered.
    """

    TYPE: ClassVar = "window.count"
    conversation: uuid.UUID
    number: int
    text: str | None = None
    is_new: bool = False
    preset: uuid.UUID | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """`seq` of `message` has been shown: gives the socket credit for more."""

    TYPE: ClassVar = "ack"
    message: uuid.UUID
    seq: int


@dataclass(frozen=True, slots=True)
class Ping:
    TYPE: ClassVar = "ping"


ClientFrame = (
    Watch
    | Unwatch
    | TurnSend
    | TurnEdit
    | TurnRegenerate
    | TurnContinue
    | TurnStop
    | DraftWarm
    | WindowCount
    | Ack
    | Ping
)
CLIENT_FRAMES: dict[str, type[ClientFrame]] = {cls.TYPE: cls for cls in get_args(ClientFrame)}


# --- to a client ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """One top-level block of a reply, sanitised HTML."""

    index: int
    html: str
    is_done: bool


@dataclass(frozen=True, slots=True)
class Thinking:
    """The first `num_blocks` blocks of a reply are what the model thought. ms: for how long; 0 while it thinks."""

    num_blocks: int
    is_running: bool
    ms: int


@dataclass(frozen=True, slots=True)
class TurnStats:
    """The numbers under a reply. prompt = reused_ram + reused_disk + computed.

    reencoded: earlier replies that had to be encoded again. known: of the prompt, what earlier turns had read. cause:
    why no more was reused, a models.PrefixBreak; from which message on, and its depth; "" and None for the beginning.
    outside: messages that had left the window, and `left` of them with this turn; unsummarised: for so many of them no
    summary stands, though the policy wants one. is_cut_by_window: a reply that ended by length had no more room.
    """

    prompt_tokens: int
    reused_ram: int
    reused_disk: int
    computed: int
    generated: int
    ttft_ms: float
    decode_tok_s: float
    finish_reason: str
    model: str = ""
    reencoded: int = 0
    known: int = 0
    cause: str = ""
    cause_message: str = ""
    cause_position: int | None = None
    outside: int = 0
    left: int = 0
    unsummarised: int = 0
    has_summary: bool = False
    is_cut_by_window: bool = False


@dataclass(frozen=True, slots=True)
class RecalledMessage:
    """A message that is quoted, and how many lie above it on its branch."""

    message: uuid.UUID
    position: int


@dataclass(frozen=True, slots=True)
class Recalled:
    """What a model is given in front of a question: `text` word for word, quoted from `sources`, oldest first."""

    text: str
    sources: tuple[RecalledMessage, ...]


@dataclass(frozen=True, slots=True)
class TurnAccepted:
    """Stored, durably. The user message (None for regenerate and continue) and the open assistant message.

    `recalled`: what is put in front of the question. `is_duplicate`: this client_id had been accepted before; nothing
    was stored twice.
    """

    TYPE: ClassVar = "turn.accepted"
    conversation: uuid.UUID
    client_id: uuid.UUID | None
    user_message: uuid.UUID | None
    user_html: str
    user_text: str
    message: uuid.UUID
    title: str
    recalled: Recalled | None = None
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class TurnStage:
    """Where a running turn is: loading (done of total parts of the model), queued (position), reading (done of total
    tokens), writing, storing.

    loading: without a total the model waits for room. storing: complete, but the database does not take it yet;
    `problem` is a sentence that says why.
    """

    TYPE: ClassVar = "turn.stage"
    conversation: uuid.UUID
    message: uuid.UUID
    seq: int
    stage: str
    position: int = 0
    done: int = 0
    total: int = 0
    problem: str = ""


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
    problem: str = ""
    thinking: Thinking | None = None


@dataclass(frozen=True, slots=True)
class TurnDelta:
    """New or longer blocks. Those with an index from `num_blocks` on are gone (a table grew out of a paragraph)."""

    TYPE: ClassVar = "turn.delta"
    conversation: uuid.UUID
    message: uuid.UUID
    seq: int
    blocks: tuple[Block, ...]
    num_blocks: int
    thinking: Thinking | None = None


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The turn has ended as `status` and is stored. blocks is the whole reply: what is shown equals what is stored."""

    TYPE: ClassVar = "turn.end"
    conversation: uuid.UUID
    message: uuid.UUID
    seq: int
    status: str
    blocks: tuple[Block, ...]
    stats: TurnStats | None
    error: str = ""
    thinking: Thinking | None = None


@dataclass(frozen=True, slots=True)
class ConversationChanged:
    """A hint: read it again (another tab sent, renamed or deleted)."""

    TYPE: ClassVar = "conversation.changed"
    conversation: uuid.UUID
    title: str = ""
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """While nobody waits: `done` of the `total` tokens that the next prompt begins with have been read.

    is_draft: what is being written is among them.
    """

    TYPE: ClassVar = "prepared"
    conversation: uuid.UUID
    done: int
    total: int
    is_draft: bool = False


@dataclass(frozen=True, slots=True)
class WindowCounted:
    """The next prompt as it would be sent, in tokens: total = system + summary + history + recalled + draft.

    reserve: kept free for the reply. start: the first message that is sent, None for the very first of all, and
    outside: how many lie before it; summary_id: which summary stands for them; unsummarised: for so many none does,
    though the policy wants one. next_summary_id: which one waits for the window to move. leaving: so many more leave
    when this draft is sent. quoted: messages that are recalled for it. problem: why it cannot be sent. window 0:
    nothing can be counted now. The last four are what the conversation says about its window now.
    """

    TYPE: ClassVar = "window.counted"
    conversation: uuid.UUID
    number: int
    window: int
    reserve: int = 0
    total: int = 0
    system: int = 0
    summary: int = 0
    history: int = 0
    recalled: int = 0
    draft: int = 0
    start: uuid.UUID | None = None
    outside: int = 0
    leaving: int = 0
    quoted: int = 0
    summary_id: uuid.UUID | None = None
    next_summary_id: uuid.UUID | None = None
    unsummarised: int = 0
    problem: str = ""
    policy: str = ""
    recent_tokens: int = 0
    has_recall: bool = False
    is_stored: bool = False


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
    | Prepared
    | WindowCounted
    | Error
    | Pong
    | ServerDraining
)


def encode(frame: ServerFrame) -> str:
    """JSON text of a frame; UUIDs as strings."""
    return json.dumps({"type": frame.TYPE, **asdict(frame)}, default=str, ensure_ascii=False, separators=(",", ":"))
