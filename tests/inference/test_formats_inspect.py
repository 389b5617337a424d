"""A look at a model without its weights: what it is, and why it cannot be run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.config import EngineConfig
from inference.engine.model_loader import load_engine
from inference.formats.architectures import KNOWN_ARCHITECTURES
from inference.formats.inspect import problem_of_config, problem_of_gguf
from inference.inspection import inspect_model
from tests.examples import examples
from tests.inference import tiny_models as tiny
from tests.inference.test_formats_gguf_parts import split

MODELS = sorted((Path(__file__).resolve().parent.parent / "data" / "models").iterdir())
LLAMA = next(path for path in MODELS if path.name == "llama")


def copied(tmp_path: Path, source: Path = LLAMA) -> Path:
    return Path(shutil.copytree(source, tmp_path / "copy"))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_the_numbers_are_those_of_the_loaded_model(path: Path) -> None:
    facts = inspect_model(path)
    info = load_engine(path, EngineConfig(pool_tokens=64, num_threads=1)).info
    assert facts.can_run
    assert (facts.name, facts.architecture) == (info.name, info.architecture)
    assert facts.num_parameters == info.num_parameters
    assert facts.window == info.max_position_embeddings
    assert facts.kv_bytes_per_token == info.kv_bytes_per_token
    assert facts.weight_bytes == pytest.approx(info.weight_bytes, rel=0.1)
    assert (facts.kind, facts.quantisations) == ("safetensors", ("F16",))
    assert facts.num_bytes == sum(file.stat().st_size for file in path.iterdir())
    assert facts.has_chat_template


def test_quantisations_come_in_the_order_of_their_share(tmp_path: Path) -> None:
    made = tiny.tiny_gguf(kind=GGMLQuantizationType.Q8_0)
    facts = inspect_model(made.write(tmp_path / "tiny.gguf"))
    assert (facts.kind, facts.name, facts.problem) == ("GGUF", "tiny", "")
    assert facts.quantisations == ("Q8_0", "F32")


def test_a_split_file_is_one_model_whatever_part_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    (tmp_path / "other-00001-of-00003.gguf").write_bytes(b"another model")
    looks = [inspect_model(path) for path in paths]
    assert {(look.name, look.num_bytes, look.problem) for look in looks} == {
        ("tiny", sum(path.stat().st_size for path in paths), "")
    }


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[1].unlink()
    facts = inspect_model(paths[2])
    assert "1 of 3 parts are missing, the first is tiny-00002-of-00003.gguf" in facts.problem
    assert facts.architecture == "llama"


def test_what_is_left_out_and_what_the_template_rewrites_is_noted(tmp_path: Path) -> None:
    path = copied(tmp_path, next(path for path in MODELS if path.name == "qwen3_vl"))
    tokenizer = json.loads((path / "tokenizer_config.json").read_text())
    tokenizer["chat_template"] = tiny.TEMPLATE.replace("m['content']", "(m['content'] | trim)")
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    vision, history = inspect_model(path).notes
    assert "tensors model.visual.* are left out" in str(vision)
    assert "The template trims" in str(history)


@pytest.mark.parametrize("kind", ["directory", "gguf"])
def test_an_unknown_architecture_is_named_with_the_known_ones(tmp_path: Path, kind: str) -> None:
    if kind == "gguf":
        made = tiny.tiny_gguf()
        made.set("general.architecture", tiny.STRING, "mamba")
        path = made.write(tmp_path / "m.gguf")
    else:
        path = copied(tmp_path)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    facts = inspect_model(path)
    assert not facts.can_run
    assert facts.architecture == "mamba"
    assert "'mamba' is not supported; known: " in facts.problem
    assert "qwen3" in facts.problem
    assert facts.num_bytes > 0
    assert kind == "gguf" or all(name in facts.problem for name in KNOWN_ARCHITECTURES)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("config.json", "config.json: there is no file"),
        ("tokenizer.json", "tokenizer.json: there is no file"),
        ("model.safetensors", "the directory holds no *.safetensors file"),
    ],
)
def test_what_a_directory_lacks_is_named(tmp_path: Path, missing: str, said: str) -> None:
    path = copied(tmp_path)
    (path / missing).unlink()
    facts = inspect_model(path)
    assert said in facts.problem
    assert facts.architecture == ("" if missing == "config.json" else "llama")


def test_a_broken_template_leaves_the_numbers(tmp_path: Path) -> None:
    made = tiny.tiny_gguf()
    made.set("tokenizer.chat_template", tiny.STRING, "{% for %}")
    facts = inspect_model(made.write(tmp_path / "m.gguf"))
    assert "chat template, line 1" in facts.problem
    assert facts.window > 0


@pytest.mark.parametrize("name", ["there-is-none.gguf", "there-is-none"])
def test_what_is_not_there_is_said(tmp_path: Path, name: str) -> None:
    facts = inspect_model(tmp_path / name)
    assert "there is no file" in facts.problem
    assert facts.num_bytes == 0


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    assert "there is no file" in inspect_model(tmp_path / "m.gguf").problem


def test_a_lone_safetensors_file_is_told_from_its_directory() -> None:
    facts = inspect_model(LLAMA / "model.safetensors")
    assert "give the directory" in facts.problem
    assert facts.kind == "safetensors"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(60))
@given(place=st.floats(0, 1), junk=st.binary(min_size=1, max_size=16), is_cut=st.booleans())
def test_damage_anywhere_gives_a_sentence_and_never_an_exception(
    tmp_path: Path, place: float, junk: bytes, is_cut: bool
) -> None:
    raw = bytearray(tiny.tiny_gguf().write(tmp_path / "whole.gguf").read_bytes())
    start = int(place * (len(raw) - 1))
    raw[start : len(raw) if is_cut else start + len(junk)] = junk
    (tmp_path / "broken.gguf").write_bytes(raw)
    assert inspect_model(tmp_path / "broken.gguf").name == "broken"


def test_a_config_alone_tells_what_cannot_run() -> None:
    text = (LLAMA / "config.json").read_text()
    config = json.loads(text)
    assert problem_of_config(text) == ""
    assert "'mamba' is not supported; known: " in problem_of_config(json.dumps(config | {"model_type": "mamba"}))
    assert "num_hidden_layers" in problem_of_config(json.dumps(config | {"num_hidden_layers": 0}))
    assert "not JSON" in problem_of_config("<html>")
    assert problem_of_gguf("qwen3moe") == ""
    assert "'mamba' is not supported; known: " in problem_of_gguf("mamba")
