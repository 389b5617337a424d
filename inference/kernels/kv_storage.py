"""The KV pool: the K and V arrays of every layer, in the layout that attention reads.

Storage only. Which block belongs to whom, and what is cached, is the business of kvcache, which asks of a pool what
BlockStorage says and nothing else.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from inference.errors import PoolTooLarge
from inference.kernels.pool_memory import pool_zeros
from inference.types import F32, I64

KEY_GROUP = 16  # keys that lie side by side in the pool of the compiled kernels; its blocks hold whole groups


class BlockStorage(Protocol):
    """What the cache asks of a KV pool, whatever its layout.

    The bytes of a block are bytes_per_token for each row, all of a row's layers and heads included; in which order is
    the pool's affair, and part of what format_id names. Different blocks may be read and written from several threads.
    """

    @property
    def format_id(self) -> str:
        """Layout and precision: part of every cache key and of every file."""
        ...

    @property
    def bytes_per_token(self) -> int: ...

    def copy_rows(self, src_block: int, dst_block: int, num_rows: int) -> None:
        """Copies the first num_rows token rows of a block to another, in all layers."""
        ...

    def zero_block(self, block_id: int) -> None:
        """Overwrites all rows of a block with zeros, in all layers."""
        ...

    def read_block(self, block_id: int, num_rows: int) -> memoryview:
        """A copy of the first num_rows rows: num_rows * bytes_per_token bytes."""
        ...

    def write_block(self, block_id: int, num_rows: int, data: memoryview) -> None:
        """Writes the first num_rows rows of what read_block() has given, for as many rows or more."""
        ...


class KVPool(BlockStorage, Protocol):
    """What the engine knows of the pool that a model has made for itself."""

    @property
    def block_size(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool; the system hands out their pages at the first write."""
        ...


def bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes that one token takes in a pool of such a model: all layers, K and V together."""
    return 2 * num_layers * num_kv_heads * head_dim * np.dtype(np.float32).itemsize


class KVStorage:
    """K and V of `num_blocks * block_size` token rows ("slots"), zeroed at the start, float32.

    k, v are (L, K, N * P, D): blocks with consecutive ids are consecutive rows of a head, which attention reads as a
    view. Slot of a token = block_id * block_size + offset.
    Raises PoolTooLarge when there is no memory for it.
    """

    format_id = "f32-lksd-1"

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, num_blocks: int, block_size: int) -> None:
        shape = (num_layers, num_kv_heads, num_blocks * block_size, head_dim)
        self.num_blocks = num_blocks
        self.block_size = block_size
        try:
            self.k: F32 = pool_zeros(shape, np.float32)  # (L, K, N * P, D)
            self.v: F32 = pool_zeros(shape, np.float32)  # (L, K, N * P, D)
        except MemoryError as error:
            num_bytes = 2 * math.prod(shape) * np.dtype(np.float32).itemsize
            raise PoolTooLarge(num_tokens=num_blocks * block_size, num_bytes=num_bytes) from error

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays, see pool_memory."""
        return self.k.nbytes + self.v.nbytes

    @property
    def bytes_per_token(self) -> int:
        num_layers, num_kv_heads, _, head_dim = self.k.shape
        return bytes_per_token(int(num_layers), int(num_kv_heads), int(head_dim))

    def write(self, layer: int, slot_mapping: I64, k: F32, v: F32) -> None:
        """Stores k, v (T, K, D) of one layer at the given slots (T,), each at most once."""
        self.k[layer][:, slot_mapping] = k.transpose(1, 0, 2)
        self.v[layer][:, slot_mapping] = v.transpose(1, 0, 2)

    def copy_rows(self, src_block: int, dst_block: int, num_rows: int) -> None:
        """Copies the first num_rows token rows of a block to another, in all layers."""
        if not 0 <= num_rows <= self.block_size:
            raise ValueError(f"cannot copy {num_rows} rows of a block of {self.block_size}")
        src, dst = src_block * self.block_size, dst_block * self.block_size
        for pool in (self.k, self.v):
            pool[:, :, dst : dst + num_rows] = pool[:, :, src : src + num_rows]

    def zero_block(self, block_id: int) -> None:
        """Overwrites all rows of a block with zeros, in all layers."""
        start = block_id * self.block_size
        for pool in (self.k, self.v):
            pool[:, :, start : start + self.block_size] = 0

    def read_block(self, block_id: int, num_rows: int) -> memoryview:
        """A copy of the first num_rows rows, as (2, L, K, num_rows, D) f32."""
        start = block_id * self.block_size
        data = np.empty((2, *self._rows_shape(num_rows)), np.float32)
        for pool, part in zip((self.k, self.v), data, strict=True):
            part[...] = pool[:, :, start : start + num_rows]
        return data.reshape(-1).view(np.uint8).data

    def write_block(self, block_id: int, num_rows: int, data: memoryview) -> None:
        """Writes the first num_rows rows of what read_block() has given, for as many rows or more."""
        start = block_id * self.block_size
        rows = np.frombuffer(data, np.float32).reshape(2, *self._rows_shape(len(data) // self.bytes_per_token))
        for pool, part in zip((self.k, self.v), rows, strict=True):
            pool[:, :, start : start + num_rows] = part[:, :, :num_rows]

    def _rows_shape(self, num_rows: int) -> tuple[int, int, int, int]:
        num_layers, num_kv_heads, _, head_dim = self.k.shape
        return num_layers, num_kv_heads, num_rows, head_dim
