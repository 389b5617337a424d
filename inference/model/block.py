"""What a layer works on: a block of columns, one token each, and the calls that are open to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inference.kernels.attention import AttentionJob
from inference.kernels.call_plan import Lanes
from inference.types import F32, I64


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls open to a step, and how many BLAS threads each of them runs on."""

    num_threads: int
    linear: tuple[Lanes, ...]
    attention: tuple[Lanes, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Columns that go through the layers together: tokens start .. start + count - 1 of the batch, in `lanes`."""

    start: int
    count: int
    lanes: Lanes
    calls: Calls
    x: F32  # (C, W) the residual stream, updated in place
    qkv: F32  # ((H + 2 K) D, W) of the layer at hand
    angles: tuple[tuple[F32, F32], ...]  # cos, sin (R / 2, W) of each rope table
    slots: I64  # (count,)
    jobs: Mapping[int, tuple[AttentionJob, ...]]  # by window

    @property
    def columns(self) -> slice:
        return slice(self.lanes.first, self.lanes.first + self.count)
