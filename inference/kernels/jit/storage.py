"""The KV pool of the compiled kernels: float16, keys in groups of 16 so that a vector holds one component of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference.errors import PoolTooLarge
from inference.kernels.jit.vectors import NUM_LANES
from inference.kernels.kv_storage import KEY_GROUP
from inference.kernels.pool_memory import pool_zeros

F16 = NDArray[np.float16]


def half_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes that one token takes in a pool of such a model: all layers, K and V together."""
    padded = -(-head_dim // NUM_LANES) * NUM_LANES
    return 2 * num_layers * num_kv_heads * (head_dim + padded)


class HalfStorage:
    """See inference.kernels.kv_storage.BlockStorage. K and V of num_blocks * block_size slots, zeroed at the start.

    k (L, K, slots / 16, D, 16), v (L, K, slots, Dp) with D padded to 16. Numbers beyond +-65504 are stored as that; so
    is NaN among values, not among keys (attention.py).
    Raises ValueError for a block size that is no multiple of 16, PoolTooLarge when there is no memory for it.
    """

    format_id = "f16-lkgd16-1"

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, num_blocks: int, block_size: int) -> None:
        if block_size % KEY_GROUP:
            raise ValueError(f"block_size is {block_size}, these kernels need a multiple of {KEY_GROUP}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        slots, padded = num_blocks * block_size, -(-head_dim // NUM_LANES) * NUM_LANES
        key_shape = (num_layers, num_kv_heads, slots // KEY_GROUP, head_dim, KEY_GROUP)
        value_shape = (num_layers, num_kv_heads, slots, padded)
        self.bytes_per_token = half_bytes_per_token(num_layers, num_kv_heads, head_dim)
        try:
            self.k: F16 = pool_zeros(key_shape, np.float16)
            self.v: F16 = pool_zeros(value_shape, np.float16)
        except MemoryError as error:
            raise PoolTooLarge(num_tokens=slots, num_bytes=slots * self.bytes_per_token) from error
        self.key_address, self.value_address = int(self.k.ctypes.data), int(self.v.ctypes.data)

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays, see pool_memory."""
        return self.k.nbytes + self.v.nbytes

    def copy_rows(self, src_block: int, dst_block: int, num_rows: int) -> None:
        """Copies the first num_rows token rows of a block to another, in all layers."""
        if not 0 <= num_rows <= self.block_size:
            raise ValueError(f"cannot copy {num_rows} rows of a block of {self.block_size}")
        _assign(self._rows(dst_block, num_rows), self._rows(src_block, num_rows))

    def zero_block(self, block_id: int) -> None:
        """Overwrites all rows of a block with zeros, in all layers."""
        for rows in self._rows(block_id, self.block_size):
            rows[...] = 0

    def read_block(self, block_id: int, num_rows: int) -> memoryview:
        """A copy of the first num_rows rows, as (L, K, num_rows, D) and (L, K, num_rows, Dp) f16."""
        data = np.empty(num_rows * self.bytes_per_token, np.uint8)
        _assign(self._rows_of(data, num_rows, num_rows), self._rows(block_id, num_rows))
        return data.data

    def write_block(self, block_id: int, num_rows: int, data: memoryview) -> None:
        """Writes the first num_rows rows of what read_block() has given, for as many rows or more."""
        rows = self._rows_of(np.frombuffer(data, np.uint8), len(data) // self.bytes_per_token, num_rows)
        _assign(self._rows(block_id, num_rows), rows)

    def _rows(self, block_id: int, num_rows: int) -> tuple[F16, F16, F16]:
        """Views of the first rows of a block: keys of whole groups (L, K, n, 16, D), keys of the last group (L, K, m,
        D), values (L, K, num_rows, Dp)."""
        start, (whole, rest) = block_id * self.block_size, divmod(num_rows, KEY_GROUP)
        keys = self.k.swapaxes(3, 4)[:, :, start // KEY_GROUP : (start + self.block_size) // KEY_GROUP]
        last = keys[:, :, whole, :rest] if rest else keys[:, :, 0, :0]
        return keys[:, :, :whole], last, self.v[:, :, start : start + num_rows]

    def _rows_of(self, data: NDArray[np.uint8], num_stored: int, num_rows: int) -> tuple[F16, F16, F16]:
        """The same views of the first num_rows of the num_stored rows that read_block() has given."""
        L, K, _, D, _ = self.k.shape
        numbers = data.view(np.float16)
        keys = numbers[: L * K * num_stored * D].reshape(L, K, num_stored, D)
        values = numbers[L * K * num_stored * D :].reshape(L, K, num_stored, self.v.shape[3])
        whole = num_rows // KEY_GROUP
        groups = keys[:, :, : whole * KEY_GROUP].reshape(L, K, whole, KEY_GROUP, D)
        return groups, keys[:, :, whole * KEY_GROUP : num_rows], values[:, :, :num_rows]


def _assign(targets: Sequence[F16], sources: Sequence[F16]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target[...] = source
