"""Whole passes in memory that is fenced in: one byte read or written outside of what a pass was given ends the process.

`python -m tests.inference.guarded_memory SIDE` runs them with everything that kernels see in front of a page that
nobody may touch ("end"), or behind one ("start"): weights, tables, the pool, logits, what the threads share and what
each has for itself. What a pass does not get from somebody holds garbage before it. With "table" a pass reads behind a
block table, to show that the fence holds.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.formats.base import ModelFile
from inference.formats.model_file import open_model_file
from inference.kernels.jit import runner, storage
from inference.kernels.jit.attending import thread_bytes
from inference.kernels.jit.linear_kernel import SCRATCH_BYTES
from inference.model import compiled
from inference.model.registry import load_model
from tests.inference.random_model import RandomModelFile, RoundedModelFile, make_batch, small_config
from tests.inference.row_invariance import BLOCK_SIZE, FIXTURES, logits_in_company, whole_logits

PAGE = mmap.PAGESIZE
NO_ACCESS = 0  # PROT_NONE of mprotect(2)
# How fields of a pass are aligned, if not like float32: products with integers read and write whole lines.
ALIGNMENTS = dict.fromkeys(("quantised", "tiles", "pair_quantised", "pair_tiles"), 64) | {
    "slots": 8,
    "jobs": 8,
    "tail_jobs": 8,
}
SHAPES = (
    small_config(heads=6, kv_heads=1, head_dim=10, hidden=18, intermediate=14),
    small_config(heads=6, kv_heads=2, head_dim=40, intermediate=50),
    small_config(heads=4, kv_heads=4, head_dim=128, hidden=96, is_tied=False),
)
U8 = NDArray[np.uint8]

_libc = ctypes.CDLL(None, use_errno=True)
_kept: list[mmap.mmap] = []  # for as long as the process: a late thread may still look


def _fence(address: int) -> None:
    if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), NO_ACCESS):
        raise OSError(ctypes.get_errno(), "mprotect")


class Fence:
    """Hands out zeroed memory between two pages that nobody may touch, close to one of them."""

    def __init__(self, side: str) -> None:
        self._is_at_end = side != "start"
        self._rng = np.random.default_rng(0)

    def take(self, num_bytes: int, align: int) -> U8:
        """Aligned, and so near the page behind it as that allows."""
        size = max(-(-num_bytes // PAGE), 1) * PAGE
        memory = mmap.mmap(-1, size + 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        _kept.append(memory)
        whole = np.frombuffer(memory, np.uint8)
        address = int(whole.ctypes.data)
        _fence(address)
        _fence(address + PAGE + size)
        start = PAGE + ((size - num_bytes) // align * align if self._is_at_end else 0)
        return whole[start : start + num_bytes]

    def copy(self, array: NDArray[Any]) -> U8:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        taken = self.take(len(flat), 8 if array.dtype.itemsize % 8 == 0 else 4)
        taken[...] = flat
        return taken

    def spoil(self, memory: U8) -> None:
        memory[...] = self._rng.choice([0x00, 0x7F, 0xFF])  # as float32: zeros, large numbers, NaN


class Numpy:
    """NumPy for runner.py, where only logits are made by empty()."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: tuple[int, int], dtype: type[np.float32]) -> NDArray[np.float32]:
        taken = self._fence.take(4 * shape[0] * shape[1], 4)
        self._fence.spoil(taken)
        return taken.view(dtype).reshape(shape)


class FencedRunner(runner.PassRunner):
    """A runner whose every pass has memory of exactly its size."""

    fence: Fence

    def _take(self, name: str, num_bytes: int) -> int:
        memory = self.fence.take(num_bytes, ALIGNMENTS.get(name, 4))
        self.fence.spoil(memory)
        self._memory[name] = (memory, int(memory.ctypes.data))
        return self._memory[name][1]

    def _fields(self, batch: Any, kv: Any) -> dict[str, int]:
        """With a page behind what each thread has for itself."""
        fields = super()._fields(batch, kv)
        needed = -(-max(thread_bytes(self._job_tokens * self._group, self._dim), SCRATCH_BYTES) // 64) * 64
        size = -(-needed // PAGE) * PAGE
        whole = self.fence.take(self._num_threads * (size + PAGE), PAGE)
        self.fence.spoil(whole)
        first = int(whole.ctypes.data)
        for thread in range(self._num_threads):
            _fence(first + thread * (size + PAGE) + size)
        return fields | {"scratch": first + size - needed, "scratch_bytes": size + PAGE}


class FencedLayers(runner.Layers):
    fence: Fence

    def keep(self, array: NDArray[Any] | None) -> int:
        return 0 if array is None else int(self.fence.copy(array).ctypes.data)


class FencedWeights:
    fence: Fence

    def take(self, num_bytes: int) -> U8:
        return self.fence.take(num_bytes, 64)


def install(fence: Fence) -> None:
    """Has every model that is loaded from now on live in fenced memory."""
    for kind in (FencedRunner, FencedLayers, FencedWeights):
        kind.fence = fence

    def zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
        return fence.take(math.prod(shape) * np.dtype(dtype).itemsize, 2).view(dtype).reshape(shape)

    replaced = (
        *((compiled, "PassRunner", FencedRunner), (compiled, "Layers", FencedLayers)),
        *((compiled, "WeightMemory", FencedWeights), (storage, "pool_zeros", zeros)),
        *((runner, "np", Numpy(fence)), (runner, "aligned", lambda num_bytes: fence.take(num_bytes, 64))),
    )
    for module, name, value in replaced:
        assert hasattr(module, name)
        setattr(module, name, value)


def read_behind_a_table() -> None:
    """A pass over 32 positions more than its table has blocks for."""
    model = load_model(RandomModelFile(small_config()), num_threads=1)
    batch = make_batch([(np.arange(40), 0, np.arange(3))], BLOCK_SIZE)
    batch.context_lens[0] += 32
    model.forward(batch, model.new_kv(3, BLOCK_SIZE))


def model_files() -> list[ModelFile]:
    small: list[ModelFile] = [RandomModelFile(shape) for shape in SHAPES]
    families = [open_model_file(path) for path in FIXTURES if path.name in ("gemma3_text", "qwen3_moe")]
    assert len(families) == 2
    return [*small, *(RoundedModelFile(file) for file in (*small, *families))]


def main(side: str) -> None:
    lengths = {"end": (1, 17, 300, 530), "start": (15, 272)}
    expected = []
    files = model_files()
    for model_file in files:
        model = load_model(model_file, num_threads=1)
        tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, 600)
        expected.append((tokens, whole_logits(model, tokens)))
    install(Fence(side))
    if side == "table":
        read_behind_a_table()
        return
    for model_file, (tokens, logits) in zip(files, expected, strict=True):
        for number, length in enumerate(lengths[side]):
            model = load_model(model_file, num_threads=1 + number % 3)
            rng = np.random.default_rng(length)
            found = logits_in_company(model, tokens[:length], [1, 40, 3, 200], rng)
            np.testing.assert_array_equal(found, logits[:length])
            print("equal", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
