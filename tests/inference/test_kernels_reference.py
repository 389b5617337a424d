"""The elementwise kernels: right, and the same for a column in any company."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.kernels.reference import RopeTable, gelu_multiply, rms_norm, rotate, silu_multiply, sum_rows
from inference.kernels.scratch import Scratch
from tests.examples import examples

COLUMNS = st.tuples(st.integers(4, 300), st.integers(2, 700), st.integers(0, 1 << 30))


@given(COLUMNS)
@settings(max_examples=examples(30), deadline=None)
def test_a_column_is_summed_alike_in_any_company(case: tuple[int, int, int]) -> None:
    W, C, seed = case
    x = np.random.default_rng(seed).standard_normal((C, W)).astype(np.float32)
    np.testing.assert_array_equal(sum_rows(x.copy())[:, 2:3], sum_rows(x[:, 2:3].copy()))
    np.testing.assert_allclose(sum_rows(x.copy())[0], x.astype(np.float64).sum(0), rtol=1e-5, atol=1e-4)


@given(COLUMNS)
@settings(max_examples=examples(30), deadline=None)
def test_norm_and_activation_treat_a_column_alike_in_any_company(case: tuple[int, int, int]) -> None:
    W, half, seed = case
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((2 * half, W)) * 30).astype(np.float32)
    weight = rng.standard_normal((2 * half, 1)).astype(np.float32)
    few = np.ascontiguousarray(x[:, 1:4])
    normed = rms_norm(x, weight, 1e-5, Scratch()).copy()
    np.testing.assert_array_equal(normed[:, 1:4], rms_norm(few, weight, 1e-5, Scratch()))
    exact = x.astype(np.float64)
    np.testing.assert_allclose(normed, exact / np.sqrt((exact**2).mean(0) + 1e-5) * weight, rtol=1e-5, atol=1e-6)
    gate, up = exact[:half], exact[half:]
    inner = (2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    for activate, expected in (
        (silu_multiply, gate / (1 + np.exp(-gate)) * up),
        (gelu_multiply, gate / 2 * (1 + np.tanh(inner)) * up),
    ):
        mixed = activate(x.copy(), Scratch())
        np.testing.assert_array_equal(mixed[:, 1:4], activate(few.copy(), Scratch()))
        np.testing.assert_allclose(mixed, expected, rtol=1e-5, atol=1e-5)


def test_heads_are_normalised_each_by_itself() -> None:
    rng = np.random.default_rng(0)
    heads, weight = rng.standard_normal((3, 10, 5), np.float32), rng.standard_normal((10, 1), np.float32)
    together = rms_norm(heads, weight, 1e-5, Scratch())
    for head, normed in zip(heads, together, strict=True):
        np.testing.assert_array_equal(normed, rms_norm(head, weight, 1e-5, Scratch()))


def test_components_beyond_the_rotated_ones_stay_as_they_are() -> None:
    rng = np.random.default_rng(0)
    heads = rng.standard_normal((2, 10, 4), np.float32)
    cos, sin = RopeTable(np.array([1.0, 0.3, 0.1])).columns(np.arange(1, 5, dtype=np.int32), 0, 4)
    whole, part = heads[:, :6].copy(), heads.copy()
    rotate(whole, cos, sin, Scratch())
    rotate(part, cos, sin, Scratch())
    np.testing.assert_array_equal(part[:, :6], whole)
    np.testing.assert_array_equal(part[:, 6:], heads[:, 6:])
    assert (whole != heads[:, :6]).all()


def test_a_table_scales_what_it_rotates() -> None:
    frequencies, positions = np.array([1.0, 0.1]), np.arange(4, dtype=np.int32)
    for plain, scaled in zip(
        RopeTable(frequencies).columns(positions, 0, 4),
        RopeTable(frequencies, 1.5).columns(positions, 0, 4),
        strict=True,
    ):
        np.testing.assert_allclose(scaled, 1.5 * plain, rtol=1e-6)


def test_a_rotated_pair_depends_on_the_distance_only() -> None:
    table = RopeTable(100.0 ** -np.arange(0, 1, 0.25))
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((1, 8, 1)).astype(np.float32) for _ in "qk")

    def score(query_position: int, key_position: int) -> float:
        turned = []
        for heads, position in ((q, query_position), (k, key_position)):
            x = np.repeat(heads, 4, axis=2)
            rotate(x, *table.columns(np.full(4, position, np.int32), 0, 4), Scratch())
            turned.append(x[0, :, 0])
        return float(turned[0] @ turned[1])

    assert abs(score(40, 31) - score(12, 3)) < 1e-5
    assert abs(score(40, 31) - score(40, 30)) > 1e-3


def test_columns_of_the_rope_table_stand_in_their_lanes() -> None:
    cos, sin = RopeTable(np.array([1.0, 10.0**-0.5])).columns(np.array([3, 9], np.int32), first=1, width=4)
    angles = np.outer([1.0, 10.0**-0.5], [3, 9])
    np.testing.assert_allclose(cos[:, 1:3], np.cos(angles), rtol=1e-6)
    np.testing.assert_allclose(sin[:, 1:3], np.sin(angles), rtol=1e-6)
    assert not cos[:, [0, 3]].any()


def test_a_position_has_the_same_angles_whatever_was_asked_before() -> None:
    frequencies = 10_000.0 ** -np.arange(0, 1, 1 / 32)
    fresh, used = RopeTable(frequencies), RopeTable(frequencies)
    used.columns(np.array([5], np.int32), 0, 4)
    used.columns(np.array([3 * RopeTable.STRETCH], np.int32), 0, 4)
    positions = np.array([5, RopeTable.STRETCH - 1, RopeTable.STRETCH + 7], np.int32)
    for one, other in zip(fresh.columns(positions, 0, 4), used.columns(positions, 0, 4), strict=True):
        np.testing.assert_array_equal(one, other)
