"""Stored numbers of a safetensors file -> float32. Knows nothing about files, names or architectures.

Nothing here makes a copy besides the result: what is read must not need twice its size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inference.types import F32

U8 = NDArray[np.uint8]

FLOAT_TYPES = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
F8_TYPES = ("F8_E4M3", "F8_E5M2")


def _e4m3_table() -> F32:
    """Value of each byte: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, S.1111.111 is NaN.

    Source: FP8 Formats for Deep Learning, arXiv:2209.05433; the kind without infinities, as in ONNX's FLOAT8E4M3FN.
    """
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    magnitude[code & 127 == 127] = np.nan
    return np.where(code < 128, magnitude, -magnitude).astype(np.float32)  # (256,)


_E4M3 = _e4m3_table()
with np.errstate(invalid="ignore"):  # some of its NaN are signalling ones, of which ARM tells
    _E5M2 = (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)  # the upper half of a float16


def as_f32(raw: U8, dtype: str) -> F32:
    """The numbers stored in raw bytes, flat. dtype is one of FLOAT_TYPES. F32 is handed on as it is."""
    if dtype == "F32":
        return raw.view("<f4")
    if dtype == "F16":
        return raw.view("<f2").astype(np.float32)
    if dtype == "BF16":  # the upper half of a float32
        bits = raw.view("<u2").astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    out = np.empty(len(raw), np.float32)
    table = {"F8_E4M3": _E4M3, "F8_E5M2": _E5M2}[dtype]
    return np.take(table, raw, out=out, mode="clip")  # "raise" would go through a buffer; a byte is never out of range


def scale_blocks(weight: F32, scales: F32, block: tuple[int, int]) -> None:
    """Multiply every block of weight (R, C) by its scale, in place. scales: one per begun block of rows and columns."""
    rows, columns = block
    for index, row in enumerate(scales):
        weight[index * rows : (index + 1) * rows] *= np.repeat(row, columns)[: weight.shape[1]]
