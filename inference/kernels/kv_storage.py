"""The KV pool: the K and V arrays of every layer, in the layout that attention reads.

Storage only. Which block belongs to whom, and what is cached, is the business of kvcache.
"""

from __future__ import annotations

import math

import numpy as np

from inference.errors import PoolTooLarge
from inference.types import F32, I64


class KVStorage:
    """K and V of `num_blocks * block_size` token rows ("slots"), zeroed at the start, float32.

    k, v are (L, K, N * P, D): blocks with consecutive ids are consecutive rows of a head, which attention reads as a
    view. Slot of a token = block_id * block_size + offset.
    Raises PoolTooLarge when there is no memory for it.
    """

    format_id = "f32-lksd-1"  # layout and precision, part of every cache key

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, num_blocks: int, block_size: int) -> None:
        shape = (num_layers, num_kv_heads, num_blocks * block_size, head_dim)
        self.num_blocks = num_blocks
        self.block_size = block_size
        try:
            self.k: F32 = np.zeros(shape, np.float32)  # (L, K, N * P, D)
            self.v: F32 = np.zeros(shape, np.float32)  # (L, K, N * P, D)
        except (MemoryError, ValueError) as error:  # ValueError: more than an address can count
            num_bytes = 2 * math.prod(shape) * np.dtype(np.float32).itemsize
            raise PoolTooLarge(num_tokens=num_blocks * block_size, num_bytes=num_bytes) from error

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays. The system hands out their pages at the first write."""
        return self.k.nbytes + self.v.nbytes

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers, K and V together."""
        num_layers, num_kv_heads, _, head_dim = self.k.shape
        return 2 * int(num_layers * num_kv_heads * head_dim) * self.k.itemsize

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
