"""The engine over every family: reference tokens in small chunks, the same from the cache, in both file formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inference import cli
from inference.config import EngineConfig
from inference.engine.llm_engine import LLMEngine
from inference.engine.model_loader import load_engine
from inference.types import Request, SamplingParams
from tests.inference.fakes import finished, run
from tests.inference.gguf_families import ARCHITECTURES, write_gguf
from tests.inference.row_invariance import FIXTURES


def engine_of(path: Path, window: int, *, is_prefix_cache_enabled: bool = True) -> LLMEngine:
    config = EngineConfig(
        pool_tokens=2048,
        max_batch_tokens=48,
        max_model_len=window,
        num_threads=2,
        is_prefix_cache_enabled=is_prefix_cache_enabled,
    )
    return load_engine(path, config)


def complete(engine: LLMEngine, name: str, ids: np.ndarray, max_tokens: int) -> tuple[list[int], int]:
    """The greedy ids, and how many prompt tokens were not computed anew."""
    request = Request(name, ids.astype(np.int32), SamplingParams(temperature=0.0, max_tokens=max_tokens))
    event = finished(run(engine, request)[name])
    assert event.token_ids is not None
    return list(event.token_ids), event.stats.num_prompt_tokens - event.stats.num_computed


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_a_conversation_that_grows_past_every_window_is_answered_as_if_it_were_new(path: Path) -> None:
    with np.load(path / "expected.npz") as expected:
        ids, greedy, window = expected["ids_2"], expected["greedy_2"].tolist(), int(expected["window_2"])
    warm = engine_of(path, window)
    for length in (20, 150, 290):  # turns of one conversation, the cache filling up
        complete(warm, f"turn {length}", ids[:length], 6)
    found, num_reused = complete(warm, "whole", ids, len(greedy))
    assert found == greedy
    assert num_reused >= 280
    again, num_reused = complete(warm, "again", ids, len(greedy))
    assert again == greedy
    assert num_reused == len(ids)  # the logits of the last token were kept
    later = np.concatenate((ids, greedy[:20], ids[:2]))
    followed, num_reused = complete(warm, "next turn", later, 8)
    assert num_reused >= len(ids) + 19
    cold = engine_of(path, window, is_prefix_cache_enabled=False)
    assert complete(cold, "next turn", later, 8) == (followed, 0)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_the_terminal_runs_a_directory_and_a_gguf_file_of_every_family(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [path]
    if path.name in ARCHITECTURES:  # the others are further models of the same families
        models.append(write_gguf(path, tmp_path / "m.gguf"))
    for model in models:
        options = ["--model", str(model), "--temperature", "0", "--max-tokens", "3", "--raw"]
        assert cli.main(["hello there", *options]) == 0
        assert "11 prompt tokens" in capsys.readouterr().err
