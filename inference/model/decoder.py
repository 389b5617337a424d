"""Runs a decoder: a batch goes layer by layer over blocks of columns, one token per column.

Knows nothing of sequences beyond what ForwardBatch says, and nothing of caching or sampling. What a layer computes is
the business of layer.py, what it is made of that of the architecture, one file each.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from queue import SimpleQueue

import numpy as np

from inference.config import ModelConfig
from inference.formats.architectures import expected_shapes
from inference.formats.base import ModelFile
from inference.kernels.attention import AttentionJob, Context, attention_shapes
from inference.kernels.blas import Blas, num_cores
from inference.kernels.call_plan import CallPlan, Lanes, MatmulShape, fit_lanes, probe_calls, split_columns
from inference.kernels.kv_storage import KVPool, KVStorage
from inference.kernels.reference import rms_norm
from inference.kernels.scratch import Scratch
from inference.kernels.thread_choice import ThreadChoice
from inference.model.architecture import Architecture
from inference.model.base import RunKernels, run_here
from inference.model.block import Block, Calls
from inference.model.layer import Attention, Layer, Mlp
from inference.model.moe import SparseMlp
from inference.model.rope import rope_tables
from inference.model.tensors import Tensors
from inference.model.weights import SparseMlpWeights
from inference.types import F32, ForwardBatch

WEIGHT_BYTES = 4  # of a parameter, whatever its type in the file


class NumpyDecoder:
    """See inference.model.base.Model: float32 throughout, products by BLAS."""

    kernel_tier = "numpy"

    def __init__(
        self,
        model_file: ModelFile,
        architecture: Architecture,
        *,
        num_threads: int,
        max_model_len: int,
        on_progress: Callable[[float], None],
        run_kernels: RunKernels = run_here,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config: ModelConfig = model_file.config
        self._blas = Blas()
        self._num_threads = num_threads or num_cores()
        self._head_lanes = run_kernels(self._probe_head)  # takes as much memory as the embedding: before that is there
        self._architecture = architecture
        self._read(model_file, on_progress)
        self._rope = rope_tables(self.config, max_model_len or self.config.max_position_embeddings)
        self._windows = tuple({self.config.window(layer) for layer in range(self.config.num_hidden_layers)})
        self._clock = clock
        arithmetic = run_kernels(self._probe_layers)
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

    def forward(self, batch: ForwardBatch, kv: KVPool) -> F32:
        assert isinstance(kv, KVStorage), "a pool of another model"
        started_at = self._clock()
        is_small = self._beside is self._alone or len(batch.token_ids) <= self._alone.linear[-1].count
        calls = self._small_step_calls() if is_small else self._beside
        self._blas.set_num_threads(calls.num_threads)
        blocks = self._blocks(batch, kv.block_size, calls, is_small)
        num_layers = len(self._layers)
        for layer in range(num_layers + 1):
            # The second half of a layer and the first half of the next need no other block in between.
            def run(block: Block, layer: int = layer) -> None:
                with self._borrowed_scratch() as scratch:
                    if layer > 0:
                        self._layers[layer - 1].attention.attend(block, kv, scratch)
                        self._layers[layer - 1].feed_forward.apply(block, scratch)
                    if layer < num_layers:
                        self._layers[layer].attention.project(block, kv, scratch)

            if is_small:
                for block in blocks:
                    run(block)
            else:  # side by side, those with the longest context first
                list(self._workers.map(run, reversed(blocks)))
        logits = self._logits(batch, blocks)
        if is_small:
            self._thread_choice.record(self._clock() - started_at)
        return logits

    def _small_step_calls(self) -> Calls:
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

    def _blocks(self, batch: ForwardBatch, block_size: int, calls: Calls, is_small: bool) -> list[Block]:
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
        self, batch: ForwardBatch, contexts: list[Context], calls: Calls, start: int, count: int, lanes: Lanes
    ) -> Block:
        config = self.config
        end = start + count
        group = config.num_attention_heads // config.num_key_value_heads
        jobs: dict[int, list[AttentionJob]] = {window: [] for window in self._windows}
        for index, context in enumerate(contexts):
            low, high = max(start, int(batch.query_start[index])), min(end, int(batch.query_start[index + 1]))
            if low < high:
                column, positions = lanes.first + low - start, batch.positions[low:high]
                for window, found in jobs.items():
                    found.append(AttentionJob.of(column, positions, context, group, calls.attention, window))
        x = np.zeros((config.hidden_size, lanes.width), np.float32)
        x[:, lanes.first : lanes.first + count] = self._embedding[batch.token_ids[start:end]].T
        if self._architecture.embedding_scale != 1:
            x *= np.float32(self._architecture.embedding_scale)
        rows = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
        return Block(
            start,
            count,
            lanes,
            calls,
            x,
            qkv=np.empty((rows, lanes.width), np.float32),
            angles=tuple(table.columns(batch.positions[start:end], lanes.first, lanes.width) for table in self._rope),
            slots=batch.slot_mapping[start:end],
            jobs={window: tuple(found) for window, found in jobs.items()},
        )

    def _logits(self, batch: ForwardBatch, blocks: list[Block]) -> F32:
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
                normed = rms_norm(x, self._norm, config.rms_norm_eps, scratch)
                out = np.matmul(self._head, normed, out=scratch.take("logits", config.vocab_size, lanes.width))
                logits[start : start + count] = out[:, lanes.first : lanes.first + count].T
        return logits

    # Set-up

    def _read(self, model_file: ModelFile, on_progress: Callable[[float], None]) -> None:
        """Takes the tensors as float32, joined where they are multiplied by the same input. Raises ModelFileError."""
        config = self.config
        whole = Tensors(model_file, "", self._architecture.norm_offset)
        self._embedding = whole.matrix("model.embed_tokens.weight")  # (V, C)
        layers = []
        for index in range(config.num_hidden_layers):
            on_progress((index + 1) / (config.num_hidden_layers + 1))
            tensors = Tensors(model_file, f"model.layers.{index}.", self._architecture.norm_offset)
            layers.append(self._layer(tensors, index))
        self._layers = tuple(layers)
        self._norm = whole.norm("model.norm.weight")[:, None]  # (C, 1)
        self._head = self._embedding if config.tie_word_embeddings else whole.matrix("lm_head.weight")  # (V, C)
        self.num_parameters = sum(math.prod(shape) for shape in expected_shapes(config).values())
        self.weight_bytes = WEIGHT_BYTES * self.num_parameters
        on_progress(1.0)

    def _layer(self, tensors: Tensors, index: int) -> Layer:
        attention = Attention(self.config, index, self._architecture.attention(tensors, index))
        weights = self._architecture.feed_forward(tensors, index)
        if isinstance(weights, SparseMlpWeights):
            return Layer(attention, SparseMlp(self.config, weights))
        return Layer(attention, Mlp(self.config, weights))

    def _probe_head(self) -> tuple[Lanes, ...]:
        """The calls for the product of the head."""
        head = MatmulShape(self.config.vocab_size, self.config.hidden_size)
        return probe_calls([head], self._blas, self._num_threads, beside_widths=()).alone

    def _probe_layers(self) -> bytes:
        """Finds the calls for the products of the layers and of attention, and returns what names the bits of K and V.
        About 0.3 s for SmolLM2-135M, with the head."""
        num_threads, linear, attention = self._layer_plans()
        self._alone = Calls(num_threads, linear.alone, attention.alone)
        has_wide_calls = linear.has_wide_calls and attention.has_wide_calls
        self._beside = Calls(1, linear.beside, attention.beside) if has_wide_calls else self._alone
        return linear.digest + attention.digest

    def _layer_plans(self) -> tuple[int, CallPlan, CallPlan]:
        """BLAS threads for few columns, and the plans of a layer's linear products and of attention.

        OpenBLAS splits the rows of a weight between its threads. Unless the number of rows suits them, its AVX2 kernels
        then compute some rows another way than wide calls do. Few columns take one thread in that case: a prompt
        squeezed through narrow calls would cost far more.
        """
        products = tuple(dict.fromkeys(MatmulShape(*w.shape) for layer in self._layers for w in layer.matrices))
        plans = []
        for num_threads in dict.fromkeys((self._num_threads, 1)):
            linear = probe_calls(products, self._blas, num_threads)
            attention = probe_calls(attention_shapes(self.config.head_dim), self._blas, num_threads)
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
            *(f"{table.factor!r} {table.frequencies.tobytes().hex()}" for table in self._rope),
            arithmetic.hex(),
            hashlib.sha256(sample.tobytes()).hexdigest(),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
