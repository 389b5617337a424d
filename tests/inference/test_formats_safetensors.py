"""Hugging Face directories: whole or in shards, in three float types; broken ones are refused with the field named."""

from __future__ import annotations

import json
import shutil
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.model_file import open_model_file
from tests.examples import examples
from tests.inference import tiny_models as tiny
from tests.inference.row_invariance import FIXTURES
from tests.patience import soon_done

NAME = "model.norm.weight"


def weights() -> dict[str, NDArray[np.float32]]:
    return tiny.weights(np.random.default_rng(4))


def test_float32_weights_come_back_bit_by_bit(tmp_path: Path) -> None:
    model = open_model_file(tiny.write_directory(tmp_path, weights()))
    assert set(model.tensor_names()) == set(weights())
    for name, weight in weights().items():
        np.testing.assert_array_equal(model.tensor(name), weight)


def test_float16_weights_come_back_as_the_same_numbers(tmp_path: Path) -> None:
    half = {name: weight.astype(np.float16) for name, weight in weights().items()}
    model = open_model_file(tiny.write_directory(tmp_path, half))
    for name, weight in half.items():
        assert model.tensor(name).dtype == np.float32
        np.testing.assert_array_equal(model.tensor(name), weight.astype(np.float32))


def test_bfloat16_weights_come_back_as_the_upper_half_of_float32(tmp_path: Path) -> None:
    tiny.write_directory(tmp_path, weights())
    write_raw(tmp_path / "model.safetensors", bfloat16_file(weights()))
    model = open_model_file(tmp_path)
    for name, weight in weights().items():
        np.testing.assert_array_equal(model.tensor(name).view(np.uint32), weight.view(np.uint32) & 0xFFFF0000)


def test_data_that_is_not_aligned_is_read_all_the_same(tmp_path: Path) -> None:
    tiny.write_directory(tmp_path, weights())
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    shifted = struct.pack("<Q", length + 3) + raw[8 : 8 + length] + b"   " + raw[8 + length :]
    (tmp_path / "model.safetensors").write_bytes(shifted)
    model = open_model_file(tmp_path)
    for name, weight in weights().items():
        np.testing.assert_array_equal(model.tensor(name), weight)
        assert model.tensor(name).flags.aligned


def test_shards_are_one_model(tmp_path: Path) -> None:
    whole = open_model_file(tiny.write_directory(tmp_path / "whole", weights()))
    sharded = open_model_file(tiny.write_directory(tmp_path / "sharded", weights(), num_shards=3))
    assert sharded.tensor_names() == whole.tensor_names()
    for name in whole.tensor_names():
        np.testing.assert_array_equal(sharded.tensor(name), whole.tensor(name))


def test_both_formats_of_one_model_hold_the_same_weights(tmp_path: Path) -> None:
    directory = open_model_file(tiny.write_directory(tmp_path / "hf", weights()))
    file = open_model_file(tiny.tiny_gguf(tensors=weights()).write(tmp_path / "m.gguf"))
    assert directory.tensor_names() == file.tensor_names()
    for name in file.tensor_names():
        np.testing.assert_array_equal(directory.tensor(name), file.tensor(name))
    ours, theirs = directory.config, file.config
    assert ours.rms_norm_eps == pytest.approx(theirs.rms_norm_eps)
    assert [getattr(ours, key) for key in ours.__slots__ if key != "rms_norm_eps"] == [
        getattr(theirs, key) for key in theirs.__slots__ if key != "rms_norm_eps"
    ]


@pytest.mark.parametrize(("in_config", "in_generation", "expected"), [
    (2, None, (2,)),
    ([2, 0], None, (2, 0)),
    (2, 0, (2, 0)),
    (2, [2, 0], (2, 0)),
    (None, 2, (2,)),
    (None, None, ()),
])  # fmt: skip
def test_end_tokens_are_collected_from_both_configs(
    tmp_path: Path, in_config: Any, in_generation: Any, expected: tuple[int, ...]
) -> None:
    tiny.write_directory(tmp_path, weights(), config={**tiny.tiny_config(), "eos_token_id": in_config})
    if in_generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": in_generation}))
    assert open_model_file(tmp_path).config.eos_token_ids == expected


