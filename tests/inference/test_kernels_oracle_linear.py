"""The oracle of the integer products is what its definition says, and close to the product of the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.kernels.jit.linear_check import random_matrix
from inference.kernels.oracle.linear import LEAST, MAX_CODE, linear, quantise_rows
from inference.kernels.quantized import FloatForm, Form, IntegerForm, IntegerRows, WeightMatrix, dequantised, widened
from inference.types import F32
from tests.examples import examples
from tests.inference.linear_cases import FORMS, name_of


def as_floats(matrix: WeightMatrix) -> F32:
    rows = matrix.read(0, matrix.num_rows)
    return dequantised(rows) if isinstance(rows, IntegerRows) else widened(rows)


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_products_are_those_of_the_numbers_to_15_bits(form: Form) -> None:
    rng = np.random.default_rng(1)
    matrix = random_matrix(form, 40, 512, rng)
    x = rng.standard_normal((9, 512), np.float32)
    exact = x.astype(np.float64) @ as_floats(matrix).astype(np.float64).T
    # The largest of 512 normal numbers is about 3.3, so a step is 2e-4 of a usual one, and the error 0.29 steps.
    assert (linear(matrix, x) - exact).std() < 8e-5 * exact.std()


def test_a_small_product_step_by_step() -> None:
    """Two groups of one row, in plain Python with each step rounded to float32."""
    form = IntegerForm("u4", 16, "f32", has_minimum=True)
    matrix = random_matrix(form, 1, 32, np.random.default_rng(2))
    rows = matrix.read(0, 1)
    assert isinstance(rows, IntegerRows)
    assert rows.minimums is not None
    x = np.random.default_rng(3).standard_normal((1, 32), np.float32)
    codes, scales = quantise_rows(x)
    total = np.float32(0)
    for group in (0, 1):
        part = range(16 * group, 16 * group + 16)
        products = sum(int(codes[0, k]) * int(rows.codes[0, k]) for k in part)
        term = np.float32(products) * np.float32(rows.scales[0, group])
        term = term + np.float32(sum(int(codes[0, k]) for k in part)) * np.float32(rows.minimums[0, group])
        total = total + term
    assert linear(matrix, x)[0, 0] == total * scales[0]


def test_a_float_product_adds_in_ascending_order() -> None:
    matrix = random_matrix(FloatForm("f32"), 1, 64, np.random.default_rng(4))
    x, w = np.random.default_rng(5).standard_normal((1, 64), np.float32), as_floats(matrix)
    total = np.float32(0)
    for k in range(64):
        total = total + x[0, k] * w[0, k]
    assert linear(matrix, x)[0, 0] == total


@settings(max_examples=examples(200), deadline=None)
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_codes_stay_in_their_range_and_near_the_number(values: list[float]) -> None:
    x = np.array([values], np.float32)
    codes, scales = quantise_rows(x)
    assert np.abs(codes).max() <= MAX_CODE
    if np.abs(x).max() >= LEAST:
        assert np.abs(codes).max() == MAX_CODE  # the largest magnitude uses the whole range
        error = np.abs(codes.astype(np.float64) * scales[0] - x)
        assert error.max() <= 0.502 * scales[0]
    else:
        assert not codes.any()
        assert scales[0] == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_with_what_is_no_number_says_so_and_leaves_the_others_alone(bad: float) -> None:
    matrix = random_matrix(FORMS[0], 20, 64, np.random.default_rng(6))
    x = np.random.default_rng(7).standard_normal((3, 64), np.float32)
    clean = linear(matrix, x)
    x[1, 5] = bad
    found = linear(matrix, x)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], clean[[0, 2]])
