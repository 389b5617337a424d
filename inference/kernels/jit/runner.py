"""PassRunner: turns a batch into the tables of a pass, and runs it on the team. Knows no architecture.

Everything that a pass reads and writes is allocated here, at the first batch of a size, and used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.kernels.jit.attending import thread_bytes
from inference.kernels.jit.attention import part_bytes, part_rows
from inference.kernels.jit.attention_tiles import CHUNK
from inference.kernels.jit.experts import segments_bytes
from inference.kernels.jit.forward import OTHER_STAGES, STAGES_PER_LAYER, serve, take_part
from inference.kernels.jit.linear_kernel import SCRATCH_BYTES
from inference.kernels.jit.linear_rows import BLOCK, STEP, quantised_bytes, tile_rows_bytes
from inference.kernels.jit.linear_tiles import MIN_TILED
from inference.kernels.jit.packing import PackedMatrix, aligned
from inference.kernels.jit.records import EXPERT_FIELDS, JOB, LAYER, PASS, PASS_FIELDS
from inference.kernels.jit.storage import IntegerStorage
from inference.kernels.jit.team import Team
from inference.types import F32, ForwardBatch

JOB_HEADS = 96  # rows of attention that are one task, about, and share what they read in the caches
MAX_PART_BYTES = 64 << 20  # of parts that wait to be folded together
SMALL_STEP, LARGE_STEP = BLOCK, 4 * BLOCK  # rows of a task, or fewer, so that few rows are work for every thread
MANY_TOKENS = 64


class Layers:
    """The table of a model's layers, and what it points to."""

    def __init__(self, num_layers: int) -> None:
        self.table: NDArray[Any] = np.zeros(num_layers, LAYER)
        self._kept: list[object] = []

    def keep(self, array: NDArray[Any] | None) -> int:
        """The address of an array, for as long as the table lives; 0 for None."""
        if array is None:
            return 0
        whole = np.ascontiguousarray(array)
        self._kept.append(whole)
        return int(whole.ctypes.data)

    def matrices(self, parts: Sequence[PackedMatrix]) -> int:
        """The address of the MATRIX records of the parts, side by side."""
        self._kept.extend(parts)
        return self.keep(np.concatenate([part.record for part in parts]))


class _Served:
    """team.Serve for the tables at some addresses, which it keeps alive."""

    def __init__(self, addresses: tuple[int, ...], kept: tuple[object, ...]) -> None:
        self._addresses = addresses
        self._kept = kept

    def __call__(self, state: int, index: int, seen: int) -> int:
        return serve(state, index, seen, *self._addresses)


