"""The real engine on a tiny model behind the door, with its KV files in a folder of the test's own; to be restarted."""

from __future__ import annotations

import asyncio
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chatapp import llm, model_catalogue, wire
from chatapp.models import Generation, Message, Preset, User
from chatapp.turn import run
from chatapp.turn.live import Live, LiveTurn
from tests.conftest import ROOT
from tests.patience import PATIENCE_S
from tests.shared_kernels import share_kernels

MODELS = ROOT / "tests" / "data" / "models"
LONG = "Tell me about the sea, the mountains and the desert, please. " * 8  # a token is a byte


def install(settings: Any, folder: Path) -> None:
    """A data folder with two tiny models, of which llama is the default one."""
    for name in ("llama", "qwen3"):
        shutil.copytree(MODELS / name, folder / "models" / name)
    settings.RECOLLECT_DATA, settings.RECOLLECT_MODEL = folder, folder / "models" / "llama"
    settings.RECOLLECT_KERNELS, settings.RECOLLECT_POOL_TOKENS = "numpy", 4096  # no compiling
    settings.RECOLLECT_KV_DISK_BYTES = 64 << 20
    share_kernels(folder)  # for the test that changes the tier


@contextmanager
def engine(*, is_ready: bool = True) -> Iterator[None]:
    """From its start to its orderly end."""
    llm.start(llm.new_worker(model_catalogue.path_of), default_model=model_catalogue.default().name)
    try:
        if is_ready:
            wait_until_ready()
        yield
    finally:
        assert llm.shutdown(PATIENCE_S)
        llm.host.handle.worker = None  # as in a process that has none


def wait_until_ready(model: str = "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while llm.status(model).state is not llm.EngineState.READY:
        assert llm.status(model).state is not llm.EngineState.FAILED, llm.status(model).message
        assert time.monotonic() < deadline
        time.sleep(0.005)


def stats() -> llm.EngineStats:
    found = llm.status().stats
    assert found is not None, "the model is loaded"
    return found


def preset(max_tokens: int = 8) -> Preset:
    """Replies that depend on nothing but the prompt."""
    return Preset.objects.create(name=str(uuid.uuid4()), sampling={"temperature": 0.0, "max_tokens": max_tokens})


async def astart(live: Live, user: User, text: str, *, after: Message | None = None, **fields: Any) -> LiveTurn:
    """Begin a turn, in a new conversation or after a reply."""
    place = {"conversation": uuid.uuid4(), "is_new": True}
    if after is not None:
        place = {"conversation": after.conversation_id, "is_new": False, "parent": after.id}
    turn = await run.start(live, user, wire.TurnSend(client_id=uuid.uuid4(), text=text, **(place | fields)))
    assert turn is not None
    assert turn.task is not None
    return turn


def talk(user: User, text: str, *, after: Message | None = None, **fields: Any) -> Message:
    """A whole turn; the reply."""

    async def whole() -> uuid.UUID:
        turn = await astart(Live(), user, text, after=after, **fields)
        assert turn.task is not None
        await turn.task
        assert turn.end is not None
        assert turn.end.status == "done", turn.end.error
        return turn.message_id

    return Message.objects.get(id=asyncio.run(whole()))


def numbers(reply: Message) -> Generation:
    return Generation.objects.get(message=reply)


def files() -> list[Path]:
    return sorted(llm.kv_root().glob("*/*.kv"))


def files_of(*conversation_ids: uuid.UUID) -> list[Path]:
    """Those that name one of these conversations: found by their bytes."""
    names = [str(conversation_id).encode() for conversation_id in conversation_ids]
    return [path for path in files() if any(name in path.read_bytes() for name in names)]


def mentions(folder: Path, conversation_id: uuid.UUID) -> list[Path]:
    """Any file, finished or not, that names a conversation."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if str(conversation_id).encode() in path.read_bytes()]
