"""GGUF files of every family hold the same weights and the same config as the Hugging Face directory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from inference.errors import ModelFileError
from inference.formats.architectures import GGUF_ARCHITECTURES
from inference.formats.gguf_config import read_config
from inference.formats.gguf_metadata import Metadata
from inference.formats.model_file import open_model_file
from inference.model.registry import load_model
from tests.inference.gguf_families import ARCHITECTURES, write_gguf
from tests.inference.row_invariance import FIXTURES, whole_logits

# What GGUF cannot say: windows outside Gemma and Phi; other yarn than llama.cpp's; dynamic scaling; dense layers among
# the sparse ones, weights that are not normalised; which layers are not rotated (see below for those that it implies).
CANNOT_SAY = ("llama-dynamic", "mistral", "qwen2", "qwen2-yarn", "qwen3_moe-some-dense", "smollm3")
SAID = [path for path in FIXTURES if path.name not in CANNOT_SAY and not path.name.startswith("gemma3")]
TOLERANCE = 1e-4


@pytest.mark.parametrize("path", SAID, ids=lambda path: path.name)
def test_both_formats_of_one_model_compute_the_same(path: Path, tmp_path: Path) -> None:
    directory = open_model_file(path)
    file = open_model_file(write_gguf(path, tmp_path / "m.gguf"))
    assert file.architecture == directory.architecture
    assert file.tensor_names() == directory.tensor_names()
    for name in file.tensor_names():
        np.testing.assert_allclose(file.tensor(name), directory.tensor(name), rtol=1e-6, atol=1e-7, err_msg=name)
    with np.load(path / "expected.npz") as expected:
        for index in range(3):
            model = load_model(file, kernels="numpy", num_threads=2, max_model_len=int(expected[f"window_{index}"]))
            logits = whole_logits(model, expected[f"ids_{index}"])[expected[f"rows_{index}"]]
            np.testing.assert_allclose(logits, expected[f"logits_{index}"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["gemma3_text", "llama-dynamic", "qwen2", "qwen2-yarn", "smollm3"])
def test_weights_come_out_as_hugging_face_stores_them(name: str, tmp_path: Path) -> None:
    path = next(path for path in FIXTURES if path.name == name)
    file, directory = open_model_file(write_gguf(path, tmp_path / "m.gguf")), open_model_file(path)
    assert file.tensor_names() == directory.tensor_names()
    for tensor in file.tensor_names():
        np.testing.assert_allclose(file.tensor(tensor), directory.tensor(tensor), rtol=1e-6, atol=1e-7, err_msg=tensor)


def metadata(architecture: str, num_layers: int, **more: int | float | str) -> Metadata:
    values = {
        "block_count": num_layers,
        "context_length": 4096,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.key_length": 32,
        "attention.layer_norm_rms_epsilon": 1e-6,
    } | more
    named = {f"{architecture}.{key}": value for key, value in values.items()}
    return Metadata(Path("m.gguf"), {"general.architecture": architecture, **named})


def config_of(source: Metadata):  # type: ignore[no-untyped-def]
    return read_config(source, vocab_size=100, tensor_names=(), eos_token_ids=(), rope_factors={})


def test_gemma_is_told_by_its_size_what_its_file_does_not_say() -> None:
    window = {"attention.sliding_window": 512}
    small = config_of(metadata("gemma3", 12, **window))
    assert [small.window(layer) for layer in range(12)] == [512, 512, 512, 512, 512, 0] * 2
    assert (small.rope_local_base_freq, small.hidden_act) == (10_000.0, "gelu_pytorch_tanh")
    assert small.attention_scale == 32**-0.5
    assert config_of(metadata("gemma3", 62, **window)).attention_scale == 16**-0.5


def test_every_fourth_layer_of_smollm3_is_not_rotated() -> None:
    found = config_of(metadata("smollm3", 8))
    assert [found.is_rotated(layer) for layer in range(8)] == [True, True, True, False] * 2


def test_yarn_is_read_with_the_positions_after_the_stretch() -> None:
    found = config_of(
        metadata("qwen2", 2, **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.freq_base": 1e6})
    )
    assert found.max_position_embeddings == 16_384
    assert found.rope_scaling is not None
    assert dataclasses.astuple(found.rope_scaling)[:3] == ("yarn", 4.0, 4096)


@pytest.mark.parametrize("missing", ["rope_factors_long.weight", "rope_factors_short.weight", None])
def test_longrope_without_its_factors_is_refused(missing: str | None) -> None:
    factors = dict.fromkeys(("rope_factors_long.weight", "rope_factors_short.weight"), (1.0,) * 16)
    factors = {name: values for name, values in factors.items() if missing and name != missing}
    source = metadata("phi3", 2, **{"rope.scaling.type": "longrope"})
    with pytest.raises(ModelFileError, match="factor"):
        read_config(source, vocab_size=100, tensor_names=(), eos_token_ids=(), rope_factors=factors)


@pytest.mark.parametrize("num_layers", [0, 1 << 40])
def test_an_absurd_number_of_layers_is_refused_before_anything_is_made_of_it(num_layers: int) -> None:
    for architecture in GGUF_ARCHITECTURES:
        with pytest.raises(ModelFileError, match="layers"):
            config_of(metadata(architecture, num_layers))


def test_every_known_name_is_tried() -> None:
    assert set(GGUF_ARCHITECTURES.values()) == set(ARCHITECTURES)
