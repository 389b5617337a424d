"""Runs a decoder on compiled kernels: weights stay as small as the file stores them, a pass is one call.

The arithmetic ("q15") is the same on every tier: activations of a product as 15-bit integers, sums in one order, K and
V in 16-bit integers with scales. So is the fingerprint: KV of one tier is good on another.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np

from inference.config import ModelConfig
from inference.formats.architectures import expected_shapes
from inference.formats.base import ModelFile
from inference.kernels.blas import num_cores
from inference.kernels.jit import elementwise
from inference.kernels.jit.compile_ahead import CompilingFailed, compile_ahead, is_compiled
from inference.kernels.jit.cpu import choose_tier
from inference.kernels.jit.forward import compile_parts, compile_pass
from inference.kernels.jit.kernel_cache import compile_entries, default_root, folder_of, keep_compiled
from inference.kernels.jit.linear import LinearKernels
from inference.kernels.jit.linear_check import check
from inference.kernels.jit.packing import PackedMatrix, WeightMemory, pack
from inference.kernels.jit.runner import Layers, PassRunner
from inference.kernels.jit.storage import IntegerStorage
from inference.kernels.kv_storage import KVPool
from inference.kernels.quantized import Form
from inference.model.architecture import Architecture
from inference.model.rope import rope_tables, table_of
from inference.model.weights import AttentionWeights, FeedForwardWeights, MlpWeights, SparseMlpWeights
from inference.types import F32, ForwardBatch

logger = logging.getLogger(__name__)

COMPILING_SHARE = 0.8  # of the progress of loading, at the first start
ARITHMETIC = "q15-3"
ACTIVATIONS = {"silu": elementwise.SILU, "gelu_pytorch_tanh": elementwise.GELU}

Packed = tuple[PackedMatrix, ...]  # rows one after another; more than one where the forms differ


@dataclass(frozen=True, slots=True)
class PassCode:
    """The machine code of a pass: its address, and the folder that keeps it and the products; None: nothing is kept."""

    address: int
    folder: Path | None


def pass_code(kernel_cache: str, tier: str, forms: Collection[Form], on_progress: Callable[[float], None]) -> PassCode:
    """Taken from the cache, which a process of its own fills first where something is missing. on_progress is called
    when there is something to compile. forms: of the model's weights."""
    root = Path(kernel_cache) if kernel_cache else default_root()
    problem = _keep(root)
    if problem:
        _compile_here(f"compiled kernels are not kept, every start takes longer: {problem}", on_progress)
    elif not is_compiled(root, tier, forms):
        logger.info("compiling the kernels: this takes up to a minute, once")
        try:
            compile_ahead(root, tier, forms, on_progress)
        except CompilingFailed as error:
            _compile_here(f"the kernels are compiled here, which takes more memory: {error}", on_progress)
    return PassCode(_linked(root), None if problem else folder_of(root))


_keep = cache(keep_compiled)


def _compile_here(why: str, on_progress: Callable[[float], None]) -> None:
    """The parts of a pass, which _linked() then finds compiled."""
    logger.warning(why)
    for fraction in compile_parts():
        on_progress(fraction)


@cache
def _linked(root: Path) -> int:
    """The address of a pass, once a process."""
    started_at = time.perf_counter()
    address = compile_pass()
    compile_entries()  # else the first pass would read them, while somebody waits
    logger.info("the kernels in %s are ready after %.1f s", root, time.perf_counter() - started_at)
    return address


class PackedTensors:
    """See inference.model.weights.TensorReader. Only the matrix at hand is there twice."""

    def __init__(
        self, model_file: ModelFile, prefix: str, norm_offset: float, kernels: LinearKernels, memory: WeightMemory
    ) -> None:
        self._model_file = model_file
        self._memory = memory
        self._prefix = prefix
        self._norm_offset = np.float32(norm_offset)
        self._kernels = kernels

    def matrix(self, *names: str) -> Packed:
        parts = [self._model_file.matrix(self._prefix + name) for name in names]
        alike = groupby(parts, lambda part: part.form)
        return tuple(pack(list(group), self._kernels, self._memory.take) for _, group in alike)

    def vector(self, *names: str) -> F32:
        vectors = [self._model_file.tensor(self._prefix + name) for name in names]
        return np.concatenate(vectors).astype(np.float32, copy=False)

    def norm(self, name: str) -> F32:
        return self.vector(name) + self._norm_offset


