"""Memory that is no longer needed goes back to the system, not only to the allocator."""

from __future__ import annotations

import ctypes
import gc


def give_back() -> None:
    """After a model was let go. Some 100 ms in a large process.

    The arrays of a model hang on objects that refer to one another. And malloc keeps what was freed: once an array of
    some size has been given back, it takes arrays of that size from its heap, and a heap shrinks only when asked.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
