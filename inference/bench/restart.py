"""The first turn after a restart, with the KV files of the process before and without: each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from inference.bench.conversation import Interview, Reading, Reply, history, question, said
from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.model_loader import load_engine

KV_DISK_BYTES = 1 << 30
CLOSE_S = 60.0  # for writing what is cached


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation that every process can make anew: its history, and a second question."""

    num_words: int
    seed: int


def measure_restart(model: Path, config: EngineConfig, talk: Talk, folder: Path) -> dict[str, Reply]:
    """The same turn in three new processes. Raises RuntimeError when they do not answer the same.

    restart_disk    with the files, which the system still has in memory
    restart_cold    without them
    restart_drive   with the files, which the system has let go: they come from the drive, as on another day
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-kv-") as kv_dir:
        with_files = replace(config, kv_dir=Path(kv_dir), kv_disk_bytes=KV_DISK_BYTES)
        first = _in_new_process(model, with_files, talk)
        replies = {
            "restart_disk": _in_new_process(model, with_files, talk, first.token_ids),
            "restart_cold": _in_new_process(model, config, talk, first.token_ids),
        }
        drop_from_memory(Path(kv_dir).rglob("*.*"))
        replies["restart_drive"] = _in_new_process(model, with_files, talk, first.token_ids)
    answers = {reply.token_ids for reply in replies.values()}
    if len(answers) != 1:
        raise RuntimeError(f"the reply after a restart depends on the KV files: {answers}")
    return replies


def first_turn(engine: LLMEngine, talk: Talk) -> Reply:
    """The conversation up to its first reply; then the engine is closed, which writes what is cached."""
    reply = Interview(engine).ask(history(talk.num_words, talk.seed))
    engine.close(CLOSE_S)
    return reply


def next_turn(engine: LLMEngine, talk: Talk, reply_ids: tuple[int, ...]) -> Reply:
    """The turn after it, as the first request that this engine gets. Writes nothing: the files stay as they are."""
    interview, past = Interview(engine), history(talk.num_words, talk.seed)
    interview.remember(engine.chat_template.build(past).ids, reply_ids)
    reply = interview.ask([*past, said(engine, reply_ids), question(talk.seed + 1)])
    engine.close(0.0)
    return reply


def drop_from_memory(paths: Iterable[Path]) -> None:
    """Ask the system to keep no copies of these files, which have been synced."""
    for path in paths:
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _in_new_process(model: Path, config: EngineConfig, talk: Talk, reply_ids: tuple[int, ...] = ()) -> Reply:
    """What first_turn() gives there, or, behind a reply, next_turn()."""
    task = {"model": model, "config": asdict(config), "talk": asdict(talk), "reply_ids": reply_ids}
    command = [sys.executable, "-m", "inference.bench.restart", json.dumps(task, default=str)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603  our own module
    told = json.loads(done.stdout.splitlines()[-1])
    return Reply(Reading(**told["reading"]), told["num_shared"], tuple(told["token_ids"]))


def main() -> None:
    """The process that is measured: one line of JSON on stdout."""
    task = json.loads(sys.argv[1])
    kv_dir = task["config"].pop("kv_dir")
    config = EngineConfig(**task["config"], kv_dir=Path(kv_dir) if kv_dir else None)
    engine, talk, reply_ids = load_engine(task["model"], config), Talk(**task["talk"]), tuple(task["reply_ids"])
    reply = next_turn(engine, talk, reply_ids) if reply_ids else first_turn(engine, talk)
    print(json.dumps(asdict(reply)), flush=True)


if __name__ == "__main__":
    main()