class CompiledDecoder:
    """See inference.model.base.Model. Raises KernelsDiffer when products do not have the oracle's bits on this CPU."""

    def __init__(
        self,
        model_file: ModelFile,
        architecture: Architecture,
        *,
        tier: str,
        kernel_cache: str,
        num_threads: int,
        max_model_len: int,
        on_progress: Callable[[float], None],
    ) -> None:
        self.config: ModelConfig = model_file.config
        compiled_share = 0.0  # of the progress

        def report_compiling(fraction: float) -> None:
            nonlocal compiled_share
            compiled_share = COMPILING_SHARE
            on_progress(COMPILING_SHARE * fraction)

        shapes = expected_shapes(self.config)
        forms = {model_file.matrix(name).form for name, shape in shapes.items() if len(shape) == 2}
        code = pass_code(kernel_cache, tier, forms, report_compiling)
        self._linear = LinearKernels(choose_tier(tier), folder=code.folder)
        self.kernel_tier = self._linear.tier.name
        self._rope = rope_tables(self.config, max_model_len or self.config.max_position_embeddings)
        self._layers = Layers(self.config.num_hidden_layers)
        self.num_parameters = sum(math.prod(shape) for shape in shapes.values())
        self.weight_bytes = 0
        self._forms: set[Form] = set()
        constants = self._read(
            model_file, architecture, lambda done: on_progress(compiled_share + (1 - compiled_share) * done)
        )
        for form in self._forms:
            check(self._linear, form)
        self._num_positions = 0
        threads, has_tiles = num_threads or num_cores(), self._linear.tier.has_tiles
        self._runner = PassRunner(self._layers, constants, threads, code.address, has_tiles=has_tiles)
        self.fingerprint = self._digest(model_file.digest)
        on_progress(1.0)

    def new_kv(self, num_blocks: int, block_size: int) -> IntegerStorage:
        config = self.config
        return IntegerStorage(
            config.num_hidden_layers, config.num_key_value_heads, config.head_dim, num_blocks, block_size
        )

    def forward(self, batch: ForwardBatch, kv: KVPool) -> F32:
        assert isinstance(kv, IntegerStorage), "a pool of another model"
        self._extend_angles(int(batch.context_lens.max()))
        return self._runner.run(batch, kv)

    def close(self) -> None:
        """Ends the threads."""
        self._runner.close()

    # Set-up

    def _read(
        self, model_file: ModelFile, architecture: Architecture, on_progress: Callable[[float], None]
    ) -> dict[str, float]:
        """Packs all weights, layer by layer, into the table; returns the constants of a pass. Raises ModelFileError."""
        config, offset = self.config, architecture.norm_offset
        memory = WeightMemory()
        whole = PackedTensors(model_file, "", offset, self._linear, memory)
        embedding = whole.matrix("model.embed_tokens.weight")
        for index in range(config.num_hidden_layers):
            on_progress((index + 1) / (config.num_hidden_layers + 2))
            tensors = PackedTensors(model_file, f"model.layers.{index}.", offset, self._linear, memory)
            self._set_attention(index, architecture.attention(tensors, index))
            self._set_feed_forward(index, architecture.feed_forward(tensors, index))
        head = embedding if config.tie_word_embeddings else whole.matrix("lm_head.weight")
        table = self._matrices(embedding)
        return {
            "num_layers": config.num_hidden_layers,
            "hidden": config.hidden_size,
            "num_heads": config.num_attention_heads,
            "num_kv_heads": config.num_key_value_heads,
            "dim": config.head_dim,
            "rotary": config.rotary_dim,
            "vocab": config.vocab_size,
            "activation": ACTIVATIONS[config.hidden_act],
            "num_chosen": config.num_experts_per_tok,
            "is_normalised": config.norm_topk_prob,
            "embedding": table,
            "final_norm": self._layers.keep(whole.norm("model.norm.weight")),
            "head": table if head is embedding else self._matrices(head),
            "num_head": len(head),
            "quantise": self._linear.quantise(),
            "eps": config.rms_norm_eps,
            "attention_scale": config.attention_scale,
            "embedding_scale": architecture.embedding_scale,
        }

    def _matrices(self, packed: Sequence[PackedMatrix]) -> int:
        self.weight_bytes += sum(part.nbytes for part in packed)
        self._forms.update(part.form for part in packed)
        return self._layers.matrices(packed)

    def _set_attention(self, index: int, weights: AttentionWeights[Packed]) -> None:
        record, keep = self._layers.table[index], self._layers.keep
        record["norm"] = keep(weights.norm)
        record["qkv"], record["num_qkv"] = self._matrices(weights.qkv), len(weights.qkv)
        record["output"], record["num_output"] = self._matrices(weights.output), len(weights.output)
        for name in ("qkv_bias", "output_bias", "q_norm", "k_norm", "post_norm"):
            record[name] = keep(getattr(weights, name))
        record["window"] = self.config.window(index)

    def _set_feed_forward(self, index: int, weights: FeedForwardWeights[Packed]) -> None:
        record, keep = self._layers.table[index], self._layers.keep
        record["ff_norm"] = keep(weights.norm)
        if isinstance(weights, SparseMlpWeights):
            self._set_experts(index, weights)
            return
        assert isinstance(weights, MlpWeights)
        record["width"] = self.config.intermediate_size
        record["gate_up"], record["num_gate_up"] = self._matrices(weights.gate_up), len(weights.gate_up)
        record["down"], record["num_down"] = self._matrices(weights.down), len(weights.down)
        record["gate_up_bias"], record["down_bias"] = keep(weights.gate_up_bias), keep(weights.down_bias)
        record["ff_post_norm"] = keep(weights.post_norm)

    def _set_experts(self, index: int, weights: SparseMlpWeights[Packed]) -> None:
        record = self._layers.table[index]
        record["width"] = self.config.moe_intermediate_size
        record["router"], record["num_router"] = self._matrices(weights.router), len(weights.router)
        num_gate_up = len(weights.experts[0].gate_up)
        parts: list[PackedMatrix] = []
        for expert in weights.experts:
            assert len(expert.gate_up) == num_gate_up
            assert len(expert.down) == 1
            parts += [expert.gate_up[0], expert.gate_up[-1], *expert.down]
            self.weight_bytes += sum(part.nbytes for part in (*expert.gate_up, *expert.down))
        self._forms.update(part.form for part in parts)
        record["experts"] = self._layers.matrices(parts)
        record["num_experts"], record["num_gate_up"] = len(weights.experts), num_gate_up

    def _extend_angles(self, num_positions: int) -> None:
        """Makes the tables of angles long enough, and points the layers to them."""
        if num_positions <= self._num_positions:
            return
        addresses = []
        for table in self._rope:
            cos, sin = table.arrays(num_positions)
            self._num_positions = len(cos)
            addresses.append((int(cos.ctypes.data), int(sin.ctypes.data)))
        for layer in range(self.config.num_hidden_layers):
            which = table_of(self.config, layer)
            cos_sin = (0, 0) if which is None else addresses[which]
            self._layers.table[layer]["cos"], self._layers.table[layer]["sin"] = cos_sin

    def _digest(self, file_digest: str) -> str:
        """Names everything that the bits of K and V depend on."""
        angles = (f"{table.factor!r} {table.frequencies.tobytes().hex()}" for table in self._rope)
        parts = (file_digest, repr(self.config), IntegerStorage.format_id, ARITHMETIC, *angles)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
