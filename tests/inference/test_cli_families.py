"""`python -m inference.cli --model PATH` runs the model of every fixture, as a directory and as a GGUF file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from inference import cli
from inference.formats.architectures import GGUF_ARCHITECTURES, KNOWN_ARCHITECTURES
from inference.formats.model_file import open_model_file
from tests.conftest import ROOT
from tests.inference.gguf_families import ARCHITECTURES, write_gguf
from tests.inference.row_invariance import FIXTURES

UNSAYABLE = ("qwen3_moe-some-dense",)  # in GGUF
IN_GGUF = [p for p in FIXTURES if open_model_file(p).architecture in ARCHITECTURES and p.name not in UNSAYABLE]
OPTIONS = ["Why?", "--temperature", "0", "--max-tokens", "6", "--threads", "1"]


def run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*OPTIONS, "--model", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("\n")
    assert "prompt tokens" in captured.err
    assert "generated" in captured.err


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_a_directory_of_every_fixture_is_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(path, capsys)


@pytest.mark.parametrize("path", IN_GGUF, ids=lambda path: path.name)
def test_a_gguf_file_of_every_fixture_is_run(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(write_gguf(path, tmp_path / "m.gguf"), capsys)


def test_every_family_is_among_them() -> None:
    assert {open_model_file(path).architecture for path in FIXTURES} == set(KNOWN_ARCHITECTURES)
    assert {open_model_file(path).architecture for path in IN_GGUF} == set(GGUF_ARCHITECTURES.values())


def test_it_is_a_program(tmp_path: Path) -> None:
    path = write_gguf(next(path for path in FIXTURES if path.name == "qwen3"), tmp_path / "m.gguf")
    for model in (path, FIXTURES[0]):
        command = [sys.executable, "-m", "inference.cli", *OPTIONS, "--model", str(model)]
        found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        assert "prompt tokens" in found.stderr
