"""The benchmark prints, as its last line, what the peers' benchmark prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.bench import __main__ as bench
from inference.bench import roofline
from inference.bench.workload import prompt_text

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def small_machine_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is not the point here."""
    monkeypatch.setattr(roofline, "READ_BYTES", 8 << 20)
    monkeypatch.setattr(roofline, "MATRIX_SIZE", 256)


@pytest.mark.slow
def test_last_line_has_the_figures_of_every_context(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--suite", "roofline", "--model", str(model_path), "--contexts", "8"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["peer"] == "recollect"
    assert figures["model"] == str(model_path)
    assert figures["threads"] == 2
    assert figures["kernel_tier"]
    assert figures["blas_core"]
    assert list(figures["contexts"]) == ["8"]
    for row in figures["contexts"].values():
        assert set(row) == {"prefill_tok_s", "decode_tok_s", "warm_ttft_ms"}
        assert all(value > 0 for value in row.values())
    assert figures["parallel"]["sequences"] == 4
    assert figures["parallel"]["decode_tok_s"] > 0
    assert figures["beside"]["longest_gap_ms"] > 0
    (shares,) = figures["shares"].values()
    assert figures["read_gb_s"] > 0.1
    assert figures["multiply_gflop_s"] > 1
    assert shares["decode_bandwidth"] > 0
    assert shares["prefill_multiply"] > 0


def test_a_missing_model_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--model", str(tmp_path / "none.gguf")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: none.gguf: ")
    assert captured.err.count("\n") == 1


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "load_engine", interrupted)
    assert bench.main([]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_prompts_depend_on_size_and_seed_only() -> None:
    assert prompt_text(5, seed=64) == prompt_text(5, seed=64)
    assert len(prompt_text(512, seed=512).split()) == 512
