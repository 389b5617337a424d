"""Opened models are kept, as long as their files are those that were opened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inference.config import EngineConfig
from inference.engine.opened_model import ModelShelf, open_model
from inference.errors import ModelFileError
from inference.model.registry import load_model
from tests.inference import tiny_models as tiny
from tests.inference.row_invariance import FIXTURES

CONFIG = EngineConfig(pool_tokens=64, kernels="numpy")
LLAMA, QWEN = (next(path for path in FIXTURES if path.name == name) for name in ("llama", "qwen3"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(LLAMA, tmp_path / "model"))


@pytest.fixture
def shelf(folder: Path) -> ModelShelf:
    return ModelShelf(lambda name: open_model(folder, CONFIG))


def test_what_has_not_changed_is_opened_once(shelf: ModelShelf) -> None:
    assert shelf.get("m") is shelf.get("m")


def overwrite(folder: Path) -> None:
    """As `cp` does it: the file stays, and is shorter for a while."""
    for file in QWEN.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())


def replace(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(QWEN, folder)


@pytest.mark.parametrize("change", [overwrite, replace])
def test_a_model_that_was_replaced_is_opened_anew_and_can_be_loaded(
    shelf: ModelShelf, folder: Path, change: Callable[[Path], None]
) -> None:
    assert shelf.get("m").model_file.architecture == "llama"
    change(folder)
    found = shelf.get("m")
    assert found.model_file.architecture == "qwen3"
    assert load_model(found.model_file, kernels="numpy", num_threads=1).config == found.model_file.config
    assert shelf.get("m") is found


def test_a_file_that_was_cut_short_is_opened_anew_and_refused(shelf: ModelShelf, folder: Path) -> None:
    assert shelf.get("m").is_current
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(ModelFileError, match="truncated"):
        shelf.get("m")


def test_a_model_that_is_gone_is_not_there_any_more(shelf: ModelShelf, folder: Path) -> None:
    assert shelf.get("m").is_current
    shutil.rmtree(folder)
    with pytest.raises(ModelFileError):
        shelf.get("m")


def test_a_gguf_file_that_is_written_to_has_changed(tmp_path: Path) -> None:
    path = tiny.tiny_gguf(tensors=tiny.weights(np.random.default_rng(0))).write(tmp_path / "m.gguf")
    opened = open_model(path, CONFIG)
    assert opened.is_current
    path.write_bytes(path.read_bytes())
    assert not opened.is_current
