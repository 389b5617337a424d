"""A model in several files is one model; of several files, the one at fault is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from inference.errors import ModelFileError
from inference.formats.model_file import open_model_file
from tests.inference import tiny_models as tiny

INDEX = "model.safetensors.index.json"
NAME = "model.norm.weight"


def weights() -> dict[str, NDArray[np.float32]]:
    return tiny.weights(np.random.default_rng(8))


def edit_index(path: Path, edit: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((path / INDEX).read_text())
    edit(index["weight_map"])
    (path / INDEX).write_text(json.dumps(index))


def refused(path: Path) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        open_model_file(path)
    return caught.value


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    tiny.write_directory(tmp_path, weights(), num_shards=3)
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    assert gone.name in str(refused(tmp_path))


def test_a_truncated_shard_names_its_tensor(tmp_path: Path) -> None:
    tiny.write_directory(tmp_path, weights(), num_shards=3)
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    last = max(load_file(shard))
    shard.write_bytes(shard.read_bytes()[:-1])
    error = refused(tmp_path)
    assert (error.path, error.field) == (shard, last)


def test_a_tensor_in_two_shards_is_named_with_both(tmp_path: Path) -> None:
    tiny.write_directory(tmp_path, weights(), num_shards=2)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    save_file(load_file(second) | {NAME: weights()[NAME]}, second)
    save_file(load_file(first) | {NAME: weights()[NAME]}, first)
    error = refused(tmp_path)
    assert error.field == NAME
    assert first.name in str(error)
    assert second.name in str(error)


def test_a_tensor_that_only_the_index_knows_is_named(tmp_path: Path) -> None:
    tiny.write_directory(tmp_path, weights(), num_shards=2)
    file = sorted(tmp_path.glob("*.safetensors"))[0].name
    edit_index(tmp_path, lambda weight_map: weight_map.update({"model.layers.7.mlp.up_proj.weight": file}))
    assert refused(tmp_path).field == "model.layers.7.mlp.up_proj.weight"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "\ud800"])
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    tiny.write_directory(tmp_path, weights(), num_shards=2)
    (tmp_path / INDEX).write_text(text, errors="surrogatepass")
    assert refused(tmp_path).path == tmp_path / INDEX
