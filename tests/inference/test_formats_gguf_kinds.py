"""Quantised blocks come back as the published layout says: a second reading of it, value by value, in plain Python.

The kinds with code books of hundreds of entries (IQ1, IQ2, IQ3) are compared with the package alone, elsewhere.
Source: ggml-quants.c and ggml-common.h (ggml).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES

from inference.formats import gguf_file
from inference.formats.model_file import open_model_file
from tests.inference import tiny_models as tiny
from tests.inference.tiny_models import U32

WIDTH = 512  # of the rows under test: two blocks of 256, sixteen of 32
NAME = "model.layers.1.mlp.down_proj.weight"
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the value


def half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def nibbles(qs: bytes) -> list[int]:
    """Low halves of all bytes, then high ones."""
    return [byte & 15 for byte in qs] + [byte >> 4 for byte in qs]


def fifth_bits(block: bytes, at: int) -> list[int]:
    bits = int.from_bytes(block[at : at + 4], "little")
    return [(bits >> index & 1) << 4 for index in range(32)]


def q4_0(b: bytes) -> list[float]:
    return [half(b, 0) * (q - 8) for q in nibbles(b[2:])]


def q4_1(b: bytes) -> list[float]:
    return [half(b, 0) * q + half(b, 2) for q in nibbles(b[4:])]


def q5_0(b: bytes) -> list[float]:
    return [half(b, 0) * ((q | bit) - 16) for q, bit in zip(nibbles(b[6:]), fifth_bits(b, 2), strict=True)]


def q5_1(b: bytes) -> list[float]:
    return [half(b, 0) * (q | bit) + half(b, 2) for q, bit in zip(nibbles(b[8:]), fifth_bits(b, 4), strict=True)]


def q8_0(b: bytes) -> list[float]:
    return [half(b, 0) * q for q in struct.unpack_from("32b", b, 2)]


def q2_k(b: bytes) -> list[float]:
    scales, qs, d, dmin = b[:16], b[16:80], half(b, 80), half(b, 82)
    found = []
    for index in range(256):
        q = qs[index // 128 * 32 + index % 32] >> index % 128 // 32 * 2 & 3
        scale = scales[index // 16]
        found.append(d * (scale & 15) * q - dmin * (scale >> 4))
    return found


def q3_k(b: bytes) -> list[float]:
    mask, qs, packed, d = b[:32], b[32:96], b[96:108], half(b, 108)
    found = []
    for index in range(256):
        group = index // 16
        low = packed[group % 8] >> 4 * (group // 8) & 15
        scale = low | (packed[8 + group % 4] >> 2 * (group // 4) & 3) << 4
        q = qs[index // 128 * 32 + index % 32] >> index % 128 // 32 * 2 & 3
        q -= 0 if mask[index % 32] >> index // 32 & 1 else 4
        found.append(d * (scale - 32) * q)
    return found


def scale_and_min(packed: bytes, group: int) -> tuple[int, int]:
    """Six bits each, for eight groups, in twelve bytes."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low = packed[group + 4]
    return low & 15 | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4


