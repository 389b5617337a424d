"""What the engine asks of a model, whatever its architecture."""

from __future__ import annotations

from typing import Protocol

from inference.config import ModelConfig
from inference.kernels.kv_storage import KVStorage
from inference.types import F32, ForwardBatch


class Model(Protocol):
    """A loaded decoder. Not thread-safe: one thread, the engine's, calls it."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def kernel_tier(self) -> str:
        """Which kernels run, for people: "numpy"."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of all that the bits of K and V depend on: weights, config, KV format, arithmetic."""
        ...

    @property
    def num_parameters(self) -> int: ...

    def new_kv(self, num_blocks: int, block_size: int) -> KVStorage:
        """A zeroed pool that fits this model."""
        ...

    def forward(self, batch: ForwardBatch, kv: KVStorage) -> F32:
        """Computes the batch's tokens, writes their K and V into the pool, and returns logits (R, V) of logits_rows.

        Row-invariant: the bits of a row depend on its token, position and predecessors only, never on what else is in
        the batch, how the prompt was cut into chunks, or in which blocks the KV lies. The result is the caller's.
        """
        ...
