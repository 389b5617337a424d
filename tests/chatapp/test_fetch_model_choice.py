"""Which files of a repository a model needs: all of one set, nothing of another, nothing that could run code."""

from __future__ import annotations

import json

import pytest

from chatapp.default_model import FetchError
from chatapp.hub_files import INDEX, Choice, HubFile, choose_directory, choose_gguf, has_weights

REPOSITORY = "owner/Name-1B"


def listing(*paths: str, num_bytes: int = 10) -> list[HubFile]:
    return [HubFile(path, num_bytes, "ab" * 32) for path in paths]


def paths(choice: Choice) -> list[str]:
    return [file.path for file in choice.files]


def refusal(files: list[HubFile], index: str | None = None) -> str:
    with pytest.raises(FetchError) as caught:
        choose_directory(REPOSITORY, files, index)
    return str(caught.value)


def gguf_refusal(files: list[HubFile], pattern: str) -> str:
    with pytest.raises(FetchError) as caught:
        choose_gguf(REPOSITORY, files, pattern)
    return str(caught.value)


NEEDED = ["config.json", "tokenizer.json"]


def test_of_a_directory_only_what_is_read_is_chosen() -> None:
    other = [
        "pytorch_model.bin",
        "original/model.safetensors",
        "onnx/model.onnx",
        "README.md",
        "consolidated.safetensors",
    ]
    choice = choose_directory(REPOSITORY, listing(*other, *NEEDED, "chat_template.jinja", "model.safetensors"), None)
    assert paths(choice) == [*NEEDED, "chat_template.jinja", "model.safetensors"]
    assert (choice.name, choice.is_folder, choice.is_split) == ("Name-1B", True, False)
    assert choice.num_bytes == 40


def test_of_shards_those_are_chosen_that_the_index_names() -> None:
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = json.dumps({"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}})
    files = listing(*NEEDED, INDEX, *shards, "model.safetensors", "extra.safetensors")
    assert paths(choose_directory(REPOSITORY, files, index)) == [*NEEDED, INDEX, *shards]
    assert f"holds no {shards[1]}, which its {INDEX} names" in refusal(listing(*NEEDED, INDEX, shards[0]), index)


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"weight_map": 1}', "[" * 100_000])
def test_an_index_that_is_none_is_refused(index: str) -> None:
    assert f"its {INDEX} is not one" in refusal(listing(*NEEDED, INDEX, "a.safetensors"), index)


def test_a_lone_set_of_weights_may_have_any_name_but_two_may_not() -> None:
    assert (
        paths(choose_directory(REPOSITORY, listing(*NEEDED, "weights.safetensors"), None))[-1] == "weights.safetensors"
    )
    assert "2 *.safetensors files" in refusal(listing(*NEEDED, "a.safetensors", "b.safetensors"))


@pytest.mark.parametrize("missing", NEEDED)
def test_what_no_model_is_without_is_named(missing: str) -> None:
    rest = [name for name in NEEDED if name != missing]
    assert f"holds no {missing}" in refusal(listing(*rest, "model.safetensors"))
    assert "choose one with --file" in refusal(listing(*rest, "model.safetensors", "model.Q8_0.gguf"))


@pytest.mark.parametrize("path", ["../x.safetensors", ".hidden.safetensors", "a\\b.safetensors", "a\nb.safetensors"])
def test_a_file_that_would_lie_elsewhere_is_refused(path: str) -> None:
    index = json.dumps({"weight_map": {"a": path}})
    files = listing(*NEEDED, INDEX, path)
    said = f"holds no {path}, which its {INDEX} names" if "/" in path else "is no name for a file here"
    assert said in refusal(files, index)


def test_a_file_without_a_checksum_is_refused() -> None:
    files = [*listing(*NEEDED), HubFile("model.safetensors", 10, "")]
    assert "states no checksum for 'model.safetensors'" in refusal(files)


def test_a_lone_gguf_file_needs_no_choice() -> None:
    choice = choose_gguf(REPOSITORY, listing("README.md", "Name-Q8_0.gguf", "mmproj-Name.gguf", "imatrix.gguf"), "")
    assert (choice.name, choice.is_folder, paths(choice)) == ("Name-Q8_0.gguf", False, ["Name-Q8_0.gguf"])


def test_of_several_one_is_chosen_by_a_pattern_or_all_are_listed_with_their_sizes() -> None:
    files = [
        HubFile(f"Name-{kind}.gguf", num_bytes, "ab" * 32) for kind, num_bytes in (("Q8_0", 8000), ("Q4_K_M", 4500))
    ]
    assert paths(choose_gguf(REPOSITORY, files, "*q4_k_m*")) == ["Name-Q4_K_M.gguf"]
    assert paths(choose_gguf(REPOSITORY, files, "Name-Q8_0.gguf")) == ["Name-Q8_0.gguf"]
    several = gguf_refusal(files, "")
    assert several.splitlines()[1:] == ["    4.5 kB  Name-Q4_K_M", "      8 kB  Name-Q8_0"]
    assert "--file '*Q8_0*'" in several
    assert "0 of 2 models match '*Q2*'" in gguf_refusal(files, "*Q2*")
    assert "holds no GGUF file. Leave --file away." in gguf_refusal(listing(*NEEDED, "model.safetensors"), "*Q2*")


@pytest.mark.parametrize("pattern", ["", "*Q2*"])
def test_pickles_are_named_as_what_they_are(pattern: str) -> None:
    said = gguf_refusal(listing("config.json", "tokenizer.json", "pytorch_model.bin"), pattern)
    assert "holds pickled weights only (pytorch_model.bin). Pickles can run code and are never loaded" in said
    assert "safetensors or GGUF" in said
    assert "GGUF file" not in said
    assert "holds no weights that can be run here" in gguf_refusal(listing("README.md", "model.onnx"), pattern)


def test_the_parts_of_a_split_file_are_one_choice_and_one_folder() -> None:
    parts = [f"Q8_0/Name-Q8_0-0000{number}-of-00002.gguf" for number in (2, 1)]
    choice = choose_gguf(REPOSITORY, listing(*parts, "Q4_0/Name-Q4_0.gguf"), "*Q8_0*")
    assert paths(choice) == sorted(parts)
    assert (choice.name, choice.is_folder, choice.is_split) == ("Name-Q8_0", True, True)


def test_names_from_a_server_do_not_speak_to_the_terminal() -> None:
    files = listing("a\x1b[31m.gguf", "b.gguf")
    assert "\x1b" not in gguf_refusal(files, "")
    assert "is no name for a file here" in gguf_refusal(files, "a*")


def test_weights_in_folders_are_no_directory_model() -> None:
    assert has_weights(listing("model.safetensors"))
    assert not has_weights(listing("onnx/model.safetensors", "model.gguf"))
