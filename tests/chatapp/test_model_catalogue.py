"""What lies in the folder of models, under which names, and what is wrong with it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp import model_catalogue
from chatapp.errors import ChatError, NotFound
from tests.inference import tiny_models as tiny
from tests.inference.test_formats_gguf_parts import split

LLAMA = Path(__file__).resolve().parent.parent / "data" / "models" / "llama"


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    """An empty folder of models; RECOLLECT_MODEL is first.gguf in it, which is sound."""
    models = tmp_path / "models"
    models.mkdir()
    settings.RECOLLECT_DATA = tmp_path
    settings.RECOLLECT_MODEL = tiny.tiny_gguf().write(models / "first.gguf")
    return models


def names() -> list[str]:
    return [model.name for model in model_catalogue.installed()]


def test_files_and_folders_are_there_under_their_names_the_default_first(folder: Path) -> None:
    shutil.copytree(LLAMA, folder / "Alpha-1.0")
    tiny.tiny_gguf().write(folder / "beta.Q8_0.gguf")
    (folder / "README.md").write_text("what I have")
    (folder / ".fetch-gamma").mkdir()
    models = model_catalogue.installed()
    assert [model.name for model in models] == ["first", "Alpha-1.0", "beta.Q8_0"]
    assert [model.is_default for model in models] == [True, False, False]
    assert all(model.can_run for model in models)
    assert [model.facts.kind for model in models] == ["GGUF", "safetensors", "GGUF"]
    assert model_catalogue.default() == models[0]


def test_a_model_elsewhere_is_there_if_it_is_the_default(folder: Path, settings: Any) -> None:
    settings.RECOLLECT_MODEL = LLAMA
    assert names() == ["llama", "first"]
    assert model_catalogue.default().path == LLAMA


def test_a_default_that_is_missing_says_so(folder: Path, settings: Any) -> None:
    settings.RECOLLECT_MODEL = folder / "gone.gguf"
    first = model_catalogue.default()
    assert (first.name, first.can_run) == ("gone", False)
    assert "there is no file" in first.problem
    assert names() == ["gone", "first"]


def test_without_a_folder_there_is_the_default_alone(tmp_path: Path, settings: Any) -> None:
    settings.RECOLLECT_DATA, settings.RECOLLECT_MODEL = tmp_path, LLAMA
    assert names() == ["llama"]


def test_parts_are_one_model_and_any_of_them_may_be_the_default(folder: Path, settings: Any) -> None:
    parts = split(folder)
    settings.RECOLLECT_MODEL = parts[1]
    assert names() == ["tiny", "first"]
    assert model_catalogue.default().can_run


def test_two_links_to_one_file_are_two_models_and_one_default(folder: Path, settings: Any) -> None:
    (folder / "a-link.gguf").symlink_to(folder / "first.gguf")
    (folder / "other").symlink_to(LLAMA, target_is_directory=True)
    models = model_catalogue.installed()
    assert [(model.name, model.is_default) for model in models] == [
        ("first", True),
        ("a-link", False),
        ("other", False),
    ]
    settings.RECOLLECT_MODEL = LLAMA
    assert model_catalogue.default().name == "other"


def test_folders_of_an_owner_are_looked_into(folder: Path) -> None:
    shutil.copytree(LLAMA, folder / "meta" / "llama")
    (folder / "unsloth" / "llama-GGUF").mkdir(parents=True)
    tiny.tiny_gguf().write(folder / "unsloth" / "llama-GGUF" / "llama-Q8_0.gguf")
    assert names() == ["first", "meta--llama", "unsloth--llama-GGUF--llama-Q8_0"]


def test_names_that_meet_are_told_apart(folder: Path) -> None:
    shutil.copytree(LLAMA, folder / "first")
    shutil.copytree(LLAMA, folder / "a" / "b")
    shutil.copytree(LLAMA, folder / "a--b")
    found = names()
    assert found[0] == "first"
    assert len(set(found)) == 4
    assert model_catalogue.get("a--b").can_run


def test_what_is_broken_is_a_row_with_its_reason(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "cut.gguf").write_bytes(b"GGUF\3\0\0\0")
    os.mkfifo(folder / "pipe.gguf")
    (folder / "loop.gguf").symlink_to("loop.gguf")
    (folder / "nowhere").symlink_to("nothing-here")
    pickled = Path(shutil.copytree(LLAMA, folder / "pickled"))
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    shutil.copyfile(LLAMA / "model.safetensors", folder / "alone.safetensors")
    problems = {model.name: model.problem for model in model_catalogue.installed()}
    assert problems.pop("first") == ""
    assert set(problems) == {"alone", "cut", "empty", "loop", "pickled", "pipe"}
    assert "config.json: there is no file" in problems["empty"]
    assert "ends too early" in problems["cut"]
    assert "no *.safetensors file" in problems["pickled"]
    assert "give the directory" in problems["alone"]
    assert all(problems.values())


def test_a_model_is_found_by_its_name_or_the_known_ones_are_named(folder: Path) -> None:
    assert model_catalogue.get("first").path == folder / "first.gguf"
    with pytest.raises(ChatError, match="there are first") as caught:
        model_catalogue.get("second")
    assert isinstance(caught.value, NotFound)
    assert caught.value.detail == {"known": ("first",)}


def test_a_file_is_looked_at_again_only_when_it_has_changed(folder: Path) -> None:
    before = model_catalogue.get("first").facts
    assert model_catalogue.get("first").facts is before
    path = folder / "first.gguf"
    path.write_bytes(path.read_bytes()[:1000])
    assert not model_catalogue.get("first").can_run
    tiny.tiny_gguf().write(path)
    assert model_catalogue.get("first").can_run


@given(places=st.lists(st.text("aB1 .-_/é\n", min_size=1, max_size=200), unique=True))
def test_names_are_plain_and_no_two_places_share_one_but_for_slashes(places: list[str]) -> None:
    made = [model_catalogue._plain(place) for place in places]
    assert all(model_catalogue._PLAIN_NAME.fullmatch(name) and len(name) <= 96 for name in made)
    assert len(set(made)) >= len({place.replace("/", "--") for place in places})
