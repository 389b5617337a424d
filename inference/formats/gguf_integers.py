"""The small integers, scales and minimums that stand in blocks of a GGUF file, without a detour through floats.

Every kind whose values are integers times a scale for each group is here; those with code books of vectors (IQ1, IQ2,
IQ3) are not. Scales of nested kinds are products of a half and a few bits, which float32 holds exactly.
Source: ggml-quants.c and ggml-common.h (ggml).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from inference.kernels.quantized import IntegerForm, IntegerRows
from inference.types import F32

U8 = NDArray[np.uint8]
I8 = NDArray[np.int8]
F16 = NDArray[np.float16]

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)  # doubled

Decoded = tuple[NDArray[np.integer], F16 | F32, F16 | F32 | None]  # codes (n, block), scales and minimums (n, groups)


@dataclass(frozen=True, slots=True)
class IntegerKind:
    form: IntegerForm
    decode: Callable[[U8], Decoded]  # of blocks (n, bytes of a block)


def read_rows(kind: GGMLQuantizationType, rows: U8) -> IntegerRows:
    """Rows (n, bytes of a row) of a kind in KINDS."""
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    num_inner = rows.shape[1] // block_bytes * block_size
    found = KINDS[kind]
    codes, scales, minimums = found.decode(np.ascontiguousarray(rows).reshape(-1, block_bytes))
    shape = len(rows), num_inner // found.form.group
    return IntegerRows(
        codes.astype(np.int8, copy=False).reshape(len(rows), num_inner),
        scales.reshape(shape),
        None if minimums is None else minimums.reshape(shape),
    )


def _halves(blocks: U8, at: int) -> F16:
    """The half-precision number at that byte of every block, (n, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")


def _bits(packed: U8, width: int, run: int) -> U8:
    """Fields of `width` bits out of bytes (n, b): of every `run` bytes the lowest fields first, then the next ones."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    fields: U8 = packed.reshape(len(packed), -1, 1, run) >> shifts & np.uint8((1 << width) - 1)
    return fields.reshape(len(packed), -1)


def _fifth_bits(blocks: U8, at: int) -> U8:
    """32 bits, one for each value in order, as 0 or 16."""
    return np.unpackbits(np.ascontiguousarray(blocks[:, at : at + 4]), axis=1, bitorder="little") << np.uint8(4)


def _q4_0(b: U8) -> Decoded:
    return _bits(b[:, 2:], 4, 16).view(np.int8) - np.int8(8), _halves(b, 0), None


def _q4_1(b: U8) -> Decoded:
    return _bits(b[:, 4:], 4, 16), _halves(b, 0), _halves(b, 2)


def _q5_0(b: U8) -> Decoded:
    return (_bits(b[:, 6:], 4, 16) | _fifth_bits(b, 2)).view(np.int8) - np.int8(16), _halves(b, 0), None


def _q5_1(b: U8) -> Decoded:
    return _bits(b[:, 8:], 4, 16) | _fifth_bits(b, 4), _halves(b, 0), _halves(b, 2)


def _q8_0(b: U8) -> Decoded:
    return b[:, 2:].view(np.int8), _halves(b, 0), None


def _q2_k(b: U8) -> Decoded:
    d, dmin = (_halves(b, at).astype(np.float32) for at in (80, 82))
    return _bits(b[:, 16:80], 2, 32), d * (b[:, :16] & 15), -(dmin * (b[:, :16] >> 4))


def _q3_k(b: U8) -> Decoded:
    d = _halves(b, 108).astype(np.float32)
    scales = _bits(b[:, 96:104], 4, 8) | _bits(b[:, 104:108], 2, 4) << np.uint8(4)
    missing = (_bits(b[:, :32], 1, 32) ^ np.uint8(1)) << np.uint8(2)  # 4 where the bit is not set
    codes = _bits(b[:, 32:96], 2, 32).view(np.int8) - missing.view(np.int8)
    return codes, d * (scales.view(np.int8) - np.int8(32)), None


def _scales_and_minimums(b: U8) -> tuple[F32, F32]:
    """Of Q4_K and Q5_K: twelve bytes with six bits each for eight groups."""
    d, dmin = (_halves(b, at).astype(np.float32) for at in (0, 2))
    first, second, rest = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = np.concatenate((first & 63, rest & 15 | first >> 6 << 4), axis=1)
    minimums = np.concatenate((second & 63, rest >> 4 | second >> 6 << 4), axis=1)
    return d * scales, -(dmin * minimums)


def _q4_k(b: U8) -> Decoded:
    return _bits(b[:, 16:], 4, 32), *_scales_and_minimums(b)


def _q5_k(b: U8) -> Decoded:
    codes = _bits(b[:, 48:], 4, 32) | _bits(b[:, 16:48], 1, 32) << np.uint8(4)
    return codes, *_scales_and_minimums(b)


def _q6_k(b: U8) -> Decoded:
    d = _halves(b, 208).astype(np.float32)
    codes = _bits(b[:, :128], 4, 64) | _bits(b[:, 128:192], 2, 32) << np.uint8(4)
    return codes.view(np.int8) - np.int8(32), d * b[:, 192:208].view(np.int8), None


def _iq4_nl(b: U8) -> Decoded:
    return IQ4_VALUES[_bits(b[:, 2:], 4, 16)], _halves(b, 0), None


def _iq4_xs(b: U8) -> Decoded:
    d = _halves(b, 0).astype(np.float32)
    scales = _bits(b[:, 4:8], 4, 1) | _bits(b[:, 2:4], 2, 1) << np.uint8(4)
    return IQ4_VALUES[_bits(b[:, 8:], 4, 16)], d * (scales.view(np.int8) - np.int8(32)), None


def _tq1_0(b: U8) -> Decoded:
    """Five numbers of three values in a byte, as digits of a fraction."""
    parts = []
    for start, stop, num_digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = np.array([3**digit for digit in range(num_digits)], np.uint8)[:, None]
        parts.append((b[:, None, start:stop] * powers).reshape(len(b), -1))
    digits = np.concatenate(parts, axis=1).astype(np.uint16) * np.uint16(3) >> np.uint16(8)
    return digits.astype(np.int8) - np.int8(1), np.repeat(_halves(b, 52), 8, axis=1), None


def _tq2_0(b: U8) -> Decoded:
    codes = _bits(b[:, :64], 2, 32).view(np.int8) - np.int8(1)
    return codes, np.repeat(_halves(b, 64), 8, axis=1), None


def _mxfp4(b: U8) -> Decoded:
    scales = np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128)  # half of the shared power of two
    return FP4_VALUES[_bits(b[:, 1:], 4, 16)], scales, None


def _nvfp4(b: U8) -> Decoded:
    exponent, mantissa = b[:, :4].astype(np.int32) >> 3 & 15, (b[:, :4] & 7).astype(np.float32)
    scales = np.ldexp(np.where(exponent == 0, mantissa, mantissa + 8), np.maximum(exponent, 1) - 11)
    scales[b[:, :4] == 0x7F] = 0
    return FP4_VALUES[_bits(b[:, 4:], 4, 8)], scales.astype(np.float32), None


_S8_HALF = IntegerForm("s8", 32, "f16", has_minimum=False)
_S8_FLOAT = IntegerForm("s8", 32, "f32", has_minimum=False)
_S4_HALF = IntegerForm("s4", 32, "f16", has_minimum=False)

KINDS = {
    GGMLQuantizationType.Q4_0: IntegerKind(_S4_HALF, _q4_0),
    GGMLQuantizationType.Q4_1: IntegerKind(IntegerForm("u4", 32, "f16", has_minimum=True), _q4_1),
    GGMLQuantizationType.Q5_0: IntegerKind(_S8_HALF, _q5_0),
    GGMLQuantizationType.Q5_1: IntegerKind(IntegerForm("s8", 32, "f16", has_minimum=True), _q5_1),
    GGMLQuantizationType.Q8_0: IntegerKind(_S8_HALF, _q8_0),
    GGMLQuantizationType.Q2_K: IntegerKind(IntegerForm("u4", 16, "f32", has_minimum=True), _q2_k),
    GGMLQuantizationType.Q3_K: IntegerKind(IntegerForm("s4", 16, "f32", has_minimum=False), _q3_k),
    GGMLQuantizationType.Q4_K: IntegerKind(IntegerForm("u4", 32, "f32", has_minimum=True), _q4_k),
    GGMLQuantizationType.Q5_K: IntegerKind(IntegerForm("s8", 32, "f32", has_minimum=True), _q5_k),
    GGMLQuantizationType.Q6_K: IntegerKind(IntegerForm("s8", 16, "f32", has_minimum=False), _q6_k),
    GGMLQuantizationType.IQ4_NL: IntegerKind(_S8_HALF, _iq4_nl),
    GGMLQuantizationType.IQ4_XS: IntegerKind(_S8_FLOAT, _iq4_xs),
    GGMLQuantizationType.TQ1_0: IntegerKind(_S4_HALF, _tq1_0),
    GGMLQuantizationType.TQ2_0: IntegerKind(_S4_HALF, _tq2_0),
    GGMLQuantizationType.MXFP4: IntegerKind(_S8_FLOAT, _mxfp4),
    GGMLQuantizationType.NVFP4: IntegerKind(IntegerForm("s8", 16, "f32", has_minimum=False), _nvfp4),
}
