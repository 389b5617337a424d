"""Panels hold a matrix in about the bytes of its file; slabs, odd sizes and joined parts change nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from inference.formats.model_file import open_model_file
from inference.kernels.jit import packing
from inference.kernels.jit.linear_check import multiply, random_matrix
from inference.kernels.jit.packing import WeightMemory, aligned, pack, packed_bytes
from inference.kernels.oracle import linear as oracle
from inference.kernels.quantized import FloatForm, Form, IntegerForm, WeightMatrix
from tests.inference.linear_cases import COMMON, TARGETS, kernels, name_of

KERNELS = kernels(*TARGETS[0])


@pytest.mark.parametrize("form", COMMON, ids=name_of)
def test_parts_that_end_inside_a_panel_are_one_matrix(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    parts = [random_matrix(form, num_rows, 96, rng) for num_rows in (5, 16, 40, 1)]
    x = rng.standard_normal((3, 96), np.float32)
    expected = np.concatenate([oracle.linear(part, x) for part in parts], axis=1)
    whole = pack(parts, KERNELS)
    np.testing.assert_array_equal(multiply(whole, x, KERNELS), expected)
    for slab in (1, 7, 16, 20):
        monkeypatch.setattr(packing, "SLAB_ROWS", slab)
        np.testing.assert_array_equal(pack(parts, KERNELS).panels, whole.panels)


@pytest.mark.parametrize("form", COMMON, ids=name_of)
def test_rows_that_a_panel_lacks_are_zeros(form: Form) -> None:
    matrix = random_matrix(form, 17, 64, np.random.default_rng(2))
    packed = pack([matrix], KERNELS)
    assert packed.record["num_panels"] == 2
    assert packed.nbytes == packed_bytes(matrix)
    full = pack([random_matrix(form, 32, 64, np.random.default_rng(2))], KERNELS)
    assert np.count_nonzero(packed.panels[1]) < np.count_nonzero(full.panels[1]) / 4


def test_weights_share_large_pieces_of_memory_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PIECE_BYTES", 5000)
    memory, rng = WeightMemory(), np.random.default_rng(4)
    matrices = [random_matrix(form, 20, 64, rng) for form in (*COMMON, *COMMON)]
    packed = [pack([matrix], KERNELS, memory.take) for matrix in matrices]
    for matrix, found in zip(matrices, packed, strict=True):
        assert found.panels.ctypes.data % 64 == 0
        np.testing.assert_array_equal(found.panels, pack([matrix], KERNELS).panels)
    places = sorted((found.panels.ctypes.data, found.nbytes) for found in packed)
    assert any(start + size == following for (start, size), (following, _) in pairwise(places))


def test_a_matrix_is_read_in_slabs_and_every_row_once() -> None:
    read: list[tuple[int, int]] = []
    matrix = random_matrix(COMMON[0], 3000, 32, np.random.default_rng(3))

    def reading(inner: Callable[[int, int], object]) -> Callable[[int, int], object]:
        def note(first: int, end: int) -> object:
            read.append((first, end))
            return inner(first, end)

        return note

    pack([WeightMatrix(matrix.form, 3000, 32, reading(matrix.read))], KERNELS)  # type: ignore[arg-type]
    assert read == [(0, 1024), (1024, 2048), (2048, 3000)]


@pytest.mark.parametrize(
    ("form", "num_inner"), [(IntegerForm("u4", 16, "f32", has_minimum=True), 48), (FloatForm("bf16"), 63)]
)
def test_a_width_that_the_layout_cannot_hold_is_refused(form: Form, num_inner: int) -> None:
    with pytest.raises(ValueError, match=str(num_inner)):
        pack([random_matrix(form, 16, num_inner, np.random.default_rng(4))], KERNELS)


def test_memory_begins_on_a_cache_line() -> None:
    for num_bytes in (1, 63, 64, 1000):
        assert aligned(num_bytes).ctypes.data % 64 == 0
        assert len(aligned(num_bytes)) == num_bytes


@pytest.mark.model
def test_the_default_model_takes_as_much_memory_as_its_file(model_path: Path) -> None:
    model = open_model_file(model_path)
    names = [name for name in model.tensor_names() if "norm" not in name]
    total = sum(packed_bytes(model.matrix(name)) for name in names)
    assert 0.95 < total / model_path.stat().st_size < 1.02
