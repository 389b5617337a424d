"""Row-invariant matrix products out of a BLAS that promises none.

A product `w @ x`, with w (N, K) a weight and x (K, W) one token per column, should give a token the same bits whatever
stands in the other columns and however many there are. BLAS does not do that: it takes another kernel for one column
than for eight, another for the columns at the edge of its tile, and another where two threads meet. All of these are
right to the last digit but one, and that digit turns a greedy reply into another one.

But what BLAS does depends on the shape of the call alone, never on the data. So the bits of a column are a function of
(N, K, W, column, number of threads), and they can be looked up: put one vector into every column of a call and see
which columns come out alike. Measured with OpenBLAS 0.3.31, columns named by their bits:

    SkylakeX   W=4: aaaa   W=64: a x 64            W=1..3: others
    Haswell    W=4: aaaa   W=64: b x 8, a x 48, b x 8    W=512: b x 8, a x 240, b x 16, a x 240, b x 8

The plan holds the widths that are usable and, for each, the run of columns ("lanes") whose bits equal those of one
reference; tokens go into lanes only, zeros elsewhere. Every product of a family of shapes must agree, so that tokens
keep their columns from layer to layer.

Two ways to call. *Alone*: one product at a time on all BLAS threads, for few columns, where reading the weight is the
cost. *Beside*: one BLAS thread per product, several products at once from threads of our own, for many columns; it
scales better, as everything between the products then runs on all cores too. The plan's calls give the same bits both
ways.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.kernels.blas import Blas
from inference.types import F32

ALONE_WIDTHS = (4, 8, 12, 16)
BESIDE_WIDTHS = (4, 8, 12, 16, 32, 48, 64, 96, 128, 144, 192, 256, 272)


@dataclass(frozen=True, slots=True)
class MatmulShape:
    """w (N, K) of a product w @ x; is_transposed when w is the transposed view of a (K, N) array."""

    num_rows: int  # N
    num_inner: int  # K
    is_transposed: bool = False


@dataclass(frozen=True, slots=True)
class Lanes:
    """A call of `width` columns, of which first .. first + count - 1 may carry tokens."""

    width: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The calls that give one bit pattern, ascending by count. `alone` is never empty, `beside` may be.

    digest names that bit pattern: two plans of equal digest compute alike.
    """

    alone: tuple[Lanes, ...]
    beside: tuple[Lanes, ...]
    digest: bytes

    @property
    def has_wide_calls(self) -> bool:
        """Whether a long prompt need not be squeezed through calls meant for a few columns."""
        return any(lanes.width > self.alone[-1].width for lanes in self.beside)


def fit_lanes(options: Sequence[Lanes], num_columns: int) -> Lanes:
    """The smallest call that holds num_columns, or the largest there is."""
    return next((lanes for lanes in options if lanes.count >= num_columns), options[-1])


def split_columns(options: Sequence[Lanes], num_columns: int) -> list[tuple[int, int, Lanes]]:
    """(start, count, lanes) of the calls that together hold num_columns: full ones, then one that fits the rest."""
    pieces = []
    start = 0
    while start < num_columns:
        lanes = fit_lanes(options, num_columns - start)
        count = min(lanes.count, num_columns - start)
        pieces.append((start, count, lanes))
        start += count
    return pieces


def probe_calls(
    shapes: Sequence[MatmulShape],
    blas: Blas,
    num_threads: int,
    *,
    alone_widths: Sequence[int] = ALONE_WIDTHS,
    beside_widths: Sequence[int] = BESIDE_WIDTHS,
) -> CallPlan:
    """Finds the calls that agree for all `shapes`. Leaves the BLAS thread count changed.

    The reference is the narrowest alone-call whose columns all agree and whose bits some wide beside-call shares; one
    without any such partner is taken only when no other is left. Costs about the time of a prefill of 1,000 tokens
    through one product of each shape.
    Raises RuntimeError when no width treats its columns alike: this BLAS cannot serve the row-invariance contract.
    """
    alone: dict[int, list[F32]] = {width: [] for width in sorted(alone_widths)}
    beside: dict[int, list[F32]] = {width: [] for width in sorted(beside_widths)}
    for shape in shapes:  # one at a time: the operand is as large as the weight
        w, x = _operands(shape)
        for threads, by_width in ((num_threads, alone), (1, beside)):
            blas.set_num_threads(threads)
            for width, found in by_width.items():
                found.append(_output(w, x, width))
    fallback: CallPlan | None = None
    for outputs in alone.values():
        reference = [y[:, 0].copy() for y in outputs]
        if not all(_agreeing_columns(outputs, reference)):
            continue
        whole = [Lanes(w, 0, w) for w, y in alone.items() if all(_agreeing_columns(y, reference))]
        runs = [_longest_run(w, _agreeing_columns(y, reference)) for w, y in beside.items()]
        usable = sorted((run for run in runs if 2 * run.count >= run.width), key=lambda run: run.count)
        digest = hashlib.sha256(b"".join(y.tobytes() for y in reference)).digest()
        plan = CallPlan(tuple(whole), tuple(usable), digest)
        if plan.has_wide_calls or not beside_widths:
            return plan
        fallback = fallback or plan
    if fallback is None:
        raise RuntimeError(
            f"the BLAS library ({blas.core}) treats the columns of a product differently at every width in "
            f"{tuple(alone_widths)} for one of {tuple(shapes)}; replies would depend on what else is computed"
        )
    return fallback


def _operands(shape: MatmulShape) -> tuple[F32, F32]:
    """Random w (N, K) and vector x (K,), the same in every process.

    The second half of the terms nearly cancels the first. So what is left has far finer steps than the roundings on the
    way, and another order of additions shows; with plain random numbers it gives the same bits in one row of three, and
    a kernel that differs in the last two rows only went unnoticed.
    """
    rng = np.random.default_rng(0)
    N, K = shape.num_rows, shape.num_inner
    values = rng.standard_normal(65_521, np.float32)  # a prime: rows of w do not repeat
    stored = np.resize(values, (K, N) if shape.is_transposed else (N, K))
    w = stored.T if shape.is_transposed else stored
    x = rng.standard_normal(K, np.float32)
    half = K // 2
    w[:, half : 2 * half] *= np.float32(1e-3)
    w[:, half : 2 * half] -= w[:, :half]
    x[half : 2 * half] = x[:half]
    return w, x


def _output(w: F32, x: F32, width: int) -> F32:
    """w @ x with x in every column: (N, width)."""
    y: F32 = np.matmul(w, np.repeat(x[:, None], width, axis=1))
    return y


def _agreeing_columns(outputs: Sequence[F32], reference: Sequence[F32]) -> NDArray[np.bool_]:
    """(width,) True where a column has the reference's bits in every shape."""
    pairs = zip(outputs, reference, strict=True)
    agreeing: NDArray[np.bool_] = np.all([(y == expected[:, None]).all(axis=0) for y, expected in pairs], axis=0)
    return agreeing


def _longest_run(width: int, agreeing: NDArray[np.bool_]) -> Lanes:
    """The longest stretch of agreeing columns; count 0 when there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], agreeing, [False])).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return Lanes(width, 0, 0)
    longest = int(np.argmax(ends - starts))
    return Lanes(width, int(starts[longest]), int(ends[longest] - starts[longest]))
