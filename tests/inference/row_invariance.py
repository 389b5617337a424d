"""The row-invariance check as a function, so that it can also run in a process with another BLAS kernel.

`python -m tests.inference.row_invariance` checks small models under whatever kernel the environment asks for.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from inference.formats.model_file import open_model_file
from inference.kernels.jit.storage import IntegerStorage
from inference.kernels.kv_storage import KVStorage
from inference.model.base import Model
from inference.model.registry import load_model
from tests.inference.random_model import RandomModelFile, make_batch, small_config

BLOCK_SIZE = 16
FIXTURES = sorted(path for path in (Path(__file__).parents[1] / "data" / "models").iterdir() if path.is_dir())


def whole_logits(model: Model, tokens: np.ndarray) -> np.ndarray:
    """Logits of all rows of a sequence in one chunk, alone, in consecutive blocks."""
    table = np.arange(-(-len(tokens) // BLOCK_SIZE), dtype=np.int32)
    return model.forward(make_batch([(tokens, 0, table)], BLOCK_SIZE), model.new_kv(len(table), BLOCK_SIZE))


def _spoil(kv: KVStorage | IntegerStorage) -> None:
    """Fills a pool with NaN; one of integers with keys whose scale is NaN and values that are as large as can be."""
    if isinstance(kv, IntegerStorage):
        kv.k.fill(0x7FFF)
        kv.v.fill(0x7F7F)
    else:
        kv.k.fill(np.nan)
        kv.v.fill(np.nan)


def logits_in_company(
    model: Model, tokens: np.ndarray, sizes: list[int], rng: np.random.Generator, *, max_strangers: int = 3
) -> np.ndarray:
    """The same logits, computed in chunks of the given sizes (cycled), each step beside strangers at random places of
    the batch, in blocks scattered over a pool in which every row that is not written holds what spoils a result."""
    num_own, num_strange = -(-len(tokens) // BLOCK_SIZE), 4
    kv = model.new_kv(num_own + num_strange * max_strangers + 40, BLOCK_SIZE)
    _spoil(kv)
    blocks = rng.permutation(kv.num_blocks).astype(np.int32)
    table, strange_blocks = blocks[:num_own], blocks[num_own:].reshape(-1)
    logits, start, step = [], 0, 0
    while start < len(tokens):
        chunk = tokens[start : start + sizes[step % len(sizes)]]
        parts = [
            (
                rng.integers(0, model.config.vocab_size, rng.integers(1, num_strange * BLOCK_SIZE)),
                0,
                strange_blocks[index * num_strange : (index + 1) * num_strange],
            )
            for index in range(rng.integers(0, max_strangers + 1))
        ]
        place = int(rng.integers(0, len(parts) + 1))
        parts.insert(place, (chunk, start, table))
        first_row = sum(len(part[0]) for part in parts[:place])
        rows = range(first_row, first_row + len(chunk))
        logits.append(model.forward(make_batch(parts, BLOCK_SIZE, rows), kv))
        start += len(chunk)
        step += 1
    return np.concatenate(logits)


def check(model: Model, length: int, sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, model.config.vocab_size, length)
    expected = whole_logits(model, tokens)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(logits_in_company(model, tokens, sizes, rng), expected)


def main() -> None:
    for num_threads in (1, 2):
        model = load_model(
            RandomModelFile(small_config(heads=9, kv_heads=3, hidden=72)), kernels="numpy", num_threads=num_threads
        )
        for sizes in ([1], [3], [7, 1, 64], [300], [16, 130]):
            check(model, 330, sizes, seed=len(sizes))
    for path in FIXTURES:
        check(load_model(open_model_file(path), kernels="numpy", num_threads=2), 330, [7, 1, 130], seed=0)


if __name__ == "__main__":
    main()
