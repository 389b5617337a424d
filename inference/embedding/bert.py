"""A BERT encoder in plain NumPy, float32, one text at a time: no padding, so no mask, and a vector never depends on
what else is encoded.

Source: BERT, arXiv:1810.04805. Knows neither tokenizers nor files. Axes: T tokens, H heads, D head size, C hidden,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from inference.embedding.gelu import gelu
from inference.embedding.products import Linear, attend
from inference.types import F32, I64


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Field names of Hugging Face's config.json. Raises ValueError that begins with the name of the field at fault."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        for name, most in _LIMITS.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise ValueError(f"{name} is {str(value)[:40]!r}; legal are whole numbers from 1 to {most}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is no multiple of {self.num_attention_heads} heads")
        if not isinstance(self.layer_norm_eps, int | float) or not 0 < self.layer_norm_eps < 1:
            raise ValueError(f"layer_norm_eps is {str(self.layer_norm_eps)[:40]!r}; legal are numbers between 0 and 1")


_LIMITS = {
    "vocab_size": 1 << 20,
    "hidden_size": 1 << 13,
    "num_hidden_layers": 128,
    "num_attention_heads": 1 << 10,
    "intermediate_size": 1 << 15,
    "max_position_embeddings": 1 << 16,
    "type_vocab_size": 1 << 10,
}


def tensor_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """The tensors that a model of this config has, as Hugging Face names them; linear weights are (out, in)."""
    c, i = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, c),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, c),
        "embeddings.token_type_embeddings.weight": (config.type_vocab_size, c),
    }
    linears = {
        "attention.self.query": (c, c),
        "attention.self.key": (c, c),
        "attention.self.value": (c, c),
        "attention.output.dense": (c, c),
        "intermediate.dense": (i, c),
        "output.dense": (c, i),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(config.num_hidden_layers):
        prefix = f"encoder.layer.{layer}."
        norms += [prefix + "attention.output.LayerNorm", prefix + "output.LayerNorm"]
        for name, shape in linears.items():
            shapes[f"{prefix}{name}.weight"] = shape
            shapes[f"{prefix}{name}.bias"] = shape[:1]
    for name in norms:
        shapes[name + ".weight"] = shapes[name + ".bias"] = (c,)
    return shapes


class _LayerNorm:
    """Each row of x (T, C) to mean 0 and variance 1, then scaled. Source: arXiv:1607.06450."""

    def __init__(self, weight: F32, bias: F32, eps: float) -> None:
        self._weight, self._bias, self._eps = weight, bias, np.float32(eps)

    def __call__(self, x: F32) -> F32:
        out: F32 = x - x.mean(-1, keepdims=True)
        out /= np.sqrt(np.square(out).mean(-1, keepdims=True) + self._eps)
        out *= self._weight
        out += self._bias
        return out


class _Layer:
    def __init__(self, config: BertConfig, linear: Callable[[str], Linear], norm: Callable[[str], _LayerNorm]) -> None:
        self._num_heads = config.num_attention_heads
        self._query, self._key = linear("attention.self.query"), linear("attention.self.key")
        self._value, self._output = linear("attention.self.value"), linear("attention.output.dense")
        self._up, self._down = linear("intermediate.dense"), linear("output.dense")
        self._attention_norm, self._norm = norm("attention.output.LayerNorm"), norm("output.LayerNorm")

    def __call__(self, x: F32) -> F32:
        x = self._attention_norm(x + self._output(self._attend(x)))
        return self._norm(x + self._down(gelu(self._up(x))))

    def _attend(self, x: F32) -> F32:
        """(T, C) -> (T, C)"""
        q, k, v = (self._heads(linear(x)) for linear in (self._query, self._key, self._value))
        return attend(q, k, v).transpose(1, 0, 2).reshape(x.shape)

    def _heads(self, x: F32) -> F32:
        """(T, C) -> (H, T, D)"""
        return x.reshape(len(x), self._num_heads, -1).transpose(1, 0, 2)


class Bert:
    """Weights in float32. Safe from any thread: nothing changes after construction."""

    def __init__(self, config: BertConfig, tensor: Callable[[str], F32]) -> None:
        """tensor: name in tensor_shapes -> the tensor; each is asked for once. Its errors pass through."""
        self._words = tensor("embeddings.word_embeddings.weight")  # (V, C)
        # All tokens are of type 0: a pair of texts is never encoded.
        self._places = tensor("embeddings.position_embeddings.weight")  # (max_position_embeddings, C)
        self._places = self._places + tensor("embeddings.token_type_embeddings.weight")[0]

        def linear(name: str) -> Linear:
            return Linear(tensor(name + ".weight"), tensor(name + ".bias"))

        def norm(name: str) -> _LayerNorm:
            return _LayerNorm(tensor(name + ".weight"), tensor(name + ".bias"), config.layer_norm_eps)

        def inside(kind: Callable[[str], Any], layer: int) -> Callable[[str], Any]:
            return lambda name: kind(f"encoder.layer.{layer}.{name}")

        self._norm = norm("embeddings.LayerNorm")
        self._layers = [
            _Layer(config, inside(linear, layer), inside(norm, layer)) for layer in range(config.num_hidden_layers)
        ]

    def hidden_states(self, ids: I64) -> F32:
        """(T,) token ids -> (T, C), what the last layer says of each. Cost: linear in T, attention in its square."""
        x = self._norm(self._words[ids] + self._places[: len(ids)])
        for layer in self._layers:
            x = layer(x)
        return x
