"""What the layers of a decoder are made of, whatever form the matrices have. No arithmetic.

M is a matrix in the form in which someone multiplies with it: a float32 array here, packed panels there. An
architecture says which tensors become what (architecture.py), a TensorReader makes the form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from inference.types import F32

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class TensorReader(Protocol[M_co]):
    """Reads what lies under a prefix. That the tensors are there, and their shapes, was checked when the file was
    opened."""

    def matrix(self, *names: str) -> M_co:
        """(N, C): one tensor, or the rows of several that are multiplied by the same input."""
        ...

    def vector(self, *names: str) -> F32:
        """(N,): one vector, or several joined."""
        ...

    def norm(self, name: str) -> F32:
        """(C,): what a normalised row is multiplied by."""
        ...


@dataclass(frozen=True, slots=True)
class AttentionWeights(Generic[M]):
    """Rotary grouped-query attention of H heads, K kv heads of size D."""

    norm: F32  # (C,)
    qkv: M  # ((H + 2 K) D, C)
    output: M  # (C, H D)
    qkv_bias: F32 | None = None  # ((H + 2 K) D,)
    output_bias: F32 | None = None  # (C,)
    q_norm: F32 | None = None  # (D,), of each head by itself
    k_norm: F32 | None = None  # (D,)
    post_norm: F32 | None = None  # (C,), of what is added to the residual stream


@dataclass(frozen=True, slots=True)
class MlpWeights(Generic[M]):
    """A gated feed-forward part of width I."""

    norm: F32  # (C,)
    gate_up: M  # (2 I, C)
    down: M  # (C, I)
    gate_up_bias: F32 | None = None  # (2 I,)
    down_bias: F32 | None = None  # (C,)
    post_norm: F32 | None = None  # (C,), of what is added to the residual stream


@dataclass(frozen=True, slots=True)
class ExpertWeights(Generic[M]):
    gate_up: M  # (2 I, C)
    down: M  # (C, I)


@dataclass(frozen=True, slots=True)
class SparseMlpWeights(Generic[M]):
    """A feed-forward part that is a choice of E experts."""

    norm: F32  # (C,)
    router: M  # (E, C)
    experts: tuple[ExpertWeights[M], ...]


FeedForwardWeights = MlpWeights[M] | SparseMlpWeights[M]
