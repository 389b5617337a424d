"""A whole forward pass of the compiled tiers in NumPy, out of the oracle's parts: one sequence, no cache, no batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.formats.base import ModelFile
from inference.kernels.oracle.attention import attend, stored
from inference.kernels.oracle.elementwise import activate, choose_experts, rms_norm, rotate
from inference.kernels.oracle.linear import linear
from inference.kernels.quantized import IntegerRows, WeightMatrix, dequantised, widened
from inference.model.registry import _ARCHITECTURES
from inference.model.rope import rope_tables, table_of
from inference.model.weights import SparseMlpWeights
from inference.types import F32

Matrices = Sequence[WeightMatrix]


class OracleTensors:
    """See inference.model.weights.TensorReader."""

    def __init__(self, model_file: ModelFile, prefix: str, norm_offset: float) -> None:
        self._file, self._prefix, self._offset = model_file, prefix, np.float32(norm_offset)

    def matrix(self, *names: str) -> Matrices:
        return [self._file.matrix(self._prefix + name) for name in names]

    def vector(self, *names: str) -> F32:
        return np.concatenate([self._file.tensor(self._prefix + name) for name in names])

    def norm(self, name: str) -> F32:
        return self.vector(name) + self._offset


def product(matrices: Matrices, x: F32) -> F32:
    padded = np.concatenate((x, np.zeros((len(x), -x.shape[1] % 32), np.float32)), axis=1)
    return np.concatenate([linear(matrix, padded[:, : matrix.num_inner]) for matrix in matrices], axis=1)


def oracle_logits(model_file: ModelFile, token_ids: np.ndarray, max_model_len: int = 0) -> F32:
    """(T, V) of all positions."""
    config = model_file.config
    architecture = _ARCHITECTURES[model_file.architecture](config)
    whole = OracleTensors(model_file, "", architecture.norm_offset)
    tables = rope_tables(config, max_model_len or config.max_position_embeddings)
    H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    T, eps = len(token_ids), config.rms_norm_eps
    embedding = whole.matrix("model.embed_tokens.weight")
    rows = embedding[0].read(0, config.vocab_size)
    x = (dequantised(rows) if isinstance(rows, IntegerRows) else widened(rows))[token_ids]
    x = x * np.float32(architecture.embedding_scale)
    for layer in range(config.num_hidden_layers):
        tensors = OracleTensors(model_file, f"model.layers.{layer}.", architecture.norm_offset)
        w = architecture.attention(tensors, layer)
        qkv = product(w.qkv, rms_norm(x, w.norm, eps))
        if w.qkv_bias is not None:
            qkv = qkv + w.qkv_bias
        q, k, v = (part.reshape(T, -1, D) for part in np.split(qkv, [H * D, (H + K) * D], axis=1))
        q = q if w.q_norm is None else rms_norm(q, w.q_norm, eps)
        k = k if w.k_norm is None else rms_norm(k, w.k_norm, eps)
        which = table_of(config, layer)
        if which is not None:
            cos, sin = (angles[:T] for angles in tables[which].arrays(T))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = attend(q, *stored(k, v), config.attention_scale, config.window(layer))
        x = _added(x, product(w.output, mixed.reshape(T, H * D)), w.output_bias, w.post_norm, eps)
        ff = architecture.feed_forward(tensors, layer)
        normed = rms_norm(x, ff.norm, eps)
        if isinstance(ff, SparseMlpWeights):
            x = x + _experts(ff, normed, config)
            continue
        gate_up = product(ff.gate_up, normed)
        if ff.gate_up_bias is not None:
            gate_up = gate_up + ff.gate_up_bias
        gate, up = np.split(gate_up, 2, axis=1)
        x = _added(x, product(ff.down, activate(gate, up, config.hidden_act)), ff.down_bias, ff.post_norm, eps)
    head = embedding if config.tie_word_embeddings else whole.matrix("lm_head.weight")
    return product(head, rms_norm(x, whole.norm("model.norm.weight"), eps))


def _added(x: F32, added: F32, bias: F32 | None, post_norm: F32 | None, eps: float) -> F32:
    if bias is not None:
        added = added + bias
    return x + (added if post_norm is None else rms_norm(added, post_norm, eps))


def _experts(weights: SparseMlpWeights, normed: F32, config) -> F32:
    scores = product(weights.router, normed)
    chosen, shares = choose_experts(scores, config.num_experts_per_tok, is_normalised=config.norm_topk_prob)
    mixed = np.zeros_like(normed)
    for token in range(len(normed)):
        for rank, index in enumerate(chosen[token]):
            expert = weights.experts[index]
            gate, up = np.split(product(expert.gate_up, normed[token : token + 1]), 2, axis=1)
            returned = product(expert.down, activate(gate, up, config.hidden_act))
            mixed[token] = mixed[token] + returned[0] * shares[token, rank]
    return mixed
