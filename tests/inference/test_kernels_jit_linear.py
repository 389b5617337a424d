"""Compiled products have the oracle's bits: every form, every tier, any number of rows, columns and threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from inference.kernels.jit.cpu import Target
from inference.kernels.jit.linear import embed, linear, quantise
from inference.kernels.jit.linear_check import KernelsDiffer, check, multiply, random_matrix
from inference.kernels.jit.linear_kernel import SCRATCH_BYTES
from inference.kernels.jit.linear_rows import STEP, quantised_bytes, tile_rows_bytes
from inference.kernels.jit.linear_tiles import MAX_ROWS as MAX_TILED
from inference.kernels.jit.linear_tiles import MIN_TILED
from inference.kernels.jit.linear_unpacked import MAX_ROWS, MAX_STEPS
from inference.kernels.jit.packing import aligned, pack
from inference.kernels.oracle import linear as oracle
from inference.kernels.quantized import (
    CODE_RANGES,
    FloatForm,
    Form,
    IntegerForm,
    IntegerRows,
    dequantised,
    float_matrix,
    widened,
)
from inference.types import F32
from tests.examples import examples
from tests.inference.linear_cases import COMMON, NUM_OWN, OLDER, Q4_1, TARGETS, cases, kernels, name_of

on_every_target = pytest.mark.parametrize(("tier", "target"), TARGETS[:NUM_OWN])
on_every_case = pytest.mark.parametrize(("tier", "target", "form"), cases())


def assert_same_bits(found: F32, expected: F32) -> None:
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@on_every_case
def test_every_form_has_the_oracles_bits(tier: str, target: Target, form: Form) -> None:
    rng = np.random.default_rng(2)
    for num_rows, num_inner, num_tokens in ((16, 32, 1), (1, 64, 2), (113, 96, 3), (64, 288, 5), (50, 160, 70)):
        matrix = random_matrix(form, num_rows, num_inner, rng)
        x = rng.standard_normal((num_tokens, num_inner), np.float32)
        found = multiply(pack([matrix], kernels(tier, target)), x, kernels(tier, target))
        assert_same_bits(found, oracle.linear(matrix, x))


@settings(max_examples=examples(60), deadline=None)
@given(
    case=st.sampled_from(TARGETS[:NUM_OWN]),
    form=st.sampled_from(COMMON),
    num_rows=st.integers(1, 70),
    num_steps=st.integers(1, 6),
    num_tokens=st.integers(1, 70),
    seed=st.integers(0, 1 << 30),
    magnitude=st.sampled_from([0.0, 1e-37, 1e-31, 1e-29, 1e-6, 1.0, 3e4, 1e30]),
)
def test_any_size_and_magnitude_has_the_oracles_bits(
    case: tuple[str, Target], form: Form, num_rows: int, num_steps: int, num_tokens: int, seed: int, magnitude: float
) -> None:
    rng = np.random.default_rng(seed)
    matrix = random_matrix(form, num_rows, 32 * num_steps, rng)
    x = rng.standard_normal((num_tokens, 32 * num_steps), np.float32) * np.float32(magnitude)
    x[rng.random(x.shape) < 0.2] = 0
    x[rng.integers(num_tokens)] = 0  # a row of zeros among the others
    found = multiply(pack([matrix], kernels(*case)), x, kernels(*case))
    assert_same_bits(found, oracle.linear(matrix, x))


@on_every_target
@pytest.mark.parametrize("form", [form for form in COMMON if isinstance(form, IntegerForm)], ids=name_of)
def test_panels_taken_in_parts_and_tokens_in_portions_have_the_oracles_bits(
    tier: str, target: Target, form: IntegerForm
) -> None:
    """More k than are unpacked at a time, more tokens than meet a panel at a time, and every number up to some."""
    rng = np.random.default_rng(8)
    matrix = random_matrix(form, 19, STEP * (2 * MAX_STEPS + 1), rng)
    packed = pack([matrix], kernels(tier, target))
    x = rng.standard_normal((max(2 * MAX_ROWS, MAX_TILED) + 3, matrix.num_inner), np.float32)
    expected = oracle.linear(matrix, x)
    for num_tokens in (*range(1, 34), MAX_ROWS, 2 * MAX_ROWS + 3, len(x)):
        assert_same_bits(multiply(packed, x[:num_tokens], kernels(tier, target)), expected[:num_tokens])


@on_every_target
@pytest.mark.parametrize("form", [form for form in COMMON if isinstance(form, IntegerForm)], ids=name_of)
def test_the_largest_sums_do_not_overflow(tier: str, target: Target, form: IntegerForm) -> None:
    """All codes at the end of their range, all activations at the largest integer, of one sign or the other."""
    rng = np.random.default_rng(0)
    for code in CODE_RANGES[form.codes]:
        matrix = random_matrix(form, 16, 64, rng)
        rows = matrix.read(0, 16)
        assert isinstance(rows, IntegerRows)
        rows.codes[...] = code
        for sign in (-1, 1):
            x = np.full((MIN_TILED + 1, 64), sign * 3.5, np.float32)
            found = multiply(pack([matrix], kernels(tier, target)), x, kernels(tier, target))
            assert_same_bits(found, oracle.linear(matrix, x))


@on_every_target
@pytest.mark.parametrize("form", [Q4_1, FloatForm("bf16")], ids=name_of)
def test_a_row_has_the_same_bits_alone_and_among_any_others(tier: str, target: Target, form: Form) -> None:
    rng = np.random.default_rng(4)
    packed = pack([random_matrix(form, 80, 96, rng)], kernels(tier, target))
    x = rng.standard_normal((33, 96), np.float32)
    whole = multiply(packed, x, kernels(tier, target))
    for row in range(33):
        assert_same_bits(multiply(packed, x[row : row + 1], kernels(tier, target))[0], whole[row])
    for start, end in ((1, 3), (0, 7), (5, 33)):
        assert_same_bits(multiply(packed, x[start:end], kernels(tier, target)), whole[start:end])


@on_every_target
def test_what_is_no_number_reaches_every_output_of_its_row_and_no_other(tier: str, target: Target) -> None:
    rng = np.random.default_rng(5)
    packed = pack([random_matrix(Q4_1, 40, 64, rng)], kernels(tier, target))
    x = rng.standard_normal((MIN_TILED + 6, 64), np.float32)
    clean = x.copy()
    x[1, 3], x[3, 60], x[4, 0] = np.nan, np.inf, -np.inf
    for num_tokens in (6, len(x)):
        found, expected = (multiply(packed, rows[:num_tokens], kernels(tier, target)) for rows in (x, clean))
        assert np.isnan(found[[1, 3, 4]]).all()
        others = [0, 2, *range(5, num_tokens)]
        assert_same_bits(found[others], expected[others])


@on_every_target
def test_float16_weights_keep_subnormals_and_infinities(tier: str, target: Target) -> None:
    weights = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    weights = weights[~np.isnan(weights)][: 63 * 1024].reshape(-1, 2)[:, :2]
    matrix = float_matrix(FloatForm("f16"), np.ascontiguousarray(weights))
    packed = pack([matrix], kernels(tier, target))
    x = np.array([[1, 0.5]], np.float32)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(multiply(packed, x, kernels(tier, target)), oracle.linear(matrix, x))


@njit(nogil=True)
def run(matrix, x, x_stride, data, tiles, scratch, first, end, out, out_stride, first_panel, end_panel):  # type: ignore[no-untyped-def]
    linear(matrix, x, x_stride, data, tiles, scratch, first, end, out, out_stride, first_panel, end_panel)


@njit(nogil=True)
def run_quantise(kernel, x, x_stride, num_inner, data, tiles, first, end):  # type: ignore[no-untyped-def]
    quantise(kernel, x, x_stride, num_inner, data, tiles, first, end)


@njit
def run_embed(matrix, row, out):  # type: ignore[no-untyped-def]
    embed(matrix, row, out)


@on_every_target
@pytest.mark.parametrize("form", [Q4_1, FloatForm("f16")], ids=name_of)
def test_compiled_code_computes_parts_into_a_wider_array_and_nothing_beside(
    tier: str, target: Target, form: Form
) -> None:
    """Strides, row ranges and panel ranges, on two threads at once."""
    rng, found = np.random.default_rng(6), kernels(tier, target)
    matrix = random_matrix(form, 77, 64, rng)
    packed = pack([matrix], found)
    wide = rng.standard_normal((47, 100), np.float32)
    data, scratch = aligned(quantised_bytes(47, 64)), aligned(2 * SCRATCH_BYTES)
    tiles = aligned(tile_rows_bytes(47, 64))
    codes = data.ctypes.data, tiles.ctypes.data if found.tier.has_tiles else 0
    out = np.full((47, 90), 7, np.float32)
    for first, end in ((0, 5), (5, 47)):
        run_quantise(found.quantise(), wide.ctypes.data, 100, 64, *codes, first, end)

    def part(own: int, panels: tuple[int, int]) -> None:
        for rows in ((0, 8), (8, 30), (32, 47), (28, 34)):
            x = wide.ctypes.data, 100, *codes
            run(packed.address, *x, scratch.ctypes.data + own, *rows, out.ctypes.data + 8, 90, *panels)

    part(0, (1, 1))  # compiled before the threads start
    threads = [threading.Thread(target=part, args=args) for args in ((0, (0, 2)), (SCRATCH_BYTES, (2, 5)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same_bits(np.ascontiguousarray(out[:, 2:79]), oracle.linear(matrix, np.ascontiguousarray(wide[:, :64])))
    assert (out[:, :2] == 7).all()
    assert (out[:, 79:] == 7).all()


@pytest.mark.parametrize("form", COMMON, ids=name_of)
def test_a_row_is_read_back_as_its_numbers(form: Form) -> None:
    found = kernels(*TARGETS[0])
    matrix = random_matrix(form, 35, 64, np.random.default_rng(7))
    packed = pack([matrix], found)
    rows = matrix.read(0, 35)
    expected = dequantised(rows) if isinstance(rows, IntegerRows) else widened(rows)
    out = np.zeros(64, np.float32)
    for row in (0, 15, 16, 34):
        run_embed(packed.address, row, out.ctypes.data)
        assert_same_bits(out, expected[row])


@on_every_case
def test_a_tier_proves_itself_at_start(tier: str, target: Target, form: Form) -> None:
    check(kernels(tier, target), form)


def test_the_code_of_older_cpus_is_theirs() -> None:
    """Otherwise these tests would try one tier under three names."""
    for tier, target in TARGETS:
        if tier == "amx":
            assert "tdpbf16ps" in kernels(tier, target).code(Q4_1).assembly()
        elif target.cpu == OLDER["generic"].cpu:
            assert "%ymm" not in kernels(tier, target).code(Q4_1).assembly()
        elif target.cpu == OLDER["avx2"].cpu:
            text = kernels(tier, target).code(Q4_1).assembly()
            assert "vpmaddwd" in text and "%zmm" not in text  # noqa: PT018


def test_kernels_that_compute_something_else_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the oracle is off by the last bit of one number."""

    def wrong(matrix: object, x: F32) -> F32:
        y = right(matrix, x)  # type: ignore[arg-type]
        y[-1, -1] = np.nextafter(y[-1, -1], np.float32(9))
        return y

    right = oracle.linear
    monkeypatch.setattr(oracle, "linear", wrong)
    with pytest.raises(KernelsDiffer) as caught:
        check(kernels(*TARGETS[0]), Q4_1)
    assert (caught.value.form, caught.value.num_wrong) == (Q4_1, 1)
