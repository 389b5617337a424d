"""The KV pool: the K and V arrays of every layer, in the layout that attention reads.

Storage only. Which block belongs to whom, and what is cached, is the business of kvcache.
"""

from __future__ import annotations

from inference.types import F32, I64


class KVStorage:
    """K and V of `num_blocks * block_size` token rows ("slots"), zeroed at the start, float32.

    k, v are (L, K, N * P, D): blocks with consecutive ids are consecutive rows of a head, which attention reads as a
    view. Slot of a token = block_id * block_size + offset.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, num_blocks: int, block_size: int) -> None:
        raise NotImplementedError

    num_blocks: int
    block_size: int
    k: F32  # (L, K, N * P, D)
    v: F32  # (L, K, N * P, D)
    format_id: str  # names layout and precision; part of every cache key

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        raise NotImplementedError

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers, K and V together."""
        raise NotImplementedError

    def write(self, layer: int, slot_mapping: I64, k: F32, v: F32) -> None:
        """Stores k, v (T, K, D) of one layer at the given slots (T,)."""
        raise NotImplementedError

    def copy_rows(self, src_block: int, dst_block: int, num_rows: int) -> None:
        """Copies the first num_rows token rows of a block to another, in all layers."""
        raise NotImplementedError
