"""Matrices come out of model files as they are stored, integers with scales or narrow floats, and mean the tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

from inference.errors import ModelFileError
from inference.formats.base import ModelFile
from inference.formats.gguf_file import is_dequantised
from inference.formats.gguf_integers import KINDS, read_rows
from inference.formats.gguf_matrix import form_of
from inference.formats.model_file import open_model_file
from inference.kernels.quantized import (
    CODE_RANGES,
    FloatForm,
    IntegerForm,
    IntegerRows,
    WeightMatrix,
    dequantised,
    widened,
)
from inference.types import F32
from tests.inference import tiny_models as tiny
from tests.inference.gguf_families import write_gguf
from tests.inference.row_invariance import FIXTURES
from tests.inference.test_formats_numbers import FP8, NAME, SCALE, stored, write


def weights(matrix: WeightMatrix, step: int = 1 << 20) -> F32:
    parts = []
    for first in range(0, matrix.num_rows, step):
        rows = matrix.read(first, min(first + step, matrix.num_rows))
        parts.append(dequantised(rows) if isinstance(rows, IntegerRows) else widened(rows))
    return np.concatenate(parts)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_integers_and_scales_are_what_the_package_dequantises(kind: GGMLQuantizationType) -> None:
    """Of random bits, so that every code and every scale occurs, infinite and subnormal ones too."""
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    rows = np.random.default_rng(3).integers(0, 256, (60, 1024 // block_size * block_bytes), dtype=np.uint8)
    form = KINDS[kind].form
    with np.errstate(invalid="ignore", over="ignore"):
        found = read_rows(kind, rows)
    low, high = CODE_RANGES[form.codes]
    assert (found.codes.shape, found.scales.shape) == ((60, 1024), (60, 1024 // form.group))
    assert found.codes.min() >= low and found.codes.max() <= high  # noqa: PT018
    assert found.scales.dtype == form.scale_dtype
    assert (found.minimums is not None) == form.has_minimum
    with np.errstate(invalid="ignore", over="ignore"):
        np.testing.assert_array_equal(dequantised(found), dequantize(rows, kind).astype(np.float32))


def test_every_kind_that_is_read_has_a_form() -> None:
    for kind in GGMLQuantizationType:
        if is_dequantised(kind):
            form = form_of(kind)
            assert isinstance(form, IntegerForm) == (kind in KINDS)


def assert_matrices_mean_the_tensors(model: ModelFile) -> None:
    for name in model.tensor_names():
        tensor = model.tensor(name)
        if tensor.ndim == 2:
            matrix = model.matrix(name)
            assert (matrix.num_rows, matrix.num_inner) == tensor.shape
            for step in (1 << 20, 7):
                np.testing.assert_array_equal(weights(matrix, step), tensor, err_msg=name)


@pytest.mark.model
def test_matrices_of_the_default_model_are_its_tensors(model_path: Path) -> None:
    model = open_model_file(model_path)
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.3.self_attn.k_proj.weight"):
        np.testing.assert_array_equal(weights(model.matrix(name), 100), model.tensor(name))  # rows are reordered
    head = model.matrix("model.embed_tokens.weight")
    assert head.form == IntegerForm("s8", 32, "f16", has_minimum=False)
    down = model.matrix("model.layers.0.mlp.down_proj.weight")
    assert down.form == IntegerForm("u4", 32, "f16", has_minimum=True)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_matrices_of_every_family_are_its_tensors(path: Path, tmp_path: Path) -> None:
    assert_matrices_mean_the_tensors(open_model_file(path))
    assert_matrices_mean_the_tensors(open_model_file(tiny.tiny_gguf().write(tmp_path / "m.gguf")))


def test_experts_of_one_tensor_are_matrices_of_their_own(tmp_path: Path) -> None:
    path = next(path for path in FIXTURES if path.name == "qwen3_moe")
    assert_matrices_mean_the_tensors(open_model_file(write_gguf(path, tmp_path / "m.gguf")))


@pytest.mark.parametrize(
    ("dtype", "form"), [("F32", "f32"), ("F16", "f16"), ("BF16", "bf16"), ("F8_E4M3", "bf16"), ("F8_E5M2", "bf16")]
)
def test_numbers_of_a_directory_keep_their_width(tmp_path: Path, dtype: str, form: str) -> None:
    tensors, _ = stored(dtype if dtype.startswith("F8") else "F8_E4M3")
    if not dtype.startswith("F8"):
        kind = {"F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}[dtype]
        tensors[NAME] = (dtype, np.random.default_rng(5).integers(0, np.iinfo(kind).max, (96, 64), dtype=kind))
    model = open_model_file(write(tmp_path, tensors))
    assert model.matrix(NAME).form == FloatForm(form)
    np.testing.assert_array_equal(weights(model.matrix(NAME), 10), model.tensor(NAME))


def test_scaled_numbers_of_eight_bits_are_the_products(tmp_path: Path) -> None:
    tensors, _ = stored()
    tensors[SCALE] = ("F32", np.random.default_rng(7).random((3, 2), np.float32))
    model = open_model_file(write(tmp_path, tensors, {"quantization_config": FP8}))
    np.testing.assert_array_equal(weights(model.matrix(NAME), 7), model.tensor(NAME))


def test_a_matrix_that_is_not_there_is_named(tmp_path: Path) -> None:
    for model in (
        open_model_file(tiny.tiny_gguf().write(tmp_path / "m.gguf")),
        open_model_file(next(path for path in FIXTURES if path.name == "llama")),
    ):
        with pytest.raises(ModelFileError) as caught:
            model.matrix("lm_head.weight" if model.config.tie_word_embeddings else "nothing.weight")
        assert caught.value.field
