"""Attention alone: what it asks memory for ahead of time, and its bits where numbers are very large or small."""

from __future__ import annotations

import numpy as np
import pytest

from inference.kernels.jit.attention import (
    FOLLOWING_AT,
    NUM_GROUPS,
    attend_chunk,
    begin,
    expect,
    finish,
    fold,
    part_bytes,
    part_rows,
    scratch_bytes,
)
from inference.kernels.jit.attention_tiles import CHUNK
from inference.kernels.jit.elementwise import scale_queries
from inference.kernels.kv_storage import KEY_GROUP
from inference.kernels.oracle import attention as oracle

DIM = 64
GROUP_BYTES = 2 * KEY_GROUP * DIM


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


EXTREMES = [
    0,
    1e-45,
    1e-38,
    2.0**-101,
    2.0**-100,
    1e-8,
    1,
    1 + 2.0**-13,
    1 + 2.0**-12,
    3e4,
    2.0**99,
    2.0**100,
    3e38,
    np.inf,
    np.nan,
]


@pytest.mark.slow
def test_queries_are_short_as_those_of_the_oracle() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.array(EXTREMES), rng.normal(size=97) * 10.0 ** rng.uniform(-40, 38, 97)]).astype(np.float32)
    x = np.concatenate([x, -x])
    found = x.copy()
    scale_queries(found.ctypes.data, 1.0, len(x))
    np.testing.assert_array_equal(found, oracle.short_queries(x))
    kept = np.abs(x[np.isfinite(x)]) < 2.0**100
    difference = np.abs(found[np.isfinite(x)] - x[np.isfinite(x)])[kept]
    assert (difference <= np.maximum(np.abs(x[np.isfinite(x)])[kept] * 2.0**-13, 2.0**-100)).all()


def attended(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(T, G, D) for queries q of the last T positions against keys, values (S, D) f16, S a multiple of 16."""
    (T, G, D), S = q.shape, len(keys)
    scaled = np.ascontiguousarray(q.reshape(T * G, D))
    for row in scaled:
        scale_queries(row.ctypes.data, 1.0, D)
    rows, size = part_rows(T * G), part_bytes(D)
    queries = np.array([scaled[min(row, T * G - 1)].ctypes.data for row in range(rows)])
    groups = np.ascontiguousarray(keys.reshape(S // KEY_GROUP, KEY_GROUP, D).swapaxes(1, 2))
    table = np.arange(S // KEY_GROUP, dtype=np.int32)
    scratch = np.zeros(scratch_bytes(D), np.uint8)
    parts, states = (np.zeros((rows, size), np.uint8) for _ in range(2))
    out = np.empty((T * G, D), np.float32)
    for state in states:
        begin(state.ctypes.data, D)
    for chunk in range(-(-S // CHUNK)):
        attend_chunk(
            queries.ctypes.data, T * G, G, S - T, 0, chunk, table.ctypes.data, KEY_GROUP,
            groups.ctypes.data, values.ctypes.data, D, scratch.ctypes.data, parts.ctypes.data,
        )  # fmt: skip
        for state, part in zip(states, parts, strict=True):
            fold(state.ctypes.data, part.ctypes.data, D)
    for row in range(T * G):
        finish(states[row].ctypes.data, D, out[row].ctypes.data)
    return out.reshape(T, G, D)


def some_numbers(kind: str, num_tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q (T, 3, 16), keys and values (288, 16)."""
    rng = np.random.default_rng(0)
    q, keys, values = (rng.normal(size=shape) for shape in ((num_tokens, 3, 16), (288, 16), (288, 16)))
    if kind in ("faint", "fainter"):  # small weights of the smallest values; nothing large covers their sum
        q[...], keys[...] = np.eye(16)[0], 0
        keys[1:, 0] = rng.uniform(*((-64, -60) if kind == "faint" else (-90, -80)), 287)
        values *= 1e-6
        values[0] = 0
    elif kind != "usual":
        q *= float(kind)
        keys, values = (x * 10.0 ** rng.uniform(-8, 4.5, x.shape) for x in (keys, values))
        keys[::7], values[::5] = 6e-8, -6e-8
    return q.astype(np.float32), *(np.clip(x, -65504, 65504).astype(np.float16) for x in (keys, values))


@pytest.mark.slow
@pytest.mark.parametrize("num_tokens", [1, 5])  # float16 as it lies, and converted
@pytest.mark.parametrize("kind", ["usual", "faint", "fainter", "1e-30", "1e-9", "1", "1e6", "1e28"])
def test_one_rounding_or_two_are_the_same(num_tokens: int, kind: str) -> None:
    """The oracle multiplies, rounds, adds and rounds; a CPU that can does it in one step."""
    q, keys, values = some_numbers(kind, num_tokens)
    found = attended(q, keys, values)
    wide = [x.astype(np.float32)[:, None] for x in (keys, values)]
    expected = oracle.attend(q, *wide, 0)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))
