"""Memory for a pool: zeros that the system hands out in small pages, each at its first write.

A pool is one long row of slots for each layer and head, and a token writes to all of them. With pages of 2 MB, which
NumPy asks for, the first token would have the system zero that much for each: the whole of a pool of 16,384 tokens of
the default model, 150 to 600 ms before the first word, and memory that nobody uses yet.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pool_zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """Zeros that begin at a page. Raises MemoryError when there is no memory for them."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        memory = _small_pages(max(num_bytes, 1))
    except (OSError, OverflowError, ValueError) as error:  # no memory, or more than an address can count
        raise MemoryError(f"{num_bytes} bytes") from error
    return np.frombuffer(memory, np.uint8, num_bytes).view(dtype).reshape(shape)


def _small_pages(num_bytes: int) -> mmap.mmap:
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):  # of Linux; the others give large pages to nobody who does not ask
        return mmap.mmap(-1, num_bytes)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel that knows no large pages refuses the advice
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory
