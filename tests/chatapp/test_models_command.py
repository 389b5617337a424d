"""`manage.py models`: one line a model, and a reason for each that cannot run."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from hypothesis import given
from hypothesis import strategies as st

from chatapp import terminal
from tests.inference import tiny_models as tiny

MODELS = Path(__file__).resolve().parent.parent / "data" / "models"


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    """first.gguf, the default; vision, with tensors that are not run; broken.gguf."""
    models = tmp_path / "models"
    models.mkdir()
    settings.RECOLLECT_DATA = tmp_path
    settings.RECOLLECT_KERNELS = "numpy"  # what the pool costs depends on them
    settings.RECOLLECT_MODEL = tiny.tiny_gguf().write(models / "first.gguf")
    shutil.copytree(MODELS / "qwen3_vl", models / "vision")
    made = tiny.tiny_gguf()
    made.set("general.architecture", tiny.STRING, "mamba\x1b[31m")
    made.write(models / "broken.gguf")
    return models


def printed(*arguments: str) -> list[str]:
    stdout = io.StringIO()
    call_command("models", *arguments, stdout=stdout)
    return stdout.getvalue().splitlines()


@pytest.mark.usefixtures("folder")
def test_the_table_shows_what_each_one_is_and_costs() -> None:
    heading, first, broken, vision, *remarks = printed()
    assert heading.split()[:2] == ["NAME", "SIZE"]
    assert first.split()[:2] == ["*", "first"]
    assert first.split()[4:] == ["llama", "78.9", "K", "128", "316", "kB", "512", "kB", "GGUF", "F32"]
    assert vision.split()[0] == "vision"
    assert vision.split()[-10:] == ["qwen3_vl", "30", "K", "1,024", "120", "kB", "512", "kB", "safetensors", "F16"]
    assert broken.split()[0] == "broken"
    assert remarks[0].startswith("broken: cannot run: broken.gguf: architecture 'mamba")
    assert "known: gemma3" in remarks[0]
    assert remarks[1] == "vision: 27 tensors model.visual.* are left out, text only."
    assert len(remarks) == 3


def test_nothing_in_a_file_speaks_to_the_terminal(folder: Path) -> None:
    os.symlink(os.fsencode(folder / "first.gguf"), os.fsencode(folder) + b"/\xff\x1b[2J.gguf")
    (folder / "new\nline").mkdir()
    text = "\n".join(printed())
    assert "\x1b" not in text
    text.encode()


@pytest.mark.usefixtures("folder")
def test_json_has_plain_numbers() -> None:
    lines = [json.loads(line) for line in printed("--json")]
    assert [line["name"] for line in lines] == ["first", "broken", "vision"]
    assert [line["can_run"] for line in lines] == [True, False, True]
    assert [line["is_default"] for line in lines] == [True, False, False]
    assert (lines[0]["kv_bytes_per_1000_tokens"], lines[0]["weight_bytes"]) == (512_000, 4 * lines[0]["parameters"])
    assert lines[0]["bytes"] == Path(lines[0]["path"]).stat().st_size


def test_a_missing_default_is_a_line_too(tmp_path: Path, settings: Any) -> None:
    settings.RECOLLECT_DATA, settings.RECOLLECT_MODEL = tmp_path, tmp_path / "models" / "gone.gguf"
    _, gone, problem, _ = printed()
    assert gone.split()[:3] == ["*", "gone", "-"]
    assert "there is no file" in problem


@pytest.mark.parametrize(
    ("number", "written"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (98_362_432, "98.4 MB"), (999_600, "1 MB"), (5 * 10**15, "5,000 TB")],
)
def test_sizes_have_three_digits(number: int, written: str) -> None:
    assert terminal.size(number) == written


@given(number=st.integers(1, 10**15))
def test_a_written_count_is_within_half_a_percent(number: int) -> None:
    digits, _, unit = terminal.count(number).replace(",", "").partition(" ")
    assert float(digits) * 1000 ** ("", "K", "M", "B", "T").index(unit) == pytest.approx(number, rel=0.005)
