"""What the engine asks of a model, whatever its architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from inference.config import ModelConfig
from inference.kernels.kv_storage import KVPool
from inference.types import F32, ForwardBatch

T = TypeVar("T")


class RunKernels(Protocol):
    """Runs what uses the kernels while a model is being loaded, on the thread that owns them, and returns its result.

    The number of BLAS threads, or the team of threads, is one for the process: two may not compute at once.
    """

    def __call__(self, work: Callable[[], T], /) -> T: ...


def run_here(work: Callable[[], T], /) -> T:
    """RunKernels for whoever loads on the thread that runs the model afterwards."""
    return work()


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

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take; registry.estimate_weight_bytes() knows it beforehand."""
        ...

    def new_kv(self, num_blocks: int, block_size: int) -> KVPool:
        """A zeroed pool that fits this model."""
        ...

    def forward(self, batch: ForwardBatch, kv: KVPool) -> F32:
        """Computes the batch's tokens, writes their K and V into the pool, and returns logits (R, V) of logits_rows.

        Row-invariant: the bits of a row depend on its token, position and predecessors only, never on what else is in
        the batch, how the prompt was cut into chunks, or in which blocks the KV lies. The result is the caller's.
        """
        ...
