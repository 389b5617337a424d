"""The KV pool of the compiled kernels: int16 with a scale for each layer, head and token, in groups of 16 tokens.

A group of keys is 16 float32, the scales, then for each pair of components the 16 keys' two words, so that a vector
holds one pair of each key. A group of values is its scales, then for each pair of tokens their two words of every
component. D is padded to 16 in both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inference.errors import PoolTooLarge
from inference.kernels.jit.elementwise import read_key, read_value, write_key, write_value
from inference.kernels.jit.kernel_cache import entry
from inference.kernels.jit.vectors import NUM_LANES, get_f32, set_f32
from inference.kernels.kv_storage import KEY_GROUP
from inference.kernels.pool_memory import pool_zeros

I16 = NDArray[np.int16]
SCALE_BYTES = 4


def integer_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes that one token takes in a pool of such a model: all layers, K and V together."""
    return 2 * num_layers * num_kv_heads * row_bytes(_padded(head_dim))


def row_bytes(dim: int) -> int:
    """Of a token's key or value in one layer and head."""
    return SCALE_BYTES + 2 * dim


def _padded(head_dim: int) -> int:
    return -(-head_dim // NUM_LANES) * NUM_LANES


@entry
def write_rows(
    data: int, row_step: int, num_rows: int, keys: int, values: int, pool_step: int, num_pools: int, slot: int, dim: int
) -> None:
    """Rows that read_rows() has given, row_step of them for each pool, into slots from one on.

    data: address of (2, num_pools, row_step, row_bytes); keys, values: of pools of all layers and heads, pool_step
    bytes from one to the next.
    """
    size = SCALE_BYTES + 2 * dim
    for index in range(num_pools):
        for row in range(num_rows):
            at = data + (index * row_step + row) * size
            write_key(at + SCALE_BYTES, get_f32(at), slot + row, dim, keys + index * pool_step)
            at += num_pools * row_step * size
            write_value(at + SCALE_BYTES, get_f32(at), slot + row, dim, values + index * pool_step)


@entry
def read_rows(
    data: int, num_rows: int, keys: int, values: int, pool_step: int, num_pools: int, slot: int, dim: int
) -> None:
    """Rows of slots from one on as (2, num_pools, num_rows, row_bytes): keys, then values; a scale before its words."""
    size = SCALE_BYTES + 2 * dim
    for index in range(num_pools):
        for row in range(num_rows):
            at = data + (index * num_rows + row) * size
            set_f32(at, read_key(keys + index * pool_step, slot + row, dim, at + SCALE_BYTES))
            at += num_pools * num_rows * size
            set_f32(at, read_value(values + index * pool_step, slot + row, dim, at + SCALE_BYTES))


class IntegerStorage:
    """See inference.kernels.kv_storage.BlockStorage. K and V of num_blocks * block_size slots, zeroed at the start.

    k, v (L, K, slots / 16, group) int16, groups as above. Numbers are words times their scale, which is NaN for a key
    that is to be noticed (attention.py), never for a value.
    Raises ValueError for a block size that is no multiple of 16, PoolTooLarge when there is no memory for it.
    """

    format_id = "s16-lkg16-1"

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, num_blocks: int, block_size: int) -> None:
        if block_size % KEY_GROUP:
            raise ValueError(f"block_size is {block_size}, these kernels need a multiple of {KEY_GROUP}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        slots, self._dim = num_blocks * block_size, _padded(head_dim)
        shape = num_layers, num_kv_heads, slots // KEY_GROUP, KEY_GROUP * row_bytes(self._dim) // 2
        self.bytes_per_token = integer_bytes_per_token(num_layers, num_kv_heads, head_dim)
        try:
            self.k: I16 = pool_zeros(shape, np.int16)
            self.v: I16 = pool_zeros(shape, np.int16)
        except MemoryError as error:
            raise PoolTooLarge(num_tokens=slots, num_bytes=slots * self.bytes_per_token) from error
        self.key_address, self.value_address = int(self.k.ctypes.data), int(self.v.ctypes.data)
        self._pools = self.key_address, self.value_address, self.k.strides[1], num_layers * num_kv_heads

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays, see pool_memory."""
        return self.k.nbytes + self.v.nbytes

    def copy_rows(self, src_block: int, dst_block: int, num_rows: int) -> None:
        """Copies the first num_rows token rows of a block to another, in all layers."""
        self.write_block(dst_block, num_rows, self.read_block(src_block, num_rows))

    def zero_block(self, block_id: int) -> None:
        """Overwrites all rows of a block with zeros, in all layers."""
        first, count = block_id * (self.block_size // KEY_GROUP), self.block_size // KEY_GROUP
        for pool in (self.k, self.v):
            pool[:, :, first : first + count] = 0

    def read_block(self, block_id: int, num_rows: int) -> memoryview:
        """A copy of the first num_rows rows, see read_rows()."""
        self._check(num_rows, self.block_size)
        data = np.empty(num_rows * self.bytes_per_token, np.uint8)
        read_rows(data.ctypes.data, num_rows, *self._pools, block_id * self.block_size, self._dim)
        return data.data

    def write_block(self, block_id: int, num_rows: int, data: memoryview) -> None:
        """Writes the first num_rows rows of what read_block() has given, for as many rows or more."""
        num_stored = len(data) // self.bytes_per_token
        self._check(num_rows, min(num_stored, self.block_size))
        rows = np.frombuffer(data, np.uint8)
        write_rows(rows.ctypes.data, num_stored, num_rows, *self._pools, block_id * self.block_size, self._dim)

    def _check(self, num_rows: int, num_there: int) -> None:
        """Compiled code is about to believe it."""
        if not 0 <= num_rows <= num_there:
            raise ValueError(f"cannot take {num_rows} rows of {num_there}, in blocks of {self.block_size}")
