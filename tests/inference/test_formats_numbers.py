"""Numbers of eight bits come back as their definition says, with the scales that checkpoints keep beside them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.model_file import open_model_file
from inference.formats.numbers import as_f32
from tests.inference import tiny_models as tiny

NAME = "model.layers.1.mlp.up_proj.weight"  # (96, 64)
SCALE = NAME + "_scale_inv"
BLOCK = (40, 48)  # neither divides its side
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(BLOCK)}


def value(code: int, exponent_bits: int) -> float:
    """One number as the definition reads: sign, exponent, mantissa."""
    mantissa_bits = 7 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - 1
    exponent, mantissa = code >> mantissa_bits & (1 << exponent_bits) - 1, code & (1 << mantissa_bits) - 1
    is_top = exponent == (1 << exponent_bits) - 1
    if is_top and exponent_bits == 5:
        size = float("nan") if mantissa else float("inf")
    elif is_top and mantissa == 7:
        size = float("nan")
    elif exponent:
        size = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
    else:
        size = mantissa / (1 << mantissa_bits) * 2.0 ** (1 - bias)
    return -size if code & 128 else size


@pytest.mark.parametrize(("dtype", "exponent_bits"), [("F8_E4M3", 4), ("F8_E5M2", 5)])
def test_every_byte_is_the_number_that_its_definition_gives(dtype: str, exponent_bits: int) -> None:
    found = as_f32(np.arange(256, dtype=np.uint8), dtype)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [value(code, exponent_bits) for code in range(256)])


def test_well_known_numbers_of_eight_bits() -> None:
    codes = np.array([0x38, 0xB8, 0x7E, 0x01, 0x00], np.uint8)
    assert as_f32(codes, "F8_E4M3").tolist() == [1.0, -1.0, 448.0, 2.0**-9, 0.0]
    codes = np.array([0x3C, 0xBC, 0x7B, 0x01, 0x7C], np.uint8)
    assert as_f32(codes, "F8_E5M2").tolist() == [1.0, -1.0, 57344.0, 2.0**-16, float("inf")]


Tensors = dict[str, tuple[str, NDArray[Any]]]


def stored(dtype: str = "F8_E4M3") -> tuple[Tensors, NDArray[np.uint8]]:
    """A model whose NAME is stored in eight bits, and the bytes of it."""
    tensors: Tensors = {name: ("F32", weight) for name, weight in tiny.weights(np.random.default_rng(5)).items()}
    codes = np.random.default_rng(6).integers(0, 0x70, tensors[NAME][1].shape, dtype=np.uint8)
    tensors[NAME] = (dtype, codes)
    return tensors, codes


def write(path: Path, tensors: Tensors, config: dict[str, Any] | None = None) -> Path:
    tiny.write_directory(path, {}, config=tiny.tiny_config() | (config or {}))
    entries, data = {}, b""
    for name, (dtype, array) in tensors.items():
        end = len(data) + array.nbytes
        entries[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), end]}
        data += array.tobytes()
    header = json.dumps(entries).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
def test_weights_of_eight_bits_are_read(tmp_path: Path, dtype: str) -> None:
    tensors, codes = stored(dtype)
    model = open_model_file(write(tmp_path, tensors))
    np.testing.assert_array_equal(model.tensor(NAME), as_f32(codes.ravel(), dtype).reshape(codes.shape))


def test_every_block_is_multiplied_by_its_scale(tmp_path: Path) -> None:
    tensors, codes = stored()
    scales = np.arange(1, 7, dtype=np.float32).reshape(3, 2) / 4
    tensors[SCALE] = ("F32", scales)
    model = open_model_file(write(tmp_path, tensors, {"quantization_config": FP8}))
    expected = as_f32(codes.ravel(), "F8_E4M3").reshape(codes.shape)
    for row in range(codes.shape[0]):
        for column in range(codes.shape[1]):
            expected[row, column] *= scales[row // BLOCK[0], column // BLOCK[1]]
    np.testing.assert_array_equal(model.tensor(NAME), expected)
    np.testing.assert_array_equal(model.tensor(NAME), expected)  # also the second time
    assert not model.has_tensor(SCALE)


def test_a_scale_that_is_missing_misshapen_or_not_announced_is_named(tmp_path: Path) -> None:
    tensors, _ = stored()
    with pytest.raises(ModelFileError, match="scale") as caught:
        open_model_file(write(tmp_path / "missing", tensors, {"quantization_config": FP8}))
    assert caught.value.field == NAME
    misshapen = tensors | {SCALE: ("F32", np.ones((2, 3), np.float32))}
    with pytest.raises(ModelFileError, match="expected") as caught:
        open_model_file(write(tmp_path / "misshapen", misshapen, {"quantization_config": FP8}))
    assert caught.value.field == SCALE
    for name in (SCALE, NAME + "_scale", NAME.replace("weight", "input_scale")):
        extra = tensors | {name: ("F32", np.ones((3, 2), np.float32))}
        with pytest.raises(UnsupportedModelError) as caught:
            open_model_file(write(tmp_path / "extra", extra))
        assert caught.value.field == name


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "gptq"},
        {"quant_method": "fp8"},
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "compressed-tensors", "format": "float-quantized"},
        "fp8",
    ],
)
def test_other_ways_of_quantising_are_refused(tmp_path: Path, quantization: Any) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        open_model_file(write(tmp_path, stored()[0], {"quantization_config": quantization}))
    assert caught.value.field == "quantization_config"


@pytest.mark.parametrize(
    ("dtype", "kind"), [("F64", np.float64), ("I32", np.int32), ("U8", np.uint8), ("BOOL", np.bool_)]
)
def test_numbers_that_no_model_computes_with_are_refused_by_the_name_of_the_tensor(
    tmp_path: Path, dtype: str, kind: type[Any]
) -> None:
    tensors, _ = stored()
    tensors[NAME] = (dtype, np.zeros(tensors[NAME][1].shape, kind))
    with pytest.raises(UnsupportedModelError, match=dtype) as caught:
        open_model_file(write(tmp_path, tensors))
    assert caught.value.field == NAME
    assert "BF16" in caught.value.known
