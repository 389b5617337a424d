"""Small models with random weights, and the plumbing to run sequences through them without an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from inference.config import ModelConfig
from inference.formats.architectures import expected_shapes
from inference.formats.base import ModelFile, TokenizerSpec
from inference.kernels.quantized import FloatForm, IntegerForm, WeightMatrix, float_matrix, integer_matrix
from inference.types import F32, ForwardBatch


def small_config(
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    is_tied: bool = True,
    hidden: int = 64,
    intermediate: int = 112,
) -> ModelConfig:
    """Two layers, a vocabulary of 96, 1024 positions."""
    return ModelConfig(
        model_type="llama",
        vocab_size=96,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        tie_word_embeddings=is_tied,
    )


class RandomModelFile(ModelFile):
    """Weights drawn from a seed, large enough that a softmax is far from uniform."""

    architecture = "llama"
    chat_template = None
    tokenizer_spec = TokenizerSpec(source=Path("random"), vocab_size=96)
    path = Path("random")
    name = "random"

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.config = config
        rng = np.random.default_rng(seed)
        self._tensors = {
            name: (rng.standard_normal(shape) * (1.0 if len(shape) == 1 else 2.0 / shape[1] ** 0.5)).astype(np.float32)
            for name, shape in expected_shapes(config).items()
        }

    @property
    def digest(self) -> str:
        return "00"

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def stored_types(self) -> dict[str, int]:
        return {"F32": sum(tensor.size for tensor in self._tensors.values())}

    def tensor(self, name: str) -> F32:
        return self._tensors[name]

    def matrix(self, name: str) -> WeightMatrix:
        return float_matrix(FloatForm("f32"), self._tensors[name])


def make_batch(
    parts: Sequence[tuple[np.ndarray, int, np.ndarray]], block_size: int, logits_rows: Sequence[int] | None = None
) -> ForwardBatch:
    """A step over parts (token ids, first position, block table); logits of all rows unless told otherwise."""
    ids, positions, slots, lengths = [], [], [], []
    for tokens, first, table in parts:
        where = np.arange(first, first + len(tokens))
        ids.append(np.asarray(tokens, np.int32))
        positions.append(where)
        slots.append(table[where // block_size].astype(np.int64) * block_size + where % block_size)
        lengths.append(len(tokens))
    num_tokens = sum(lengths)
    return ForwardBatch(
        token_ids=np.concatenate(ids),
        positions=np.concatenate(positions).astype(np.int32),
        slot_mapping=np.concatenate(slots),
        query_start=np.cumsum([0, *lengths]).astype(np.int32),
        block_tables=tuple(np.asarray(table, np.int32) for _, _, table in parts),
        context_lens=np.array([first + len(tokens) for tokens, first, _ in parts], np.int32),
        logits_rows=np.asarray(range(num_tokens) if logits_rows is None else logits_rows, np.int32),
    )


def float64_logits(model_file: ModelFile, token_ids: np.ndarray) -> np.ndarray:
    """Logits (T, V) of a whole sequence, written down as plainly as possible, in float64."""
    config = model_file.config
    H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    T = len(token_ids)
    weight = lambda name: model_file.tensor(name).astype(np.float64)
    norm = lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_norm_eps) * w
    angle = np.arange(T)[:, None] * config.rope_theta ** (-np.arange(0, D, 2) / D)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def rotate(x: np.ndarray) -> np.ndarray:  # (T, heads, D), pairs (i, i + D / 2)
        low, high = x[..., : D // 2], x[..., D // 2 :]
        return np.concatenate((low * cos - high * sin, high * cos + low * sin), -1)

    x = weight("model.embed_tokens.weight")[token_ids]
    for index in range(config.num_hidden_layers):
        w = lambda name, p=f"model.layers.{index}.": weight(f"{p}{name}.weight")
        h = norm(x, w("input_layernorm"))
        q = rotate((h @ w("self_attn.q_proj").T).reshape(T, H, D))
        k = rotate((h @ w("self_attn.k_proj").T).reshape(T, K, D)).repeat(H // K, axis=1)
        v = (h @ w("self_attn.v_proj").T).reshape(T, K, D).repeat(H // K, axis=1)
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(D) + np.triu(np.full((T, T), -np.inf), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + np.einsum("hts,shd->thd", scores, v).reshape(T, H * D) @ w("self_attn.o_proj").T
        h = norm(x, w("post_attention_layernorm"))
        gate = h @ w("mlp.gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return norm(x, weight("model.norm.weight")) @ weight(head).T


class RoundedModelFile(ModelFile):
    """Another model whose matrices are integers with a scale per group, as in a GGUF file; where rows of w do not
    consist of whole groups they stay what they are. Codes of attention have 4 bits, the others 8."""

    def __init__(self, model_file: ModelFile) -> None:
        self._file = model_file
        self.path, self.name, self.architecture = model_file.path, model_file.name, model_file.architecture
        self.config, self.chat_template = model_file.config, model_file.chat_template
        self.tokenizer_spec = model_file.tokenizer_spec

    @property
    def digest(self) -> str:
        return f"rounded {self._file.digest}"

    def tensor_names(self) -> tuple[str, ...]:
        return self._file.tensor_names()

    def stored_types(self) -> Mapping[str, int]:
        return {"Q4_1": self.config.vocab_size}

    def tensor(self, name: str) -> F32:
        return self._file.tensor(name)

    def matrix(self, name: str) -> WeightMatrix:
        weights = self._file.tensor(name)
        num_rows, num_inner = weights.shape
        if num_inner % 32:
            return self._file.matrix(name)
        groups = weights.reshape(num_rows, num_inner // 32, 32)
        if "self_attn" in name:
            least = groups.min(-1)
            scales = np.maximum((groups.max(-1) - least) / 15, 1e-6)
            codes = np.rint((groups - least[..., None]) / scales[..., None])
            form, minimums = IntegerForm("u4", 32, "f16", has_minimum=True), least.astype(np.float16)
        else:
            scales = np.maximum(np.abs(groups).max(-1) / 127, 1e-6)
            codes = np.rint(groups / scales[..., None])
            form, minimums = IntegerForm("s8", 32, "f32", has_minimum=False), None
        codes = codes.reshape(weights.shape).astype(np.int8)
        return integer_matrix(form, codes, scales.astype(form.scale_dtype), minimums)
