"""The float16 pool: rows are copied, kept as bytes and cleared as rows, whatever their layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import PoolTooLarge
from inference.kernels.jit.storage import HalfStorage, half_bytes_per_token
from tests.examples import examples

L, K, D = 2, 3, 10


def filled(num_blocks: int, block_size: int, seed: int = 0) -> HalfStorage:
    kv = HalfStorage(L, K, D, num_blocks, block_size)
    rng = np.random.default_rng(seed)
    kv.k[...] = rng.standard_normal(kv.k.shape)
    kv.v[...] = rng.standard_normal(kv.v.shape)
    return kv


def rows(kv: HalfStorage, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys (L, K, P, D) and values (L, K, P, Dp) of a block, by the plain reading of the layout."""
    slots = range(block * kv.block_size, (block + 1) * kv.block_size)
    keys = np.stack([kv.k[:, :, slot // 16, :, slot % 16] for slot in slots], axis=2)
    return keys, np.stack([kv.v[:, :, slot] for slot in slots], axis=2)


@given(block_size=st.sampled_from([16, 32, 48]), num_rows=st.integers(0, 48), stored=st.integers(0, 48))
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_copied_and_come_back_from_bytes(block_size: int, num_rows: int, stored: int) -> None:
    stored, num_rows = min(stored, block_size), min(num_rows, stored, block_size)
    kv, other = filled(4, block_size), filled(4, block_size, seed=1)
    before = rows(other, 1)
    data = kv.read_block(2, stored)
    assert len(data) == stored * kv.bytes_per_token
    other.write_block(1, num_rows, memoryview(bytes(data)))
    kv.copy_rows(2, 1, num_rows)
    for part in range(2):
        wanted = rows(kv, 2)[part][:, :, :num_rows]
        np.testing.assert_array_equal(rows(other, 1)[part][:, :, :num_rows], wanted)
        np.testing.assert_array_equal(rows(other, 1)[part][:, :, num_rows:], before[part][:, :, num_rows:])
        np.testing.assert_array_equal(rows(kv, 1)[part][:, :, :num_rows], wanted)


def test_a_cleared_block_is_zeros_and_its_neighbours_are_not() -> None:
    kv = filled(3, 16)
    kv.zero_block(1)
    assert not any(part.any() for part in rows(kv, 1))
    assert all(part.any(axis=(0, 1, 3)).all() for block in (0, 2) for part in rows(kv, block))


def test_size_is_stated_and_begins_at_a_cache_line() -> None:
    kv = HalfStorage(30, 3, 64, 10, 16)
    assert kv.nbytes == 160 * kv.bytes_per_token == 160 * half_bytes_per_token(30, 3, 64) == 160 * 30 * 3 * 64 * 2 * 2
    assert kv.key_address % 64 == kv.value_address % 64 == 0


def test_what_cannot_be_is_refused_with_numbers() -> None:
    with pytest.raises(ValueError, match="block_size is 8"):
        HalfStorage(L, K, D, 4, 8)
    with pytest.raises(ValueError, match="17 rows of a block of 16"):
        filled(2, 16).copy_rows(0, 1, 17)
    with pytest.raises(PoolTooLarge) as caught:
        HalfStorage(32, 8, 128, 1 << 40, 16)
    assert caught.value.num_tokens == 16 << 40
