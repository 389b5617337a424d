"""A column of a product has the same bits in every call of the plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.kernels import call_plan
from inference.kernels.blas import Blas
from inference.kernels.call_plan import CallPlan, Lanes, MatmulShape, fit_lanes, probe_calls, split_columns
from tests.examples import examples

SHAPES = (MatmulShape(960, 576), MatmulShape(576, 1536), MatmulShape(64, 24), MatmulShape(64, 256, is_transposed=True))


@pytest.fixture(scope="module")
def plans() -> dict[MatmulShape, CallPlan]:
    return {shape: probe_calls([shape], Blas(), num_threads=2) for shape in SHAPES}


def product(w: np.ndarray, x: np.ndarray, lanes: Lanes) -> np.ndarray:
    """w @ x with the columns of x in lanes and noise in every other column."""
    padded = np.random.default_rng(1).standard_normal((len(x), lanes.width), np.float32)
    padded[:, lanes.first : lanes.first + x.shape[1]] = x
    return (w @ padded)[:, lanes.first : lanes.first + x.shape[1]]


@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 1 << 30), count=st.integers(1, 300))
@settings(max_examples=examples(40), deadline=None)
def test_a_column_has_the_same_bits_alone_and_in_any_company(
    plans: dict[MatmulShape, CallPlan], shape: MatmulShape, seed: int, count: int
) -> None:
    plan, blas, rng = plans[shape], Blas(), np.random.default_rng(seed)
    w = rng.standard_normal((shape.num_rows, shape.num_inner), np.float32)
    if shape.is_transposed:
        w = np.ascontiguousarray(w.T).T
    x = rng.standard_normal((shape.num_inner, count), np.float32)
    column = int(rng.integers(0, count))
    blas.set_num_threads(2)
    alone = product(w, x[:, column : column + 1], plan.alone[0])
    together = [product(w, x[:, a : a + n], lanes) for a, n, lanes in split_columns(plan.alone, count)]
    np.testing.assert_array_equal(np.concatenate(together, axis=1)[:, column : column + 1], alone)
    blas.set_num_threads(1)
    beside = [product(w, x[:, a : a + n], lanes) for a, n, lanes in split_columns(plan.beside, count)]
    np.testing.assert_array_equal(np.concatenate(beside, axis=1)[:, column : column + 1], alone)


def test_the_number_of_threads_does_not_change_the_bits() -> None:
    shapes = [MatmulShape(960, 576), MatmulShape(576, 1536)]
    assert probe_calls(shapes, Blas(), 1).digest == probe_calls(shapes, Blas(), 2).digest


@pytest.mark.parametrize("num_rows", [576, 640, 896, 1000, 2048])
def test_one_thread_has_wide_calls_for_any_number_of_rows(num_rows: int) -> None:
    plan = probe_calls([MatmulShape(num_rows, 896), MatmulShape(num_rows, 320)], Blas(), num_threads=1)
    assert plan.has_wide_calls
    assert plan.beside[-1].count >= 200


def test_shapes_of_one_family_share_their_lanes(plans: dict[MatmulShape, CallPlan]) -> None:
    family = probe_calls(SHAPES[:2], Blas(), num_threads=2)
    for lanes in family.beside:
        for shape in SHAPES[:2]:
            own = {other.width: other for other in plans[shape].beside}[lanes.width]
            assert own.first <= lanes.first
            assert lanes.first + lanes.count <= own.first + own.count


def test_a_blas_that_tells_columns_apart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def output(w: np.ndarray, x: np.ndarray, width: int) -> np.ndarray:
        return np.repeat((w @ x)[:, None], width, axis=1) + np.arange(width)

    monkeypatch.setattr(call_plan, "_output", output)
    with pytest.raises(RuntimeError, match="treats the columns of a product differently"):
        probe_calls([MatmulShape(8, 8)], Blas(), 1)


def test_without_agreeing_wide_calls_the_narrow_ones_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    def output(w: np.ndarray, x: np.ndarray, width: int) -> np.ndarray:
        return np.repeat((w @ x)[:, None], width, axis=1) + width

    monkeypatch.setattr(call_plan, "_output", output)
    plan = probe_calls([MatmulShape(8, 8)], Blas(), 1, alone_widths=(4, 8), beside_widths=(32, 64))
    assert plan.alone == (Lanes(4, 0, 4),)
    assert plan.beside == ()


@given(counts=st.sets(st.integers(1, 50), min_size=1), num_columns=st.integers(0, 400))
def test_pieces_cover_all_columns_once_and_fit_their_lanes(counts: set[int], num_columns: int) -> None:
    options = [Lanes(count + 3, 1, count) for count in sorted(counts)]
    pieces = split_columns(options, num_columns)
    assert [column for start, count, _ in pieces for column in range(start, start + count)] == list(range(num_columns))
    for _, count, lanes in pieces:
        assert count <= lanes.count
        assert lanes == fit_lanes(options, count)


@pytest.mark.parametrize(
    "shape", [MatmulShape(2048, 40), MatmulShape(2048, 576), MatmulShape(2048, 256, True)], ids=str
)
def test_another_order_of_additions_shows_in_almost_every_row_of_the_probe(shape: MatmulShape) -> None:
    """Else a kernel that treats a few rows differently would pass for the same."""
    w, x = call_plan._operands(shape)
    terms = w * x
    forwards, backwards = np.add.accumulate(terms, axis=1)[:, -1], np.add.accumulate(terms[:, ::-1], axis=1)[:, -1]
    assert (forwards == backwards).mean() < 0.02
