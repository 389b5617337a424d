"""Attention alone: what it asks memory for ahead of time, and its bits, where numbers are very large or small too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from inference.kernels.jit.attention import (
    FOLLOWING_AT,
    NUM_GROUPS,
    SCRATCH_BYTES,
    attend_chunk,
    begin,
    expect,
    finish,
    fold,
    part_bytes,
    part_rows,
)
from inference.kernels.jit.attention_tiles import CHUNK, query_scale_at
from inference.kernels.jit.elementwise import make_words, write_key, write_value
from inference.kernels.jit.storage import IntegerStorage
from inference.kernels.kv_storage import KEY_GROUP
from inference.kernels.oracle import attention as oracle
from tests.examples import examples

DIM = 64
GROUP_BYTES = KEY_GROUP * (4 + 2 * DIM)


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("context", [1, 16, 17, 255, 256, 257, 500, 512, 513])
def test_the_next_keys_are_those_of_the_context(context: int, block_size: int) -> None:
    blocks = np.random.default_rng(context).permutation(1000)[: -(-context // block_size)]
    table = np.concatenate([blocks, np.full(64, 1 << 20)]).astype(np.int32)  # behind it, what is not the context's
    scratch = np.zeros(FOLLOWING_AT + 8 * NUM_GROUPS, np.uint8)
    last = (context - 1) // KEY_GROUP
    for chunk in range(last * KEY_GROUP // CHUNK + 1):
        expect(chunk, context, table.ctypes.data, block_size, 4096, DIM, scratch.ctypes.data)
        positions = KEY_GROUP * np.minimum(chunk * NUM_GROUPS + np.arange(NUM_GROUPS), last)
        slots = blocks[positions // block_size] * block_size + positions % block_size
        asked = scratch[FOLLOWING_AT:].view(np.int64)
        np.testing.assert_array_equal(asked, 4096 + slots // KEY_GROUP * GROUP_BYTES)


EXTREMES = [0, 1e-45, 1e-38, 9.9e-31, 1e-30, 1.1e-30, 1e-8, 1, 5792, 3e4, 2.0**100, 3.4e38, np.inf, np.nan]


def words_of(x: np.ndarray) -> tuple[np.ndarray, float]:
    """Integers and scale of a row of numbers, by the compiled kernel."""
    place = np.full(len(x) + 16, 7, np.float32)
    place[: len(x)] = x
    scale = make_words(place.ctypes.data, len(x))
    assert (place[len(x) :] == 7).all(), "wrote behind the row"
    words = place.view(np.int16)[: len(x) + len(x) % 2]
    assert len(x) % 2 == 0 or words[-1] == 0
    return words[: len(x)].astype(np.int64), scale


@given(
    x=arrays(np.float32, st.integers(2, 70), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    extreme=st.sampled_from(EXTREMES),
    at=st.integers(0, 1000),
)
@settings(max_examples=examples(200), deadline=None)
def test_numbers_become_the_integers_of_the_oracle(x: np.ndarray, extreme: float, at: int) -> None:
    x[at % len(x)] = extreme
    codes, scale = words_of(x)
    expected = oracle.Words.of(x)
    np.testing.assert_array_equal(np.float32(scale), expected.scales)
    assert np.isnan(scale) == (not np.isfinite(x).all())
    if np.isfinite(scale):
        np.testing.assert_array_equal(codes, expected.codes)
        largest = float(np.abs(x).max())
        assert np.abs(codes).max() <= 5792
        assert np.abs(codes * np.float64(scale) - x).max() <= max(largest / 5792 * 0.501, 1e-30)


def attended(q: np.ndarray, keys: np.ndarray, values: np.ndarray, factor: float = 1.0) -> np.ndarray:
    """(T, G, D) for queries q of the last T positions against keys, values (S, D)."""
    (T, G, D), S = q.shape, len(keys)
    pool = IntegerStorage(1, 1, D, -(-S // KEY_GROUP), KEY_GROUP)
    k, v = oracle.stored(keys[:, None], values[:, None])
    for slot in range(S):
        for words, address, write in ((k, pool.key_address, write_key), (v, pool.value_address, write_value)):
            row = np.zeros(D + D % 2, np.int16)
            row[:D] = words.codes[slot, 0]
            write(row.ctypes.data, words.scales[slot, 0], slot, D, address)
    row_size = D + 1 + D % 2
    scaled = np.zeros((T * G, row_size), np.float32)
    scaled[:, :D] = q.reshape(T * G, D)
    for row in scaled:
        scale = make_words(row.ctypes.data, D) * np.float32(factor)
        row.view(np.uint8)[query_scale_at(D) :][:4].view(np.float32)[...] = scale
    rows, size = part_rows(T * G), part_bytes(D)
    queries = np.array([scaled[min(row, T * G - 1)].ctypes.data for row in range(rows)])
    table = np.arange(-(-S // KEY_GROUP), dtype=np.int32)
    scratch = np.zeros(SCRATCH_BYTES, np.uint8)
    parts, states = (np.zeros((rows, size), np.uint8) for _ in range(2))
    out = np.empty((T * G, D), np.float32)
    for state in states:
        begin(state.ctypes.data, D)
    for chunk in range(-(-S // CHUNK)):
        attend_chunk(
            queries.ctypes.data, T * G, G, S - T, 0, chunk, table.ctypes.data, KEY_GROUP,
            pool.key_address, pool.value_address, D, scratch.ctypes.data, parts.ctypes.data,
        )  # fmt: skip
        for state, part in zip(states, parts, strict=True):
            fold(state.ctypes.data, part.ctypes.data, D)
    for row in range(T * G):
        finish(states[row].ctypes.data, D, out[row].ctypes.data)
    return out.reshape(T, G, D)


def some_numbers(kind: str, num_tokens: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q (T, 3, D), keys and values (300, D)."""
    rng = np.random.default_rng(0)
    q, keys, values = (rng.normal(size=shape) for shape in ((num_tokens, 3, dim), (300, dim), (300, dim)))
    if kind == "faint":  # small weights of the smallest values; nothing large covers their sum
        q[...], keys[...] = np.eye(dim)[0], 0
        keys[1:, 0] = rng.uniform(-90, -80, 299)
        values *= 1e-6
        values[0] = 0
    elif kind == "largest":  # all products of integers are as large as they can be, and so are their sums
        q[...], keys[...], values[...] = 1, 1, -1
    elif kind != "usual":
        q *= float(kind)
        keys, values = (x * 10.0 ** rng.uniform(-8, 4.5, (len(x), 1)) for x in (keys, values))
        keys[::7], values[::5] = 6e-8, -6e-8
    return tuple(x.astype(np.float32) for x in (q, keys, values))  # type: ignore[return-value]


