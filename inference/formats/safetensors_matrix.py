"""A matrix of a safetensors file in the form that it is stored in, some rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.formats.file_bytes import FileBytes
from inference.formats.numbers import F8_TYPES, as_f32
from inference.formats.safetensors_header import StoredTensor
from inference.kernels.quantized import FloatForm, WeightMatrix
from inference.types import F32

FORMS = {
    "F32": FloatForm("f32"),
    "F16": FloatForm("f16"),
    "BF16": FloatForm("bf16"),
    "F8_E4M3": FloatForm("bf16"),  # both kinds of 8 bits fit in, exactly
    "F8_E5M2": FloatForm("bf16"),
}


@dataclass(frozen=True, slots=True)
class BlockScales:
    """One factor for each begun block of rows and columns."""

    factors: F32
    num_rows: int
    num_columns: int


def read_matrix(file: FileBytes, stored: StoredTensor, scales: BlockScales | None = None) -> WeightMatrix:
    """Numbers as they stand in the file; scaled ones as float32, rounded once, as they rarely fit into less."""
    num_rows, num_inner = stored.shape
    row_bytes = stored.nbytes // num_rows
    form = FORMS[stored.dtype] if scales is None else FloatForm("f32")

    def read(first: int, end: int) -> NDArray[Any]:
        raw = file.read(stored.offset + first * row_bytes, (end - first) * row_bytes)
        if scales is not None:
            rows = np.arange(first, end) // scales.num_rows
            factors = np.repeat(scales.factors[rows], scales.num_columns, axis=1)[:, :num_inner]
            scaled: F32 = as_f32(raw, stored.dtype).reshape(end - first, num_inner) * factors
            return scaled
        if stored.dtype in F8_TYPES:
            raw = (as_f32(raw, stored.dtype).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return raw.view(form.dtype).reshape(end - first, num_inner)

    return WeightMatrix(form, num_rows, num_inner, read)
