"""A model file's tensors in the form in which a decoder multiplies with them."""

from __future__ import annotations

import numpy as np

from inference.formats.base import ModelFile
from inference.types import F32


class Tensors:
    """Reads what lies under a prefix. That the tensors are there, and their shapes, was checked when the file was
    opened."""

    def __init__(self, model_file: ModelFile, prefix: str, norm_offset: float) -> None:
        self._model_file = model_file
        self._prefix = prefix
        self._norm_offset = np.float32(norm_offset)

    def matrix(self, *names: str) -> F32:
        """(N, C): one tensor, or the rows of several that are multiplied by the same input."""
        parts = [self._read(name) for name in names]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def vector(self, *names: str) -> F32:
        """(N,): one vector, or several joined."""
        return np.concatenate([self._read(name) for name in names])

    def norm(self, name: str) -> F32:
        """(C,): what a normalised row is multiplied by."""
        return self.vector(name) + self._norm_offset

    def _read(self, name: str) -> F32:
        return np.ascontiguousarray(self._model_file.tensor(self._prefix + name), dtype=np.float32)