def test_a_head_size_of_its_own_is_taken_from_the_config(tmp_path: Path) -> None:
    config = {**tiny.tiny_config(), "head_dim": 16, "num_attention_heads": 4}
    assert open_model_file(tiny.write_directory(tmp_path, weights(), config=config)).config.head_dim == 16


def test_rope_theta_is_also_found_in_rope_parameters(tmp_path: Path) -> None:
    config = tiny.tiny_config() | {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    del config["rope_theta"]
    assert open_model_file(tiny.write_directory(tmp_path, weights(), config=config)).config.rope_theta == 5000.0


def test_untied_models_must_bring_their_output_matrix(tmp_path: Path) -> None:
    config = {**tiny.tiny_config(), "tie_word_embeddings": False}
    with pytest.raises(ModelFileError) as caught:
        open_model_file(tiny.write_directory(tmp_path, weights(), config=config))
    assert caught.value.field == "lm_head.weight"
    head = {"lm_head.weight": weights()["model.embed_tokens.weight"] * 2}
    model = open_model_file(tiny.write_directory(tmp_path, weights() | head, config=config))
    np.testing.assert_array_equal(model.tensor("lm_head.weight"), head["lm_head.weight"])


def test_a_second_copy_of_a_tied_matrix_is_not_a_tensor_of_the_model(tmp_path: Path) -> None:
    head = {"lm_head.weight": weights()["model.embed_tokens.weight"]}
    assert not open_model_file(tiny.write_directory(tmp_path, weights() | head)).has_tensor("lm_head.weight")


@pytest.mark.parametrize(
    ("key", "payload"),
    [
        ("model_type", "mamba"),
        ("model_type", None),
        ("rope_scaling", {"rope_type": "proportional", "factor": 8.0}),
        ("rope_parameters", {"rope_type": ["yarn"]}),
        ("attention_bias", "yes"),
        ("sliding_window", 4096),
        ("hidden_act", "gelu"),
        ("rope_interleaved", True),
        ("partial_rotary_factor", 0.5),
        ("quantization_config", {"quant_method": "gptq"}),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(tmp_path: Path, key: str, payload: Any) -> None:
    tiny.write_directory(tmp_path, weights(), config={**tiny.tiny_config(), key: payload})
    with pytest.raises(UnsupportedModelError) as caught:
        open_model_file(tmp_path)
    assert caught.value.field == key


@pytest.mark.parametrize(
    ("key", "payload"),
    [
        ("hidden_size", "64"),
        ("hidden_size", True),
        ("hidden_size", 63),
        ("num_attention_heads", 0),
        ("max_position_embeddings", 0),
        ("num_hidden_layers", 1 << 31),
        ("rope_theta", "x"),
        ("eos_token_id", 9999),
        ("eos_token_id", ["</s>"]),
        ("rope_scaling", [1]),
        ("rope_scaling", {"type": "linear"}),
        ("rope_parameters", {"rope_type": "yarn"}),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_with_its_field(tmp_path: Path, key: str, payload: Any) -> None:
    tiny.write_directory(tmp_path, weights(), config={**tiny.tiny_config(), key: payload})
    with pytest.raises(ModelFileError) as caught:
        open_model_file(tmp_path)
    assert caught.value.field == key


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, file: str) -> None:
    tiny.write_directory(tmp_path, weights())
    (tmp_path / file).unlink()
    with pytest.raises(ModelFileError, match=file.replace("model", "")):
        open_model_file(tmp_path)


def test_a_missing_and_a_misshapen_tensor_are_named(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    less = weights()
    del less[name]
    for number, tensors in enumerate((less, less | {name: np.zeros((3, 3), np.float32)})):
        with pytest.raises(ModelFileError) as caught:
            open_model_file(tiny.write_directory(tmp_path / str(number), tensors))
        assert caught.value.field == name


@pytest.mark.parametrize("key", ["attention_bias", "mlp_bias"])
def test_biases_are_refused_where_the_family_has_none(tmp_path: Path, key: str) -> None:
    tiny.write_directory(tmp_path, weights(), config={**tiny.tiny_config(), "model_type": "mistral", key: True})
    with pytest.raises(UnsupportedModelError) as caught:
        open_model_file(tmp_path)
    assert caught.value.field == key


@pytest.mark.parametrize(("key", "part"), [("attention_bias", "self_attn.q_proj"), ("mlp_bias", "mlp.gate_proj")])
def test_a_config_that_promises_biases_must_bring_them(tmp_path: Path, key: str, part: str) -> None:
    tiny.write_directory(tmp_path, weights(), config={**tiny.tiny_config(), key: True})
    with pytest.raises(ModelFileError) as caught:
        open_model_file(tmp_path)
    assert caught.value.field == f"model.layers.0.{part}.bias"


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.0.mlp.experts.0.w1.weight"])
def test_a_tensor_that_llama_does_not_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        open_model_file(tiny.write_directory(tmp_path, weights() | {name: np.zeros(4, np.float32)}))
    assert caught.value.field == name


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    integers = weights() | {NAME: np.zeros(tiny.HIDDEN, np.int8)}
    with pytest.raises(UnsupportedModelError, match="I8") as caught:
        open_model_file(tiny.write_directory(tmp_path, integers))
    assert caught.value.field == NAME


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "config.json", ""])
def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path, file: str) -> None:
    tiny.write_directory(tmp_path, weights(), num_shards=2)
    index = {"weight_map": dict.fromkeys(weights(), file)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError) as caught:
        open_model_file(tmp_path)
    assert caught.value.field == "weight_map"


def test_an_index_that_is_wrong_about_a_tensor_names_it(tmp_path: Path) -> None:
    tiny.write_directory(tmp_path, weights(), num_shards=2)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    index["weight_map"][NAME] = files[0] if index["weight_map"][NAME] != files[0] else files[1]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError) as caught:
        open_model_file(tmp_path)
    assert caught.value.field == NAME


def test_the_digest_changes_with_weights_and_config_only(tmp_path: Path) -> None:
    first = open_model_file(tiny.write_directory(tmp_path / "a", weights())).digest
    assert open_model_file(tiny.write_directory(tmp_path / "b", weights())).digest == first
    config = {**tiny.tiny_config(), "rope_theta": 9.0}
    assert open_model_file(tiny.write_directory(tmp_path / "c", weights(), config=config)).digest != first
    other = weights() | {NAME: np.zeros(tiny.HIDDEN, np.float32)}
    assert open_model_file(tiny.write_directory(tmp_path / "d", other)).digest != first


# --- hostile headers --------------------------------------------------------------------------------------------------


def write_raw(path: Path, parts: tuple[bytes, bytes]) -> None:
    header, data = parts
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def bfloat16_file(tensors: dict[str, NDArray[np.float32]]) -> tuple[bytes, bytes]:
    entries, data = {}, b""
    for name, weight in tensors.items():
        raw = (weight.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        entries[name] = {"dtype": "BF16", "shape": weight.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return json.dumps(entries).encode(), data


def entry(dtype: Any = "F32", shape: Any = (2,), begin: Any = 0, end: Any = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def one(value: Any) -> tuple[bytes, bytes]:
    return json.dumps({"t": value}).encode(), b"\0" * 8


CORPUS: dict[str, tuple[tuple[bytes, bytes], str]] = {
    "JSON is none": ((b"{]", b""), "header"),
    "JSON is a list": ((b"[]", b""), "header"),
    "JSON is not UTF-8": ((b'{"\xff": 1}', b""), "header"),
    "JSON nested deep": ((b"[" * 100_000, b""), "header"),
    "JSON too large": ((b" " * (5 << 20), b""), "header length"),
    "name twice": ((b'{"t": {}, "t": {}}', b""), "t"),
    "entry is no object": (one(3), "t"),
    "unknown dtype": (one(entry(dtype="F7")), "t"),
    "dtype is a list": (one(entry(dtype=["F32"])), "t"),
    "negative shape": (one(entry(shape=(-2,))), "t"),
    "shape is text": (one(entry(shape="2")), "t"),
    "shape of truth values": (one(entry(shape=(True, 2))), "t"),
    "many dimensions": (one(entry(shape=(1,) * 99)), "t"),
    "product wraps": (one(entry(shape=(1 << 32, 1 << 32, 4))), "t"),
    "offsets do not fit the shape": (one(entry(end=12)), "t"),
    "offsets backwards": (one(entry(begin=8, end=0)), "t"),
    "negative offset": (one(entry(begin=-8, end=0)), "t"),
    "offset beyond the end": (one(entry(shape=(4,), end=16)), "t"),
    "gap": (one(entry(shape=(1,), begin=4, end=8)), "t"),
    "overlap": ((json.dumps({"a": entry(), "b": entry(begin=4, end=12)}).encode(), b"\0" * 12), "b"),
    "bytes left over": ((json.dumps({"t": entry()}).encode(), b"\0" * 9), "data"),
}


def refused(path: Path) -> ModelFileError:
    tracemalloc.start()
    try:
        with soon_done(), pytest.raises(ModelFileError) as caught:
            open_model_file(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 << 20
    return caught.value


@pytest.mark.parametrize("name", CORPUS)
def test_a_hostile_header_is_refused_quickly_with_its_field(tmp_path: Path, name: str) -> None:
    parts, field = CORPUS[name]
    tiny.write_directory(tmp_path, weights())
    write_raw(tmp_path / "model.safetensors", parts)
    assert refused(tmp_path).field == field


@pytest.mark.parametrize("length", [1 << 20, 1 << 62, (1 << 64) - 1])
def test_a_header_longer_than_its_file_is_refused(tmp_path: Path, length: int) -> None:
    tiny.write_directory(tmp_path, weights())
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
    assert refused(tmp_path).field == "header length"


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    tiny.write_directory(tmp_path, weights())
    raw = (tmp_path / "model.safetensors").read_bytes()
    for size in [*range(1, 40), *range(40, len(raw), 4096), len(raw) - 1]:
        (tmp_path / "model.safetensors").write_bytes(raw[:size])
        assert refused(tmp_path).field


@seed(20260816)
@settings(
    max_examples=examples(1000),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_of_the_header_is_refused_or_harmless(tmp_path: Path, position: float, bit: int) -> None:
    path = tmp_path / "model.safetensors"
    if not path.exists():
        tiny.write_directory(tmp_path, weights())
        (tmp_path / "sound").write_bytes(path.read_bytes())
    raw = bytearray((tmp_path / "sound").read_bytes())
    raw[int(position * (8 + int.from_bytes(raw[:8], "little")))] ^= 1 << bit
    path.write_bytes(raw)
    try:
        model = open_model_file(tmp_path)
    except ModelFileError:
        return
    for name in model.tensor_names():
        model.tensor(name)


# --- parts that are not run -------------------------------------------------------------------------------------------


def test_the_vision_side_is_left_out_by_name_and_said_so(tmp_path: Path) -> None:
    (source,) = (path for path in FIXTURES if path.name == "qwen3_vl")
    model = open_model_file(source)
    (qwen,) = model.notes
    (gemma,) = open_model_file(next(path for path in FIXTURES if path.name == "gemma3")).notes
    assert not any("visual" in name for name in model.tensor_names())
    assert "tensors model.visual.* are left out, text only." in str(qwen)
    assert "tensors multi_modal_projector.*, vision_tower.* are left out, text only." in str(gemma)
    copied = Path(shutil.copytree(source, tmp_path / "vl"))
    tensors = load_file(copied / "model.safetensors")
    save_file(tensors | {"model.audio.proj.weight": np.zeros(4, np.float16)}, copied / "model.safetensors")
    with pytest.raises(UnsupportedModelError) as caught:
        open_model_file(copied)
    assert caught.value.field == "model.audio.proj.weight"
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, copied / "model.safetensors")
    with pytest.raises(ModelFileError) as missing:
        open_model_file(copied)
    assert missing.value.field == name