@pytest.mark.parametrize("dim", [2, 9, 64, 80, 128])
@pytest.mark.parametrize("num_tokens", [1, 5])  # few rows, and tiles of them
@pytest.mark.parametrize("kind", ["usual", "faint", "largest", "1e-30", "1e-9", "1", "1e6", "1e28"])
def test_the_bits_are_those_of_the_oracle(num_tokens: int, kind: str, dim: int) -> None:
    q, keys, values = some_numbers(kind, num_tokens, dim)
    found = attended(q, keys, values, 0.125)
    expected = oracle.attend(q, *oracle.stored(keys[:, None], values[:, None]), 0.125, 0)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dim", [64, 128])
def test_attention_is_near_that_of_float64(dim: int) -> None:
    """Nearer than with float16, with a key that most rows look at, as models have."""
    rng = np.random.default_rng(1)
    q, keys, values = (rng.normal(size=shape).astype(np.float32) for shape in ((5, 3, dim), (300, dim), (300, dim)))
    keys[0] *= 3
    values[0] *= 0.01
    q[:, 1] += keys[0]
    found = attended(q, keys, values, dim**-0.5)

    def attention(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        scores = np.einsum("tgd,sd->tgs", q.astype(np.float64), keys) * dim**-0.5
        seen = np.arange(300) <= (295 + np.arange(5))[:, None, None]
        weights = np.where(seen, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0)
        return np.einsum("tgs,sd->tgd", weights / weights.sum(axis=-1, keepdims=True), values)

    exact = attention(keys.astype(np.float64), values.astype(np.float64))
    halves = attention(*(x.astype(np.float16).astype(np.float64) for x in (keys, values)))
    assert np.abs(found - exact).max() < np.abs(halves - exact).max()


def test_a_value_that_is_no_number_is_told_by_its_key() -> None:
    q, keys, values = some_numbers("usual", 5, 16)
    values[297, 3] = np.nan  # of the last but two tokens
    found = attended(q, keys, values)
    assert np.isnan(found[2:]).all()
    clean = attended(q[:2], keys[:297], values[:297])
    np.testing.assert_array_equal(found[:2], clean)