class PassRunner:
    """One model on one team. Not thread-safe: one thread calls run().

    constants: MODEL_FIELDS (without num_threads) and FLOAT_FIELDS by name; code: of a pass (forward.py); has_tiles: of
    the products' tier.
    """

    def __init__(
        self, layers: Layers, constants: Mapping[str, float], num_threads: int, code: int, *, has_tiles: bool
    ) -> None:
        self._has_tiles = has_tiles
        self._layers = layers
        self._constants = constants
        self._num_threads = num_threads
        self._passes: NDArray[Any] = np.zeros((2, 2), PASS)  # of each half the pass and its tail
        for name, value in constants.items():
            self._passes[name] = value
        self._passes["num_threads"] = num_threads
        num_stages = len(layers.table) * STAGES_PER_LAYER + OTHER_STAGES
        self._counters: NDArray[np.int64] = np.zeros((2, 2 * num_stages), np.int64)
        self._memory: dict[str, tuple[NDArray[np.uint8], int]] = {}
        self._dim, self._kv_heads = int(constants["dim"]), int(constants["num_kv_heads"])
        self._group = int(constants["num_heads"]) // self._kv_heads
        self._job_tokens = max(8, JOB_HEADS // self._group)
        widths = [int(width) for width in layers.table["width"]]
        heads = self._group * self._kv_heads * self._dim
        self._hidden_bytes = 4 * _padded(int(constants["hidden"]))
        self._input_width = _padded(max(int(constants["hidden"]), heads, *widths))
        self._wide_bytes = 4 * max(self._input_width, 2 * _padded(max(widths)))
        self._qkv_bytes = 4 * _padded(heads + 2 * self._kv_heads * self._dim)
        self._num_experts = int(layers.table["num_experts"].max())
        size = segments_bytes(self._num_experts)
        layers.table["segments"] = size * np.arange(len(layers.table))
        self._tables = code, int(self._passes.ctypes.data), int(layers.table.ctypes.data)
        self._counters_address = int(self._counters.ctypes.data)
        # A thread may come late to a pass that is over, look at its numbers and find nothing to do, even when this
        # object is gone: what it looks at lives as long as the thread.
        self._segments = [aligned(size * len(layers.table)) for _ in range(2)]
        addresses = *self._tables, self._counters_address, self._counters[0].nbytes
        kept = self._passes, self._counters, layers, self._segments
        self._team = Team(num_threads, _Served(addresses, kept))

    def run(self, batch: ForwardBatch, kv: IntegerStorage) -> F32:
        """The logits (R, V) of the wanted rows; K and V of all tokens are in the pool then."""
        logits = np.empty((len(batch.logits_rows), int(self._constants["vocab"])), np.float32)
        half = self._team.prepare()
        fields = self._fields(batch, kv)
        fields["logits"] = int(logits.ctypes.data)
        fields["segments"] = int(self._segments[half].ctypes.data)
        _fill(self._passes[half, 0], fields)
        if fields["has_tail"]:
            _fill(self._passes[half, 1], fields | self._tail_fields(batch))
        self._counters[half] = 0
        self._team.start()
        code, passes, table = self._tables
        take_part(code, passes, half, table, self._counters_address + half * self._counters[0].nbytes, 0)
        return logits

    def close(self) -> None:
        """Ends the threads of the team."""
        self._team.close()

    def _fields(self, batch: ForwardBatch, kv: IntegerStorage) -> dict[str, int]:
        T, R = len(batch.token_ids), len(batch.logits_rows)
        rows = max(T, R)
        starts, ends = batch.query_start.tolist(), batch.context_lens.tolist()
        spans = [
            (start, end - start, context - (end - start), index)
            for index, (start, end, context) in enumerate(zip(starts, starts[1:], ends, strict=False))
        ]
        fields = self._row_fields("", T, spans, batch) | {
            "num_wanted": R,
            "has_tail": int(R < T and bool((batch.logits_rows[1:] > batch.logits_rows[:-1]).all())),
            "tokens": self._copy("tokens", batch.token_ids, np.int32),
            "positions": self._copy("positions", batch.positions, np.int32),
            "slots": self._copy("slots", batch.slot_mapping, np.int64),
            "wanted": self._copy("wanted", batch.logits_rows, np.int32),
            "keys": kv.key_address,
            "values": kv.value_address,
            "num_slots": kv.num_blocks * kv.block_size,
            "block_size": kv.block_size,
            "x": self._take("x", T * self._hidden_bytes),
            "x_bytes": self._hidden_bytes,
            "input": self._take("input", rows * 4 * self._input_width),
            "input_bytes": 4 * self._input_width,
            "quantised": self._take("quantised", quantised_bytes(rows, self._input_width)),
            "tiles": self._tiles("tiles", rows),
            "qkv": self._take("qkv", T * self._qkv_bytes),
            "qkv_bytes": self._qkv_bytes,
            "wide": self._take("wide", T * self._wide_bytes),
            "wide_bytes": self._wide_bytes,
        }
        scratch_bytes = max(thread_bytes(self._job_tokens * self._group, self._dim), SCRATCH_BYTES)
        scratch_bytes = -(-scratch_bytes // 4096) * 4096
        fields["scratch"] = self._take("scratch", self._num_threads * scratch_bytes)
        fields["scratch_bytes"] = scratch_bytes
        return fields | self._expert_fields(T)

    def _tiles(self, name: str, num_rows: int) -> int:
        """Where so many rows lie once more for tiles; 0 if there are none, or not for so few rows."""
        if not self._has_tiles or num_rows < MIN_TILED:
            return 0
        return self._take(name, tile_rows_bytes(num_rows, self._input_width))

    def _expert_fields(self, T: int) -> dict[str, int]:
        if not self._num_experts:
            return dict.fromkeys(EXPERT_FIELDS, 0)
        choices = T * int(self._constants["num_chosen"])
        rows = choices + (BLOCK - 1) * min(choices, self._num_experts)
        scores_bytes = 4 * _padded(self._num_experts)
        return {
            "scores": self._take("scores", (T + 1) * scores_bytes),
            "scores_bytes": scores_bytes,
            "chosen": self._take("chosen", 4 * choices),
            "shares": self._take("shares", 4 * choices),
            "pairs": self._take("pairs", 4 * (choices + rows)),
            "pair_input": self._take("pair_input", rows * 4 * self._input_width),
            "pair_quantised": self._take("pair_quantised", quantised_bytes(rows, self._input_width)),
            "pair_tiles": self._tiles("pair_tiles", rows),
            "pair_wide": self._take("pair_wide", rows * self._wide_bytes),
        }

    def _tail_fields(self, batch: ForwardBatch) -> dict[str, int]:
        """What is otherwise in a pass of the wanted rows alone, which have come to the front."""
        rows = batch.logits_rows.tolist()
        spans: list[tuple[int, int, int, int]] = []
        for place, row in enumerate(rows):
            sequence = int(np.searchsorted(batch.query_start, row, side="right")) - 1
            if place and row == rows[place - 1] + 1 and spans[-1][3] == sequence:
                first, count, position, _ = spans.pop()
                spans.append((first, count + 1, position, sequence))
            else:
                spans.append((place, 1, int(batch.positions[row]), sequence))
        fields = self._row_fields("tail_", len(rows), spans, batch)
        return fields | {"has_tail": 0, "wanted": self._copy("tail_wanted", np.arange(len(rows)), np.int32)}

    def _row_fields(
        self, prefix: str, num_rows: int, spans: Sequence[tuple[int, int, int, int]], batch: ForwardBatch
    ) -> dict[str, int]:
        """How so many rows are shared out. spans: (first row, rows, position of the first one, sequence) of rows that
        follow each other; prefix: of what is allocated for it."""
        jobs, num_tasks, is_split = self._jobs(prefix, spans, batch)
        return {
            "num_tokens": num_rows,
            "num_jobs": len(jobs),
            "num_tasks": num_tasks,
            "is_split": is_split,
            "row_step": max(1, min(SMALL_STEP, num_rows // self._num_threads))
            if num_rows <= MANY_TOKENS
            else LARGE_STEP,
            "jobs": self._copy(f"{prefix}jobs", jobs, JOB),
        }

    def _jobs(
        self, prefix: str, spans: Sequence[tuple[int, int, int, int]], batch: ForwardBatch
    ) -> tuple[NDArray[Any], int, int]:
        """The pieces of sequences that attention takes at a time; how many tasks they are by chunk, and whether they
        are taken so."""
        tables = self._copy(f"{prefix}tables", np.concatenate(batch.block_tables), np.int32)
        begins = [0, *accumulate(len(table) for table in batch.block_tables)]
        rows: list[tuple[int, ...]] = []
        num_tasks = num_bytes = 0
        for start, num_rows, position, sequence in spans:
            for offset in range(0, num_rows, self._job_tokens):
                count = min(self._job_tokens, num_rows - offset)
                at = position + offset
                num_chunks = (at + count - 1) // CHUNK + 1
                rows.append(
                    (start + offset, count, at, tables + 4 * begins[sequence], num_chunks, num_tasks, num_bytes)
                )
                num_tasks += num_chunks * self._kv_heads
                num_bytes += num_chunks * self._kv_heads * part_rows(count * self._group) * part_bytes(self._dim)
        jobs = np.array(rows, JOB)
        is_few = len(jobs) * self._kv_heads < 8 * self._num_threads
        is_split = is_few and self._num_threads > 1 and num_bytes <= MAX_PART_BYTES
        if is_split:
            jobs["parts"] += self._take(f"{prefix}parts", num_bytes)
        return jobs, num_tasks, int(is_split)

    def _take(self, name: str, num_bytes: int) -> int:
        """The address of so many bytes, zeros at first."""
        memory = self._memory.get(name)
        if memory is None or len(memory[0]) < num_bytes:
            whole = aligned(num_bytes)
            memory = self._memory[name] = (whole, int(whole.ctypes.data))
        return memory[1]

    def _copy(self, name: str, array: NDArray[Any], dtype: Any) -> int:
        """The address of a copy."""
        num_bytes = len(array) * np.dtype(dtype).itemsize
        address = self._take(name, num_bytes)
        self._memory[name][0][:num_bytes].view(dtype)[...] = array
        return address


def _fill(record: Any, fields: Mapping[str, int]) -> None:
    for name in PASS_FIELDS:
        record[name] = fields[name]


def _padded(width: int) -> int:
    """Rows begin at whole steps of quantised rows."""
    return -(-width // STEP) * STEP
