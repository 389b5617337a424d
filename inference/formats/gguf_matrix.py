"""A matrix of a GGUF file in the form that it is stored in, some rows at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from inference.formats.gguf_integers import KINDS, read_rows
from inference.formats.gguf_parts import PlacedTensor
from inference.kernels.quantized import FloatForm, Form, IntegerRows, WeightMatrix
from inference.types import I64

FLOATS = {
    GGMLQuantizationType.F32: FloatForm("f32"),
    GGMLQuantizationType.F16: FloatForm("f16"),
    GGMLQuantizationType.BF16: FloatForm("bf16"),
}


def form_of(kind: GGMLQuantizationType) -> Form:
    """How weights of a kind are multiplied with; those with code books become float32."""
    return KINDS[kind].form if kind in KINDS else FLOATS.get(kind, FloatForm("f32"))


def read_matrix(placed: PlacedTensor, order: I64 | None = None) -> WeightMatrix:
    """order: for each row where in the file it stands, never far from its place; None: in its place."""
    info = placed.info
    num_rows, num_inner = info.shape
    row_bytes = info.nbytes // num_rows
    form = form_of(info.type)

    def read(first: int, end: int) -> IntegerRows | NDArray[Any]:
        if order is not None:
            places = order[first:end]
            first, end = int(places.min()), int(places.max()) + 1
        raw = placed.file.read(info.offset + first * row_bytes, (end - first) * row_bytes)
        rows = raw.reshape(end - first, row_bytes)
        if order is not None:
            rows = rows[places - first]
        if info.type in KINDS:
            return read_rows(info.type, rows)
        if info.type in FLOATS:
            return rows.view(FLOATS[info.type].dtype)
        return dequantize(rows, info.type).astype(np.float32, copy=False)

    return WeightMatrix(form, num_rows, num_inner, read)
