"""What is written to a slot is found there, and nowhere else."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from inference.errors import PoolTooLarge
from inference.kernels.jit.storage import IntegerStorage
from inference.kernels.kv_storage import KVStorage


def test_rows_land_in_their_slots_of_their_layer() -> None:
    kv = KVStorage(num_layers=2, num_kv_heads=3, head_dim=4, num_blocks=5, block_size=8)
    k = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4) + 1  # (T, K, D)
    kv.write(1, np.array([33, 7]), k, -k)
    np.testing.assert_array_equal(kv.k[1][:, [33, 7]].transpose(1, 0, 2), k)
    np.testing.assert_array_equal(kv.v[1][:, [33, 7]].transpose(1, 0, 2), -k)
    assert np.count_nonzero(kv.k) == np.count_nonzero(kv.v) == k.size


def test_copied_rows_are_the_head_of_a_block_in_all_layers() -> None:
    kv = KVStorage(num_layers=2, num_kv_heads=1, head_dim=2, num_blocks=3, block_size=4)
    kv.k[...] = np.arange(kv.k.size).reshape(kv.k.shape)
    kv.v[...] = -kv.k
    before = kv.k.copy()
    kv.copy_rows(src_block=0, dst_block=2, num_rows=3)
    np.testing.assert_array_equal(kv.k[:, :, 8:11], before[:, :, 0:3])
    np.testing.assert_array_equal(kv.v[:, :, 8:11], -before[:, :, 0:3])
    np.testing.assert_array_equal(kv.k[:, :, :8], before[:, :, :8])
    np.testing.assert_array_equal(kv.k[:, :, 11], before[:, :, 11])


def test_what_is_read_from_a_block_can_be_written_to_another_pool() -> None:
    """The whole of it or the first rows; nothing else of the pool changes."""
    kv = KVStorage(num_layers=2, num_kv_heads=3, head_dim=4, num_blocks=3, block_size=4)
    kv.k[...] = np.arange(kv.k.size).reshape(kv.k.shape)
    kv.v[...] = -kv.k
    data = kv.read_block(1, num_rows=3)
    assert data.nbytes == 3 * kv.bytes_per_token
    for num_rows in (3, 2):
        other = KVStorage(num_layers=2, num_kv_heads=3, head_dim=4, num_blocks=4, block_size=4)
        other.write_block(2, num_rows, data)
        for pool, source in ((other.k, kv.k), (other.v, kv.v)):
            np.testing.assert_array_equal(pool[:, :, 8 : 8 + num_rows], source[:, :, 4 : 4 + num_rows])
            assert np.count_nonzero(pool) == np.count_nonzero(source[:, :, 4 : 4 + num_rows])


def test_more_rows_than_a_block_holds_are_refused() -> None:
    kv = KVStorage(num_layers=1, num_kv_heads=1, head_dim=2, num_blocks=2, block_size=4)
    with pytest.raises(ValueError, match="cannot copy 5 rows of a block of 4"):
        kv.copy_rows(0, 1, 5)


def test_sizes_add_up() -> None:
    kv = KVStorage(num_layers=30, num_kv_heads=3, head_dim=64, num_blocks=10, block_size=16)
    assert kv.nbytes == kv.bytes_per_token * 160 == 30 * 3 * 64 * 2 * 4 * 160


@pytest.mark.parametrize("num_blocks", [1 << 34, 1 << 60])
def test_a_pool_without_room_says_how_many_bytes_it_needs(num_blocks: int) -> None:
    with pytest.raises(PoolTooLarge) as caught:
        KVStorage(num_layers=32, num_kv_heads=8, head_dim=128, num_blocks=num_blocks, block_size=16)
    num_bytes = 2 * 32 * 8 * 128 * 16 * num_blocks * 4
    assert (caught.value.num_tokens, caught.value.num_bytes) == (16 * num_blocks, num_bytes)
    assert f"{num_bytes} bytes" in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of a mapping")
@pytest.mark.parametrize("make", [KVStorage, IntegerStorage])
def test_a_token_takes_the_pages_that_it_writes_and_no_large_ones(make: type[KVStorage | IntegerStorage]) -> None:
    """With pages of 2 MB the first token would have the system zero nearly all of this pool."""
    num_layers, num_kv_heads = 4, 2
    kv = make(num_layers, num_kv_heads, head_dim=64, num_blocks=1024, block_size=16)
    before = resident_bytes()
    kv.write_block(0, 16, memoryview(bytes([1] * 16 * kv.bytes_per_token)))
    num_places = 2 * num_layers * num_kv_heads
    assert kv.nbytes >= num_places << 21
    assert resident_bytes() - before < num_places << 16


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="Linux alone takes the advice")
def test_a_kernel_that_knows_no_large_pages_gives_a_pool_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_NOHUGEPAGE", 9999)  # refused as by such a kernel
    kv = IntegerStorage(1, 1, head_dim=16, num_blocks=2, block_size=16)
    assert not kv.k.any()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE
