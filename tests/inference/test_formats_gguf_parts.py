"""A split GGUF file is one model, whichever of its parts is opened; the part that is missing or foreign is named."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.model_file import open_model_file
from tests.inference import tiny_models as tiny
from tests.inference.tiny_models import I32, U32, Gguf

U16 = 2


def split(path: Path, num_parts: int = 3, damage: Callable[[list[Gguf]], object] = lambda parts: None) -> list[Path]:
    """As llama.cpp's gguf-split: all metadata in the first part, tensors in any of them."""
    whole = tiny.tiny_gguf()
    parts = [Gguf() for _ in range(num_parts)]
    parts[0].metadata = dict(whole.metadata)
    names = list(whole.tensors)
    for number, part in enumerate(parts):
        part.metadata["split.no"] = (U16, struct.pack("<H", number))
        part.metadata["split.count"] = (U16, struct.pack("<H", num_parts))
        part.set("split.tensors.count", I32, len(names))
        part.tensors = {name: whole.tensors[name] for name in names[number::num_parts]}
    damage(parts)
    paths = [path / f"tiny-{number + 1:05}-of-{num_parts:05}.gguf" for number in range(num_parts)]
    for part, file in zip(parts, paths, strict=True):
        part.write(file)
    return paths


def refused(path: Path) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        open_model_file(path)
    return caught.value


@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_parts_are_one_model_opened_by_any_of_them(tmp_path: Path, num_parts: int) -> None:
    whole = open_model_file(tiny.tiny_gguf().write(tmp_path / "whole.gguf"))
    digests = set()
    for path in split(tmp_path, num_parts):
        model = open_model_file(path)
        assert model.name == "tiny"
        assert model.config == whole.config
        for name in whole.tensor_names():
            np.testing.assert_array_equal(model.tensor(name), whole.tensor(name))
        digests.add(model.digest)
    assert len(digests) == 1


def test_the_digest_is_that_of_all_parts(tmp_path: Path) -> None:
    paths = split(tmp_path)
    before = open_model_file(paths[0]).digest
    raw = bytearray(paths[2].read_bytes())
    raw[-40] ^= 1
    paths[2].write_bytes(raw)
    assert open_model_file(paths[0]).digest != before


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_named(tmp_path: Path, missing: int) -> None:
    paths = split(tmp_path)
    paths[missing].unlink()
    for path in paths:
        assert paths[missing].name in str(refused(path))


def twice(parts: list[Gguf]) -> None:
    parts[2].tensors |= dict(list(parts[0].tensors.items())[:1])


def one_less(parts: list[Gguf]) -> None:
    parts[1].tensors.popitem()


def other_number(parts: list[Gguf]) -> None:
    parts[1].set("split.no", U32, 2)


def other_count(parts: list[Gguf]) -> None:
    parts[1].set("split.count", U32, 4)


def unnumbered(parts: list[Gguf]) -> None:
    del parts[1].metadata["split.no"]


@pytest.mark.parametrize(
    ("damage", "part", "field"),
    [
        (twice, 2, "token_embd.weight"),
        (one_less, 0, "split.tensors.count"),
        (other_number, 1, "split.no"),
        (other_count, 1, "split.count"),
        (unnumbered, 1, "split.no"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    tmp_path: Path, damage: Callable[[list[Gguf]], None], part: int, field: str
) -> None:
    paths = split(tmp_path, damage=damage)
    error = refused(paths[1])
    assert (error.path, error.field) == (paths[part], field)


def test_a_truncated_part_names_its_tensor(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    error = refused(paths[0])
    assert error.path == paths[2]
    assert error.field.endswith(".weight")


def test_a_part_under_another_name_is_told_how_parts_are_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    error = refused(paths[0].rename(tmp_path / "model.gguf"))
    assert error.field == "split.count"
    assert "-00001-of-" in str(error)


@pytest.mark.parametrize("name", ["tiny-00001-of-00000.gguf", "tiny-00001-of-99999.gguf", "tiny-00004-of-00003.gguf"])
def test_a_name_that_counts_wrongly_is_refused(tmp_path: Path, name: str) -> None:
    tiny.tiny_gguf().write(tmp_path / name)
    assert refused(tmp_path / name).field == "split.count"


def test_a_big_endian_file_is_refused_as_one(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    with pytest.raises(UnsupportedModelError, match="big-endian") as caught:
        open_model_file(path)
    assert caught.value.field == "version"
