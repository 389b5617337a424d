"""Attention over block tables: right, and deaf to whatever lies outside the context."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.kernels.attention import TILE, AttentionJob, Context, attend, attention_shapes
from inference.kernels.blas import Blas
from inference.kernels.call_plan import CallPlan, probe_calls
from inference.kernels.kv_storage import KVStorage
from inference.kernels.scratch import Scratch
from tests.examples import examples

K, G, D = 2, 3, 16


@pytest.fixture(scope="module")
def plan() -> CallPlan:
    return probe_calls(attention_shapes(D), Blas(), num_threads=1)


@given(
    block_size=st.integers(1, 40),
    context_len=st.integers(1, 900),
    cuts=st.sets(st.integers(0, 900), max_size=4),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(60), deadline=None)
def test_tiles_hold_the_rows_of_the_context_and_zeros(
    block_size: int, context_len: int, cuts: set[int], seed: int
) -> None:
    """Tables made of a few consecutive stretches, so that some tiles are views, some are not."""
    rng = np.random.default_rng(seed)
    num_blocks = -(-context_len // block_size)
    stretches = np.split(np.arange(num_blocks), sorted(cut for cut in cuts if 0 < cut < num_blocks))
    order = rng.permutation(len(stretches))
    places = np.cumsum([0, *(len(stretches[index]) + 1 for index in order)])
    table = np.empty(num_blocks, np.int32)
    for place, index in zip(places, order, strict=False):
        table[stretches[index]] = place + np.arange(len(stretches[index]))
    kv = KVStorage(1, K, D, int(places[-1]), block_size)
    kv.k[...] = rng.standard_normal(kv.k.shape)
    kv.v[...] = rng.standard_normal(kv.v.shape)
    context = Context.of(table, context_len, block_size)
    num_tiles = -(-context_len // TILE)
    for wanted in (range(start, end) for start in range(num_tiles) for end in range(start + 1, num_tiles + 1)):
        parts = context.read(kv, 0, wanted, Scratch())
        ends = np.cumsum([wanted.start, *(k.shape[1] for _, k, _ in parts)]).tolist()
        assert [first for first, _, _ in parts] == ends[:-1]
        for pool, tiles in ((kv.k, [k for _, k, _ in parts]), (kv.v, [v for _, _, v in parts])):
            expected = np.zeros((K, num_tiles * TILE, D), np.float32)
            expected[:, :context_len] = pool[0][:, context.slots]
            got = np.concatenate(tiles, axis=1).reshape(K, len(wanted) * TILE, D)
            np.testing.assert_array_equal(got, expected[:, wanted.start * TILE : wanted.stop * TILE])


def test_consecutive_blocks_are_read_in_place() -> None:
    kv = KVStorage(1, K, D, 100, 16)
    context = Context.of(np.arange(5, 55, dtype=np.int32), 50 * 16, 16)
    (_, whole, _), (_, rest, _) = context.read(kv, 0, range(4), Scratch())
    assert whole.shape[1] == 3
    assert np.shares_memory(whole, kv.k)
    assert not np.shares_memory(rest, kv.k)


@given(
    context_len=st.integers(1, 900),
    num_tokens=st.integers(1, 80),
    window=st.just(0) | st.integers(1, 700),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(60), deadline=None)
def test_agrees_with_plain_attention(plan: CallPlan, context_len: int, num_tokens: int, window: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_tokens = min(num_tokens, context_len)
    kv = KVStorage(1, K, D, 60, 16)
    kv.k.fill(np.nan)
    kv.v.fill(np.nan)
    table = rng.permutation(60)[: -(-context_len // 16)].astype(np.int32)
    context = Context.of(table, context_len, 16)
    k, v = (rng.standard_normal((context_len, K, D)).astype(np.float32) for _ in "kv")
    kv.write(0, context.slots, k, v)
    positions = np.arange(context_len - num_tokens, context_len, dtype=np.int32)
    q = 3 * rng.standard_normal((K, G, D, num_tokens)).astype(np.float32)
    out = np.empty_like(q)
    job = AttentionJob.of(0, positions, context, G, plan.beside, window)
    attend(job, q, kv, 0, 0.3, Scratch(), out)
    scores = np.einsum("kgdt,skd->kgts", q.astype(np.float64), k) * 0.3
    distance = positions[:, None] - np.arange(context_len)
    scores[..., (distance < 0) | (distance >= (window or context_len))] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out, np.einsum("kgts,skd->kgdt", weights, v), rtol=2e-4, atol=2e-5)


def test_tiles_outside_the_window_are_not_computed(plan: CallPlan) -> None:
    context = Context.of(np.arange(80, dtype=np.int32), 1280, 16)
    for position, window, tiles in ((1000, 10, range(3, 4)), (1030, 10, range(3, 5)), (1030, 0, range(5))):
        job = AttentionJob.of(0, np.array([position], np.int32), context, G, plan.beside, window)
        assert [piece.tiles for piece in job.pieces] == [tiles]


def test_a_context_of_nan_leaves_nothing_behind_for_the_next(plan: CallPlan) -> None:
    rng, scratch = np.random.default_rng(0), Scratch()
    kv = KVStorage(1, K, D, 40, 16)
    q = rng.standard_normal((K, G, D, 1)).astype(np.float32)

    def run(table: np.ndarray, context_len: int, scratch: Scratch) -> np.ndarray:
        out = np.empty_like(q)
        context = Context.of(table.astype(np.int32), context_len, 16)
        positions = np.array([context_len - 1], np.int32)
        attend(AttentionJob.of(0, positions, context, G, plan.beside), q, kv, 0, D**-0.5, scratch, out)
        return out

    kv.k[:, :, :160] = rng.standard_normal((1, K, 160, D))
    kv.v[:, :, :160] = rng.standard_normal((1, K, 160, D))
    expected = run(np.arange(10), 150, Scratch())
    kv.k[:, :, 160:], kv.v[:, :, 160:] = np.nan, np.nan
    assert np.isnan(run(np.arange(10, 40), 480, scratch)).all()
    np.testing.assert_array_equal(run(np.arange(10), 150, scratch), expected)
