"""Llama and what shares its shape (Mistral, SmolLM): RMS norm, rotary grouped-query attention, SwiGLU.

Runs a batch layer by layer over blocks of columns (one token per column). A block goes through a layer in two halves,
since attention reads the K and V of the whole batch: up to the writing of K and V, and from attention on. Knows nothing
of sequences beyond what ForwardBatch says, and nothing of caching or sampling.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from queue import SimpleQueue

import numpy as np

from inference import kernels
from inference.config import ModelConfig
from inference.formats.base import ModelFile
from inference.kernels.attention import AttentionJob, Context, attend, attention_shapes
from inference.kernels.blas import Blas, num_cores
from inference.kernels.call_plan import CallPlan, Lanes, MatmulShape, fit_lanes, probe_calls, split_columns
from inference.kernels.kv_storage import KVStorage
from inference.kernels.reference import RopeTable, rms_norm, rotate, silu_multiply
from inference.kernels.scratch import Scratch
from inference.kernels.thread_choice import ThreadChoice
from inference.types import F32, I64, ForwardBatch


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. C hidden, H heads, K kv heads, D head size, I intermediate."""

    attention_norm: F32  # (C, 1)
    qkv: F32  # ((H + 2 K) D, C)
    output: F32  # (C, H D)
    mlp_norm: F32  # (C, 1)
    gate_up: F32  # (2 I, C)
    down: F32  # (C, I)


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    embedding: F32  # (V, C)
    layers: tuple[LayerWeights, ...]
    norm: F32  # (C, 1)
    head: F32  # (V, C); the embedding itself when tied

    @classmethod
    def read(cls, model_file: ModelFile, on_progress: Callable[[float], None]) -> LlamaWeights:
        """Takes the tensors as float32 and joins those that are multiplied by the same input. Raises ModelFileError."""
        config = model_file.config
        C, I = config.hidden_size, config.intermediate_size
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim

        def tensor(name: str, *shape: int) -> F32:
            array = np.ascontiguousarray(model_file.tensor(name), dtype=np.float32)
            assert array.shape == shape, (name, array.shape, shape)  # checked when the file was opened
            return array

        embedding = tensor("model.embed_tokens.weight", config.vocab_size, C)
        layers = []
        for index in range(config.num_hidden_layers):
            on_progress((index + 1) / (config.num_hidden_layers + 1))
            p = f"model.layers.{index}."
            q, k, v = (
                tensor(f"{p}self_attn.{name}_proj.weight", rows, C)
                for name, rows in (("q", queries), ("k", keys), ("v", keys))
            )
            gate, up = (tensor(f"{p}mlp.{name}_proj.weight", I, C) for name in ("gate", "up"))
            layers.append(
                LayerWeights(
                    attention_norm=tensor(f"{p}input_layernorm.weight", C)[:, None],
                    qkv=np.concatenate((q, k, v)),
                    output=tensor(f"{p}self_attn.o_proj.weight", C, queries),
                    mlp_norm=tensor(f"{p}post_attention_layernorm.weight", C)[:, None],
                    gate_up=np.concatenate((gate, up)),
                    down=tensor(f"{p}mlp.down_proj.weight", C, I),
                )
            )
        norm = tensor("model.norm.weight", C)[:, None]
        head = embedding if config.tie_word_embeddings else tensor("lm_head.weight", config.vocab_size, C)
        on_progress(1.0)
        return cls(embedding, tuple(layers), norm, head)

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors; a tied head counts once."""
        layers = sum(getattr(layer, name).size for layer in self.layers for name in LayerWeights.__slots__)
        head = 0 if self.head is self.embedding else self.head.size
        return int(self.embedding.size + layers + self.norm.size + head)


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls open to a step, and how many BLAS threads each of them runs on."""

    num_threads: int
    linear: tuple[Lanes, ...]
    attention: tuple[Lanes, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    """Columns that go through the layers together: tokens start .. start + count - 1 of the batch, in `lanes`."""

    start: int
    count: int
    lanes: Lanes
    x: F32  # (C, W) the residual stream, updated in place
    qkv: F32  # ((H + 2 K) D, W) of the layer at hand
    cos: F32  # (D / 2, W)
    sin: F32
    slots: I64  # (count,)
    jobs: tuple[AttentionJob, ...]

    @property
    def columns(self) -> slice:
        return slice(self.lanes.first, self.lanes.first + self.count)


class LlamaModel:
    """See inference.model.base.Model."""

    kernel_tier = kernels.active

    def __init__(
        self,
        model_file: ModelFile,
        *,
        num_threads: int,
        on_progress: Callable[[float], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config: ModelConfig = model_file.config
        self._weights = LlamaWeights.read(model_file, on_progress)
        self.num_parameters = self._weights.num_parameters
        self._rope = RopeTable(self.config.head_dim, self.config.rope_theta)
        self._blas = Blas()
        self._num_threads = num_threads or num_cores()
        self._clock = clock
        arithmetic = self._probe()
        self._thread_choice = ThreadChoice(self._alone.num_threads)
        self._scratches: SimpleQueue[Scratch] = SimpleQueue()
        for _ in range(self._num_threads):
            self._scratches.put(Scratch())
        self._workers = ThreadPoolExecutor(self._num_threads, thread_name_prefix="kernels")
        self.fingerprint = self._digest(model_file.digest, arithmetic)

    @property
    def max_call_width(self) -> int:
        """Tokens that go through the layers in one call at most; a few only where BLAS offers no wide call."""
        return self._beside.linear[-1].count

    def new_kv(self, num_blocks: int, block_size: int) -> KVStorage:
        config = self.config
        return KVStorage(config.num_hidden_layers, config.num_key_value_heads, config.head_dim, num_blocks, block_size)

    def forward(self, batch: ForwardBatch, kv: KVStorage) -> F32:
        started_at = self._clock()
        is_small = self._beside is self._alone or len(batch.token_ids) <= self._alone.linear[-1].count
        calls = self._small_step_calls() if is_small else self._beside
        self._blas.set_num_threads(calls.num_threads)
        blocks = self._blocks(batch, kv.block_size, calls, is_small)
        num_layers = len(self._weights.layers)
        for layer in range(num_layers + 1):
            # The second half of a layer and the first half of the next need no other block in between.
            def run(block: _Block, layer: int = layer) -> None:
                with self._borrowed_scratch() as scratch:
                    if layer > 0:
                        self._attend(block, layer - 1, kv, scratch)
                        self._mlp(block, layer - 1, scratch)
                    if layer < num_layers:
                        self._project(block, layer, kv, scratch)

            if is_small:
                for block in blocks:
                    run(block)
            else:  # side by side, those with the longest context first
                list(self._workers.map(run, reversed(blocks)))
        logits = self._logits(batch, blocks)
        if is_small:
            self._thread_choice.record(self._clock() - started_at)
        return logits

    def _small_step_calls(self) -> _Calls:
        """All BLAS threads, or one while the cores are busy elsewhere."""
        return self._alone if self._thread_choice.num_threads == self._alone.num_threads else self._beside

    @contextmanager
    def _borrowed_scratch(self) -> Iterator[Scratch]:
        """A scratch memory for this thread, given back even when the computation fails."""
        scratch = self._scratches.get()
        try:
            yield scratch
        finally:
            self._scratches.put(scratch)

    # What a step computes

    def _blocks(self, batch: ForwardBatch, block_size: int, calls: _Calls, is_small: bool) -> list[_Block]:
        """Cuts the batch into blocks, equal ones for the workers unless the step is small."""
        contexts = [
            Context.of(table, int(length), block_size)
            for table, length in zip(batch.block_tables, batch.context_lens, strict=True)
        ]
        num_tokens = len(batch.token_ids)
        if is_small:
            pieces = split_columns(calls.linear, num_tokens)
        else:
            most = calls.linear[-1].count
            num_blocks = self._num_threads * -(-num_tokens // (self._num_threads * most))
            edges = [num_tokens * index // num_blocks for index in range(num_blocks + 1)]
            pieces = [
                (start, end - start, fit_lanes(calls.linear, end - start))
                for start, end in pairwise(edges)
                if end > start
            ]
        return [self._block(batch, contexts, calls, *piece) for piece in pieces]

    def _block(
        self, batch: ForwardBatch, contexts: list[Context], calls: _Calls, start: int, count: int, lanes: Lanes
    ) -> _Block:
        config = self.config
        end = start + count
        group = config.num_attention_heads // config.num_key_value_heads
        jobs = []
        for index, context in enumerate(contexts):
            low, high = max(start, int(batch.query_start[index])), min(end, int(batch.query_start[index + 1]))
            if low < high:
                column = lanes.first + low - start
                jobs.append(AttentionJob.of(column, batch.positions[low:high], context, group, calls.attention))
        x = np.zeros((config.hidden_size, lanes.width), np.float32)
        x[:, lanes.first : lanes.first + count] = self._weights.embedding[batch.token_ids[start:end]].T
        rows = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
        cos, sin = self._rope.columns(batch.positions[start:end], lanes.first, lanes.width)
        qkv = np.empty((rows, lanes.width), np.float32)
        return _Block(start, count, lanes, x, qkv, cos, sin, batch.slot_mapping[start:end], tuple(jobs))

    # The two halves of a layer, and the head

    def _project(self, block: _Block, layer: int, kv: KVStorage, scratch: Scratch) -> None:
        """Queries, keys and values of the block; K and V go into the pool."""
        weights, config = self._weights.layers[layer], self.config
        H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        normed = rms_norm(block.x, weights.attention_norm, config.rms_norm_eps, scratch)
        np.matmul(weights.qkv, normed, out=block.qkv)
        heads = block.qkv.reshape(H + 2 * K, D, block.lanes.width)
        rotate(heads[: H + K], block.cos, block.sin, scratch)
        k, v = (
            part[:, :, block.columns].transpose(2, 0, 1) for part in (heads[H : H + K], heads[H + K :])
        )  # (T, K, D)
        kv.write(layer, block.slots, k, v)

    def _attend(self, block: _Block, layer: int, kv: KVStorage, scratch: Scratch) -> None:
        """Attention and its output projection, added to the residual stream."""
        weights, config = self._weights.layers[layer], self.config
        K, D, W = config.num_key_value_heads, config.head_dim, block.lanes.width
        G = config.num_attention_heads // K
        q = block.qkv[: K * G * D].reshape(K, G, D, W)
        mixed = scratch.take("mixed", K, G, D, W)
        mixed.fill(0)
        for job in block.jobs:
            columns = slice(job.first_column, job.first_column + job.num_tokens)
            attend(job, q[..., columns], kv, layer, D**-0.5, scratch, out=mixed[..., columns])
        added = scratch.take("added", *block.x.shape)
        np.matmul(weights.output, mixed.reshape(K * G * D, W), out=added)
        np.add(block.x, added, out=block.x)

    def _mlp(self, block: _Block, layer: int, scratch: Scratch) -> None:
        """The gated feed-forward part, added to the residual stream."""
        weights = self._weights.layers[layer]
        normed = rms_norm(block.x, weights.mlp_norm, self.config.rms_norm_eps, scratch)
        gate_up = scratch.take("gate_up", len(weights.gate_up), block.lanes.width)
        np.matmul(weights.gate_up, normed, out=gate_up)
        added = scratch.take("added", *block.x.shape)
        np.matmul(weights.down, silu_multiply(gate_up, scratch), out=added)
        np.add(block.x, added, out=block.x)

    def _logits(self, batch: ForwardBatch, blocks: list[_Block]) -> F32:
        """Logits (R, V) of the wanted rows only: the head is a quarter of the weights of a small model."""
        config = self.config
        rows = batch.logits_rows
        self._blas.set_num_threads(self._num_threads)
        hidden = np.concatenate([block.x[:, block.columns] for block in blocks], axis=1)[:, rows]  # (C, R)
        logits = np.empty((len(rows), config.vocab_size), np.float32)
        with self._borrowed_scratch() as scratch:
            for start, count, lanes in split_columns(self._head_lanes, len(rows)):
                x = scratch.take("x", config.hidden_size, lanes.width)
                x.fill(0)
                x[:, lanes.first : lanes.first + count] = hidden[:, start : start + count]
                normed = rms_norm(x, self._weights.norm, config.rms_norm_eps, scratch)
                out = np.matmul(self._weights.head, normed, out=scratch.take("logits", config.vocab_size, lanes.width))
                logits[start : start + count] = out[:, lanes.first : lanes.first + count].T
        return logits

    # Set-up

    def _probe(self) -> bytes:
        """Finds the calls for the products of the layers, of attention and of the head, and returns what names the bits
        of K and V. About 0.3 s for SmolLM2-135M."""
        num_threads, linear, attention = self._layer_plans()
        self._alone = _Calls(num_threads, linear.alone, attention.alone)
        has_wide_calls = linear.has_wide_calls and attention.has_wide_calls
        self._beside = _Calls(1, linear.beside, attention.beside) if has_wide_calls else self._alone
        head = MatmulShape(self.config.vocab_size, self.config.hidden_size)
        self._head_lanes = probe_calls([head], self._blas, self._num_threads, beside_widths=()).alone
        return linear.digest + attention.digest

    def _layer_plans(self) -> tuple[int, CallPlan, CallPlan]:
        """BLAS threads for few columns, and the plans of a layer's linear products and of attention.

        OpenBLAS splits the rows of a weight between its threads. Unless the number of rows suits them, its AVX2 kernels
        then compute some rows another way than wide calls do. Few columns take one thread in that case: a prompt
        squeezed through narrow calls would cost far more.
        """
        config = self.config
        C, I, D = config.hidden_size, config.intermediate_size, config.head_dim
        H, K = config.num_attention_heads, config.num_key_value_heads
        products = (MatmulShape((H + 2 * K) * D, C), MatmulShape(C, H * D), MatmulShape(2 * I, C), MatmulShape(C, I))
        plans = []
        for num_threads in dict.fromkeys((self._num_threads, 1)):
            linear = probe_calls(products, self._blas, num_threads)
            attention = probe_calls(attention_shapes(D), self._blas, num_threads)
            plans.append((num_threads, linear, attention))
            if linear.has_wide_calls and attention.has_wide_calls:
                return plans[-1]
        return plans[0]

    def _digest(self, file_digest: str, arithmetic: bytes) -> str:
        """Names everything that the bits of K and V depend on."""
        sample = np.exp(np.linspace(-80, 0, 4096, dtype=np.float32))  # NumPy picks its exp by CPU
        parts = (
            file_digest,
            repr(self.config),
            KVStorage.format_id,
            arithmetic.hex(),
            hashlib.sha256(sample.tobytes()).hexdigest(),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
