"""The pool of integers: rows are copied, kept as bytes and cleared as rows, whatever their layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import PoolTooLarge
from inference.kernels.jit.storage import IntegerStorage, integer_bytes_per_token
from tests.examples import examples

L, K, D = 2, 3, 10


def filled(num_blocks: int, block_size: int, seed: int = 0) -> IntegerStorage:
    kv = IntegerStorage(L, K, D, num_blocks, block_size)
    rng = np.random.default_rng(seed)
    for pool in (kv.k, kv.v):
        pool[...] = rng.integers(1, 1 << 15, pool.shape)
    return kv


def rows(kv: IntegerStorage, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of a block, (L, K, P, 2 + Dp) with the scale first, by the plain reading of the layout."""
    keys, values = [], []
    for slot in range(block * kv.block_size, (block + 1) * kv.block_size):
        group, at = divmod(slot, 16)
        scale = np.arange(2 * at, 2 * at + 2)
        pairs = 32 + 32 * np.arange(8)[:, None] + 2 * at + np.arange(2)  # of components: 8 in a padded row of 16
        words = 32 + at // 2 * 32 + 2 * np.arange(16) + at % 2  # of every component, beside those of the other token
        keys.append(kv.k[:, :, group, np.concatenate((scale, pairs.reshape(-1)))])
        values.append(kv.v[:, :, group, np.concatenate((scale, words))])
    return np.stack(keys, axis=2), np.stack(values, axis=2)


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
    kv = IntegerStorage(30, 3, 64, 10, 16)
    assert (
        kv.nbytes
        == 160 * kv.bytes_per_token
        == 160 * integer_bytes_per_token(30, 3, 64)
        == 160 * 30 * 3 * 2 * (4 + 2 * 64)
    )
    assert kv.key_address % 64 == kv.value_address % 64 == 0


def test_what_cannot_be_is_refused_with_numbers() -> None:
    with pytest.raises(ValueError, match="block_size is 8"):
        IntegerStorage(L, K, D, 4, 8)
    kv = filled(2, 16)
    rows_of_two = kv.read_block(0, 2)
    for refused in (
        lambda: kv.copy_rows(0, 1, 17),
        lambda: kv.read_block(0, 17),
        lambda: kv.read_block(0, -1),
        lambda: kv.write_block(0, 3, rows_of_two),
        lambda: kv.write_block(0, 17, memoryview(bytes(20 * kv.bytes_per_token))),
    ):
        before = kv.k.tobytes(), kv.v.tobytes()
        with pytest.raises(ValueError, match=r"cannot take -?\d+ rows of \d+, in blocks of 16"):
            refused()
        assert before == (kv.k.tobytes(), kv.v.tobytes())
    with pytest.raises(PoolTooLarge) as caught:
        IntegerStorage(32, 8, 128, 1 << 40, 16)
    assert caught.value.num_tokens == 16 << 40
