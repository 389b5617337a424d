"""Reusable memory for the intermediate arrays of one worker."""

from __future__ import annotations

import math

import numpy as np

from inference.types import F32


class Scratch:
    """Named float32 buffers that grow to the largest shape asked for and are handed out again at every call.

    A view is valid until the same name is taken again. One thread at a time.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, F32] = {}

    def take(self, name: str, *shape: int) -> F32:
        """A contiguous array of that shape; its content is whatever was left there."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.zeros(size, np.float32)
        return buffer[:size].reshape(shape)
