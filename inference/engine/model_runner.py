"""ModelRunner: lays the chunks of a step end to end and runs the model over them. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from inference.engine.sequence import Chunk
from inference.kernels.kv_storage import KVPool
from inference.model.base import Model
from inference.types import F32, I32, ForwardBatch


class ModelRunner:
    """The model and the KV pool that it writes to."""

    def __init__(self, model: Model, kv: KVPool) -> None:
        self._model = model
        self._kv = kv

    def run(self, chunks: Seq[Chunk]) -> F32:
        """Compute the chunks into the pool.

        Returns logits (R, V), in order: for each last chunk a row for its last token and one for each guess.
        """
        return self._model.forward(make_batch(chunks, self._kv.block_size), self._kv)


def make_batch(chunks: Seq[Chunk], block_size: int) -> ForwardBatch:
    """The chunks (at least one) as one batch. Lists until the end: most steps hold a few tokens, for which a NumPy call
    takes longer than the work."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    block_tables: list[I32] = []
    query_start = [0]
    context_lens: list[int] = []
    logits_rows: list[int] = []
    for chunk in chunks:
        sequence = chunk.sequence
        start, computed = sequence.num_computed, sequence.num_computed + chunk.num_tokens
        end = computed + len(chunk.draft)
        token_ids += sequence.token_ids[start:computed].tolist()
        token_ids += chunk.draft
        positions += range(start, end)
        slots += _slots(sequence.table.block_ids, start, end, block_size)
        block_tables.append(np.array(sequence.table.block_ids, np.int32))
        query_start.append(len(positions))
        context_lens.append(end)
        if chunk.is_last:
            logits_rows += range(len(positions) - len(chunk.draft) - 1, len(positions))
    return ForwardBatch(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        slot_mapping=np.array(slots, np.int64),
        query_start=np.array(query_start, np.int32),
        block_tables=tuple(block_tables),
        context_lens=np.array(context_lens, np.int32),
        logits_rows=np.array(logits_rows, np.int32),
    )


def _slots(block_ids: list[int], start: int, end: int, block_size: int) -> list[int]:
    """Where the KV of positions start to end lies, block by block."""
    slots: list[int] = []
    for index in range(start // block_size, -(-end // block_size)):
        first = (block_ids[index] - index) * block_size  # the slot that position 0 would have
        slots += range(first + max(start, index * block_size), first + min(end, (index + 1) * block_size))
    return slots
