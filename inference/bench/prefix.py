"""What the prefix cache saves: the same conversation asked cold, warm, edited, branched, again, and after a restart."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from inference.bench.conversation import Interview, Reply, history, question, said
from inference.bench.crowd import NUM_CONVERSATIONS, NUM_WITH_ROOM, Crowd, measure_crowd
from inference.bench.restart import Talk, measure_restart
from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.model_loader import load_engine
from inference.types import ChatMessage

NAMES = ("cold", "warm", "edited", "branch", "regenerate", "after_title", "restart_disk", "restart_cold")
WORDS = {
    "cold": "cold: the first time",
    "warm": "warm: the next turn",
    "edited": "edited in the middle",
    "branch": "branch from the middle",
    "regenerate": "regenerated",
    "title": "title, a side request",
    "after_title": "the turn after the title",
    "restart_disk": "restart, with the files",
    "restart_drive": "the same, from the drive",
    "restart_cold": "restart, without",
}
TITLE = ChatMessage("user", "Write a title for this conversation. Answer with the title only, in at most five words.")


def measure_prefix(
    model: Path, config: EngineConfig, folder: Path, *, num_words: int, num_rounds: int, num_turns: int
) -> dict[str, dict[str, Any]]:
    """The requests of NAMES over a history of num_words words: of num_rounds, the one with the median time each.

    num_turns: of the conversations that share a small pool. folder: on the drive that KV files shall be on. Prints a
    table as it goes.
    """
    engine = load_engine(model, config)
    Interview(engine).ask([question(0)])  # touch the weights and the scratch memory once
    replies = median_replies(ask_all_ways(engine, num_words, seed) for seed in range(1, num_rounds + 1))
    replies |= median_replies(
        measure_restart(model, config, Talk(num_words, seed), folder) for seed in range(1, num_rounds + 1)
    )
    print(table(replies), flush=True)
    print(_restart_sentence(replies), flush=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-kv-") as kv_dir:
        crowd_words = num_words // 5
        crowds = [
            measure_crowd(engine, num_words=crowd_words, num_turns=num_turns, kv_dir=where)
            for where in (None, Path(kv_dir))
        ]
    print(crowd_table(*crowds), flush=True)
    return {name: asdict(replies[name].reading) for name in NAMES}


def ask_all_ways(engine: LLMEngine, num_words: int, seed: int) -> dict[str, Reply]:
    """One conversation in one process, in the order of NAMES but for the restarts; begins with an empty cache."""
    interview = Interview(engine)
    interview.forget()
    past = history(num_words, seed)
    replies = {"cold": interview.ask(past)}
    talk = [*past, said(engine, replies["cold"].token_ids), question(seed + 1)]
    replies["warm"] = interview.ask(talk)
    replies["edited"] = interview.ask(edited(talk))
    replies["branch"] = interview.ask(branched(talk, seed))
    replies["regenerate"] = interview.ask(talk)
    talk.append(said(engine, replies["regenerate"].token_ids))
    replies["title"] = interview.ask([*talk, TITLE], is_side_request=True)
    replies["after_title"] = interview.ask([*talk, question(seed + 2)])
    return replies


def edited(talk: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The same with another word in the middle of the question in the middle."""
    middle = _middle(talk)
    words = talk[middle].content.split()
    words[len(words) // 2] = "otherwise"
    return [*talk[:middle], replace(talk[middle], content=" ".join(words)), *talk[middle + 1 :]]


def branched(talk: Sequence[ChatMessage], seed: int) -> list[ChatMessage]:
    """The same up to the question in the middle, and another question in its place."""
    return [*talk[: _middle(talk)], question(-seed)]


def median_replies(rounds: Iterable[dict[str, Reply]]) -> dict[str, Reply]:
    """Of each request the round with the median time."""
    kept = list(rounds)
    return {
        name: sorted((each[name] for each in kept), key=lambda reply: reply.reading.ttft_ms)[(len(kept) - 1) // 2]
        for name in kept[0]
    }


def table(replies: dict[str, Reply]) -> str:
    """For a person. "shared" had been computed before, as a comparison of the tokens says; "reused" the engine says."""
    lines = ["tokens of the prompt          all   shared  reused: RAM    disk  computed   reused     first token"]
    for name, words in WORDS.items():
        reply = replies[name]
        reading = reply.reading
        num_reused = reading.reused_ram + reading.reused_disk
        lines.append(
            f"{words:<25} {reading.prompt_tokens:>7,}  {reply.num_shared:>7,}  {reading.reused_ram:>11,}"
            f" {reading.reused_disk:>7,} {reading.computed:>9,}  {num_reused / reading.prompt_tokens:>7.1%}"
            f"  {reading.ttft_ms:>11.1f} ms"
        )
    return "\n".join(lines)


def crowd_table(without: Crowd, with_files: Crowd) -> str:
    """For a person: hit ratios of many conversations in a small pool, without files and with them."""
    lines = [
        f"{NUM_CONVERSATIONS} conversations in a pool for {NUM_WITH_ROOM} ({without.pool_tokens:,} tokens), "
        f"{without.num_turns} turns: reused of all",
        "                           tokens  requests   blocks   from disk   evicted   median first token",
    ]
    for words, crowd in (("memory alone", without), ("memory and files", with_files)):
        hits = crowd.hits
        lines.append(
            f"{words:<25} {hits.token_ratio:>7.1%}  {hits.request_ratio:>8.1%}  {hits.block_ratio:>7.1%}"
            f"  {crowd.num_disk_tokens / hits.num_tokens:>10.1%}  {crowd.num_evicted_blocks:>8,}"
            f"  {crowd.median_ttft_ms:>16.1f} ms"
        )
    return "\n".join(lines)


def _restart_sentence(replies: dict[str, Reply]) -> str:
    cold_ms = replies["restart_cold"].reading.ttft_ms
    sooner = {name: cold_ms / replies[name].reading.ttft_ms for name in ("restart_disk", "restart_drive")}
    return (
        f"After a restart the first token comes {sooner['restart_disk']:.1f} times sooner with the files than without "
        f"({sooner['restart_drive']:.1f} times when they have to come from the drive); the reply is the same."
    )


def _middle(talk: Sequence[ChatMessage]) -> int:
    """The number of the question in the middle."""
    questions = [number for number, message in enumerate(talk) if message.role == "user"]
    return questions[(len(questions) - 1) // 2]
