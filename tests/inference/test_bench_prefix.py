"""The benchmark of the prefix cache: what each request reuses is what tokens have in common, no more and no less."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from inference.bench import __main__ as bench
from inference.bench import crowd, prefix
from inference.bench.conversation import NUM_GENERATED, Interview, Reading, Reply, history
from inference.bench.restart import Talk, first_turn, next_turn
from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.model_loader import load_engine
from inference.kvcache.cached_blocks import num_common
from tests.inference import tiny_models as tiny

KEYS = {"prompt_tokens", "reused_ram", "reused_disk", "computed", "ttft_ms"}
NUM_WORDS = 300  # two turns
CONFIG = EngineConfig(pool_tokens=8192, num_threads=1, kernels="numpy", max_draft_tokens=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny.tiny_gguf()
    made.set("llama.context_length", tiny.U32, 4096)
    return made.write(tmp_path_factory.mktemp("bench") / "m.gguf")


@pytest.fixture(scope="module")
def loaded(model: Path) -> LLMEngine:
    return load_engine(model, CONFIG)


@pytest.fixture(scope="module")
def replies(loaded: LLMEngine) -> dict[str, Reply]:
    return prefix.ask_all_ways(loaded, NUM_WORDS, seed=1)


def ids_of(engine: LLMEngine, messages) -> np.ndarray:
    return engine.chat_template.build(messages).ids


def num_reused(reply: Reply) -> int:
    return reply.reading.reused_ram + reply.reading.reused_disk


# --- one process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in prefix.WORDS if "restart" not in name])
def test_reused_and_computed_are_the_prompt_and_reused_is_what_is_shared(replies: dict[str, Reply], name: str) -> None:
    reading = replies[name].reading
    assert reading.reused_ram + reading.reused_disk + reading.computed == reading.prompt_tokens
    assert reading.reused_ram == replies[name].num_shared
    assert reading.ttft_ms > 0


def test_cold_reuses_nothing_and_a_regenerated_reply_computes_nothing(replies: dict[str, Reply]) -> None:
    assert num_reused(replies["cold"]) == 0
    assert replies["regenerate"].reading.computed == 0
    assert replies["regenerate"].reading.prompt_tokens == replies["warm"].reading.prompt_tokens
    assert replies["regenerate"].token_ids == replies["warm"].token_ids


def test_next_turn_reuses_prompt_and_reply_of_the_last(replies: dict[str, Reply]) -> None:
    assert num_reused(replies["warm"]) == replies["cold"].reading.prompt_tokens + NUM_GENERATED - 1


def test_title_takes_nothing_from_the_next_turn(replies: dict[str, Reply]) -> None:
    before = replies["warm"].reading.prompt_tokens + NUM_GENERATED - 1
    assert num_reused(replies["title"]) >= before
    assert before <= num_reused(replies["after_title"]) < replies["after_title"].reading.prompt_tokens


@pytest.mark.parametrize(("name", "change"), [("edited", prefix.edited), ("branch", lambda m: prefix.branched(m, 1))])
def test_edit_and_branch_reuse_exactly_what_stands_before_them(loaded, replies, name, change) -> None:
    past = history(NUM_WORDS, 1)
    before, after = ids_of(loaded, past), ids_of(loaded, change(past))
    assert num_reused(replies[name]) == num_common(before, after)
    assert 100 < num_reused(replies[name]) < 0.9 * len(before)
    assert num_reused(replies[name]) % CONFIG.block_size  # not by chance where a block ends


def test_interview_counts_the_last_token_as_shared_only_when_its_logits_were_kept(loaded: LLMEngine) -> None:
    interview = Interview(loaded)
    interview.forget()
    past = history(NUM_WORDS, 5)
    num_tokens = len(ids_of(loaded, past))
    assert interview.ask(past, is_side_request=True).num_shared == 0
    assert interview.ask(past).num_shared == num_tokens - 1
    assert interview.ask(past).num_shared == num_tokens
    interview.forget()
    assert num_reused(interview.ask(past)) == 0


def test_history_has_the_words_that_were_asked_for() -> None:
    messages = history(1000, 3)
    assert [message.role for message in messages[:3]] == ["system", "user", "assistant"]
    assert messages[-1].role == "user"
    assert sum(len(message.content.split()) for message in messages[1:-1]) == 1000
    assert history(1000, 3) == messages != history(1000, 4)


# --- restarts, many conversations -------------------------------------------------------------------------------------


def test_an_engine_that_opens_the_files_reuses_what_was_computed_before(loaded: LLMEngine, tmp_path: Path) -> None:
    def engine(**disk) -> LLMEngine:
        config = EngineConfig(pool_tokens=8192, num_threads=1, kernels="numpy", **disk)
        return LLMEngine(loaded.model, loaded.tokenizer, loaded.chat_template, config)

    disk, talk = {"kv_dir": tmp_path, "kv_disk_bytes": 1 << 30}, Talk(NUM_WORDS, 1)
    first = first_turn(engine(**disk), talk)
    sizes = {path: path.stat().st_size for path in tmp_path.rglob("*.*")}
    with_files, again, cold = (next_turn(engine(**each), talk, first.token_ids) for each in (disk, disk, {}))
    assert with_files.reading.reused_ram == 0
    assert with_files.reading.reused_disk == with_files.num_shared == first.reading.prompt_tokens + NUM_GENERATED - 1
    assert again.reading.reused_disk == with_files.reading.reused_disk
    assert {path: path.stat().st_size for path in tmp_path.rglob("*.*")} == sizes
    assert (num_reused(cold), cold.num_shared) == (0, with_files.num_shared)
    assert with_files.token_ids == cold.token_ids


def test_files_keep_what_a_small_pool_cannot(loaded: LLMEngine, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(crowd, "NUM_CONVERSATIONS", 5)
    monkeypatch.setattr(crowd, "NUM_WITH_ROOM", 2)
    sizes = {"num_words": 20, "num_turns": 10}
    without, with_files = (crowd.measure_crowd(loaded, **sizes, kv_dir=where) for where in (None, tmp_path))
    for seen in (without, with_files):
        assert seen.hits.num_requests == 10  # the first of each conversation is not among them
        assert seen.num_evicted_blocks > 0
    assert without.hits.num_tokens == with_files.hits.num_tokens
    assert without.hits.token_ratio < with_files.hits.token_ratio
    assert (without.num_disk_tokens, with_files.num_disk_tokens > 0) == (0, True)


# --- what is printed --------------------------------------------------------------------------------------------------


def test_median_of_the_rounds_is_one_of_them() -> None:
    rounds = [{"cold": Reply(Reading(n, 0, 0, n, ttft_ms), 0, ())} for n, ttft_ms in ((1, 3.0), (2, 1.0), (3, 2.0))]
    assert prefix.median_replies(rounds)["cold"].reading == Reading(3, 0, 0, 3, 2.0)


@pytest.mark.slow
def test_last_line_has_the_figures_of_every_request(model: Path, tmp_path: Path, capsys) -> None:
    command = ["--suite", "prefix", "--model", str(model), "--kernels", "numpy", "--threads", "1"]
    sizes = ["--history", str(NUM_WORDS), "--rounds", "1", "--turns", "5", "--folder", str(tmp_path)]
    assert bench.main([*command, *sizes]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)
    assert tuple(figures) == (
        *("cold", "warm", "edited", "branch", "regenerate", "after_title"),
        *("restart_disk", "restart_cold"),
    )
    for row in figures.values():
        assert set(row) == KEYS
        assert row["reused_ram"] + row["reused_disk"] + row["computed"] == row["prompt_tokens"]
    assert figures["restart_disk"]["reused_disk"] == figures["cold"]["prompt_tokens"] + NUM_GENERATED - 1
    assert figures["restart_cold"]["computed"] == figures["restart_cold"]["prompt_tokens"]
    assert "20 conversations in a pool for 8" in "\n".join(table)
    assert list(tmp_path.iterdir()) == []


def test_every_request_has_its_line_in_the_table(replies: dict[str, Reply]) -> None:
    restarts = dict.fromkeys(("restart_disk", "restart_drive", "restart_cold"), replies["warm"])
    lines = prefix.table(replies | restarts).splitlines()
    assert [line[:25].rstrip() for line in lines[1:]] == list(prefix.WORDS.values())
    assert set(prefix.NAMES) < set(prefix.WORDS)
    assert "100.0%" in lines[1 + list(prefix.WORDS).index("regenerate")]
    assert len({len(line) for line in lines}) == 1
