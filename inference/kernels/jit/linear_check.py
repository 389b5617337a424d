"""Products from Python, and the proof at start that a tier computes what the oracle does, bit by bit."""

from __future__ import annotations

import ctypes

import numpy as np

from inference.errors import InferenceError
from inference.kernels.jit.linear import LinearKernels
from inference.kernels.jit.linear_kernel import PARAMETERS, SCRATCH_BYTES
from inference.kernels.jit.linear_rows import QUANTISE_PARAMETERS, STEP, quantised_bytes, tile_rows_bytes
from inference.kernels.jit.packing import PackedMatrix, aligned, pack
from inference.kernels.oracle import linear as oracle
from inference.kernels.quantized import (
    CODE_RANGES,
    FloatForm,
    Form,
    IntegerForm,
    WeightMatrix,
    float_matrix,
    integer_matrix,
)
from inference.types import F32

NUM_ROWS, NUM_INNER, TOKEN_COUNTS = 4 * 16 + 3, 3 * STEP, (1, 7, 20)  # every size of a tile, a panel that is not full

_QUANTISE = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(QUANTISE_PARAMETERS))
_LINEAR = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(PARAMETERS))


class KernelsDiffer(InferenceError):
    """Compiled kernels give other numbers than the oracle: this CPU or compiler breaks a promise."""

    def __init__(self, tier: str, form: Form, num_wrong: int) -> None:
        self.tier = tier
        self.form = form
        self.num_wrong = num_wrong
        super().__init__(f"the {tier} kernels compute {num_wrong} numbers otherwise than NumPy does, for {form}")


def multiply(matrix: PackedMatrix, x: F32, kernels: LinearKernels) -> F32:
    """y (T, N) for x (T, K), on the caller's thread."""
    record = matrix.record[0]
    x = np.ascontiguousarray(x, np.float32)
    num_tokens, num_inner = x.shape
    y = np.zeros((num_tokens, int(record["num_rows"])), np.float32)
    data = aligned(0 if record["is_float"] else quantised_bytes(num_tokens, num_inner))
    has_tiles = kernels.tier.has_tiles and not record["is_float"]
    tiles = aligned(tile_rows_bytes(num_tokens, num_inner) if has_tiles else 0)
    rows = data.ctypes.data, tiles.ctypes.data if has_tiles else 0
    if not record["is_float"]:
        _QUANTISE(kernels.quantise())(x.ctypes.data, num_inner, num_inner, *rows, 0, num_tokens)
    scratch = aligned(SCRATCH_BYTES)
    fields = [int(record[name]) for name in ("data", "panel_bytes", "num_rows", "num_inner")]
    _LINEAR(int(record["kernel"]))(
        *fields, x.ctypes.data, num_inner, *rows, scratch.ctypes.data, 0, num_tokens,
        y.ctypes.data, y.shape[1], 0, int(record["num_panels"]),
    )  # fmt: skip
    return y


def random_matrix(form: Form, num_rows: int, num_inner: int, rng: np.random.Generator) -> WeightMatrix:
    """Codes over their whole range, weights about as large as those of models."""
    if isinstance(form, FloatForm):
        weights = rng.standard_normal((num_rows, num_inner), np.float32)
        if form.floats == "bf16":
            return float_matrix(form, (weights.view(np.uint32) >> 16).astype(np.uint16))
        return float_matrix(form, weights.astype(form.dtype))
    return _random_integers(form, num_rows, num_inner, rng)


def _random_integers(form: IntegerForm, num_rows: int, num_inner: int, rng: np.random.Generator) -> WeightMatrix:
    low, high = CODE_RANGES[form.codes]
    codes = rng.integers(low, high, (num_rows, num_inner), np.int8, endpoint=True)
    shape = (num_rows, num_inner // form.group)
    scales, minimums = (rng.normal(0, 0.01, shape).astype(form.scale_dtype) for _ in range(2))
    return integer_matrix(form, codes, scales, minimums if form.has_minimum else None)


def check(kernels: LinearKernels, form: Form) -> None:
    """Raises KernelsDiffer unless small products of the form have the oracle's bits. Takes about a millisecond."""
    rng = np.random.default_rng(1)
    matrix = random_matrix(form, NUM_ROWS, NUM_INNER, rng)
    packed = pack([matrix], kernels)
    for num_tokens in TOKEN_COUNTS:
        x = rng.standard_normal((num_tokens, NUM_INNER), np.float32)
        found, expected = multiply(packed, x, kernels), oracle.linear(matrix, x)
        if not np.array_equal(found.view(np.uint32), expected.view(np.uint32)):
            num_wrong = int((found.view(np.uint32) != expected.view(np.uint32)).sum())
            raise KernelsDiffer(kernels.tier.name, form, num_wrong)
