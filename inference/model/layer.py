"""One decoder layer: attention and a gated feed-forward part, each with what some architectures add to Llama's.

A block of columns goes through a layer in two halves, since attention reads the K and V of the whole batch: up to the
writing of K and V, and from attention on. C hidden, H heads, K kv heads, D head size, I intermediate, W columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from inference.config import ModelConfig
from inference.kernels.attention import attend
from inference.kernels.kv_storage import KVStorage
from inference.kernels.reference import ACTIVATIONS, rms_norm, rotate
from inference.kernels.scratch import Scratch
from inference.model.block import Block
from inference.model.rope import table_of
from inference.model.weights import AttentionWeights, MlpWeights
from inference.types import F32


@dataclass(frozen=True, slots=True)
class Attention:
    """Rotary grouped-query attention. Its window, rotation and scale are what the config says of the layer."""

    config: ModelConfig
    layer: int
    weights: AttentionWeights[F32]

    @property
    def matrices(self) -> tuple[F32, ...]:
        return self.weights.qkv, self.weights.output

    def project(self, block: Block, kv: KVStorage, scratch: Scratch) -> None:
        """Queries, keys and values of the block; K and V go into the pool."""
        config = self.config
        H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        np.matmul(
            self.weights.qkv, rms_norm(block.x, self.weights.norm[:, None], config.rms_norm_eps, scratch), out=block.qkv
        )
        if self.weights.qkv_bias is not None:
            np.add(block.qkv, self.weights.qkv_bias[:, None], out=block.qkv)
        heads = block.qkv.reshape(H + 2 * K, D, block.lanes.width)
        for part, norm in ((heads[:H], self.weights.q_norm), (heads[H : H + K], self.weights.k_norm)):
            if norm is not None:
                part[...] = rms_norm(part, norm[:, None], config.rms_norm_eps, scratch)
        table = table_of(config, self.layer)
        if table is not None:
            rotate(heads[: H + K], *block.angles[table], scratch)
        k, v = (
            part[:, :, block.columns].transpose(2, 0, 1) for part in (heads[H : H + K], heads[H + K :])
        )  # (T, K, D)
        kv.write(self.layer, block.slots, k, v)

    def attend(self, block: Block, kv: KVStorage, scratch: Scratch) -> None:
        """Attention and its output projection, added to the residual stream."""
        config = self.config
        K, D, W = config.num_key_value_heads, config.head_dim, block.lanes.width
        G = config.num_attention_heads // K
        q = block.qkv[: K * G * D].reshape(K, G, D, W)
        mixed = scratch.take("mixed", K, G, D, W)
        mixed.fill(0)
        for job in block.jobs[config.window(self.layer)]:
            columns = slice(job.first_column, job.first_column + job.num_tokens)
            out = mixed[..., columns]
            attend(job, q[..., columns], kv, self.layer, config.attention_scale, scratch, out)
        added = scratch.take("added", *block.x.shape)
        np.matmul(self.weights.output, mixed.reshape(K * G * D, W), out=added)
        if self.weights.output_bias is not None:
            np.add(added, self.weights.output_bias[:, None], out=added)
        add(block, added, self.weights.post_norm, config, scratch)


class FeedForward(Protocol):
    """The part of a layer that looks at one token at a time."""

    @property
    def matrices(self) -> tuple[F32, ...]: ...

    def apply(self, block: Block, scratch: Scratch) -> None:
        """Computes it, added to the residual stream."""
        ...


@dataclass(frozen=True, slots=True)
class Mlp:
    """The gated feed-forward part."""

    config: ModelConfig
    weights: MlpWeights[F32]

    @property
    def matrices(self) -> tuple[F32, ...]:
        return self.weights.gate_up, self.weights.down

    def apply(self, block: Block, scratch: Scratch) -> None:
        normed = rms_norm(block.x, self.weights.norm[:, None], self.config.rms_norm_eps, scratch)
        gate_up = scratch.take("gate_up", len(self.weights.gate_up), block.lanes.width)
        np.matmul(self.weights.gate_up, normed, out=gate_up)
        if self.weights.gate_up_bias is not None:
            np.add(gate_up, self.weights.gate_up_bias[:, None], out=gate_up)
        added = scratch.take("added", *block.x.shape)
        np.matmul(self.weights.down, ACTIVATIONS[self.config.hidden_act](gate_up, scratch), out=added)
        if self.weights.down_bias is not None:
            np.add(added, self.weights.down_bias[:, None], out=added)
        add(block, added, self.weights.post_norm, self.config, scratch)


@dataclass(frozen=True, slots=True)
class Layer:
    attention: Attention
    feed_forward: FeedForward

    @property
    def matrices(self) -> tuple[F32, ...]:
        return *self.attention.matrices, *self.feed_forward.matrices


def add(block: Block, added: F32, post_norm: F32 | None, config: ModelConfig, scratch: Scratch) -> None:
    """Adds (C, W) to the residual stream, normalised first where the architecture does so."""
    if post_norm is not None:
        added = rms_norm(added, post_norm[:, None], config.rms_norm_eps, scratch)
    np.add(block.x, added, out=block.x)