def q4_k(b: bytes, extra: Callable[[int], int] = lambda index: 0, qs_at: int = 16) -> list[float]:
    d, dmin, packed, qs = half(b, 0), half(b, 2), b[4:16], b[qs_at:]
    found = []
    for index in range(256):
        scale, low = scale_and_min(packed, index // 32)
        q = qs[index // 64 * 32 + index % 32] >> index // 32 % 2 * 4 & 15
        found.append(d * scale * (q | extra(index)) - dmin * low)
    return found


def q5_k(b: bytes) -> list[float]:
    return q4_k(b, lambda index: (b[16 + index % 32] >> index // 32 & 1) << 4, qs_at=48)


def q6_k(b: bytes) -> list[float]:
    low, high, scales, d = b[:128], b[128:192], struct.unpack_from("16b", b, 192), half(b, 208)
    found = []
    for index in range(256):
        part, inside = divmod(index, 128)
        q = low[part * 64 + inside % 64] >> inside // 64 * 4 & 15
        q |= (high[part * 32 + inside % 32] >> inside // 32 * 2 & 3) << 4
        found.append(d * scales[index // 16] * (q - 32))
    return found


def iq4_nl(b: bytes) -> list[float]:
    return [half(b, 0) * IQ4[q] for q in nibbles(b[2:])]


def iq4_xs(b: bytes) -> list[float]:
    d, high, low, qs = half(b, 0), int.from_bytes(b[2:4], "little"), b[4:8], b[8:]
    found: list[float] = []
    for group in range(8):
        scale = low[group // 2] >> group % 2 * 4 & 15 | (high >> 2 * group & 3) << 4
        found += [d * (scale - 32) * IQ4[q] for q in nibbles(qs[group * 16 : group * 16 + 16])]
    return found


def tq1_0(b: bytes) -> list[float]:
    d, found = half(b, 52), []
    for start, stop, num_trits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        for power in range(num_trits):
            found += [d * ((byte * 3**power % 256 * 3 >> 8) - 1) for byte in b[start:stop]]
    return found


def tq2_0(b: bytes) -> list[float]:
    return [half(b, 64) * ((b[i // 128 * 32 + i % 32] >> i % 128 // 32 * 2 & 3) - 1) for i in range(256)]


def mxfp4(b: bytes) -> list[float]:
    return [2.0 ** (b[0] - 128) * FP4[q] for q in nibbles(b[1:])]


# name -> how to read a block, and where in it the half-precision factors stand
KINDS: dict[str, tuple[Callable[[bytes], list[float]], tuple[int, ...]]] = {
    "Q4_0": (q4_0, (0,)),
    "Q4_1": (q4_1, (0, 2)),
    "Q5_0": (q5_0, (0,)),
    "Q5_1": (q5_1, (0, 2)),
    "Q8_0": (q8_0, (0,)),
    "Q2_K": (q2_k, (80, 82)),
    "Q3_K": (q3_k, (108,)),
    "Q4_K": (q4_k, (0, 2)),
    "Q5_K": (q5_k, (0, 2)),
    "Q6_K": (q6_k, (208,)),
    "IQ4_NL": (iq4_nl, (0,)),
    "IQ4_XS": (iq4_xs, (0,)),
    "TQ1_0": (tq1_0, (52,)),
    "TQ2_0": (tq2_0, (64,)),
    "MXFP4": (mxfp4, ()),
}


def model_with(path: Path, name: str) -> tuple[Path, list[bytes]]:
    """A file in which one matrix is stored in that kind, and its blocks: random bits with sensible factors."""
    rng = np.random.default_rng(9)
    kind = GGMLQuantizationType[name]
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (tiny.HIDDEN * WIDTH // block_size, block_bytes), dtype=np.uint8)
    for at in KINDS[name][1]:
        factors = rng.uniform(-2, 2, len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = factors.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(100, 150, len(blocks))  # a power of two
    made = tiny.tiny_gguf()
    made.set("llama.feed_forward_length", U32, WIDTH)
    for layer in range(tiny.LAYERS):
        for part in ("gate", "up"):
            zeros = np.zeros((WIDTH, tiny.HIDDEN), np.float32)
            made.tensors[f"blk.{layer}.ffn_{part}.weight"] = ((tiny.HIDDEN, WIDTH), 0, zeros.tobytes())
        made.tensors[f"blk.{layer}.ffn_down.weight"] = ((WIDTH, tiny.HIDDEN), int(kind), blocks.tobytes())
    return made.write(path / "m.gguf"), [block.tobytes() for block in blocks]


@pytest.mark.parametrize("name", KINDS)
def test_every_value_of_a_block_is_what_its_layout_says(tmp_path: Path, name: str) -> None:
    path, blocks = model_with(tmp_path, name)
    expected = np.array([value for block in blocks for value in KINDS[name][0](block)]).reshape(tiny.HIDDEN, WIDTH)
    np.testing.assert_allclose(open_model_file(path).tensor(NAME), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "MXFP4"])
def test_converting_some_rows_at_a_time_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, _ = model_with(tmp_path, name)
    whole = open_model_file(path).tensor(NAME)
    for size in (1, 1000, 5000):
        monkeypatch.setattr(gguf_file, "SLAB_BYTES", size)
        np.testing.assert_array_equal(open_model_file(path).tensor(NAME), whole)
