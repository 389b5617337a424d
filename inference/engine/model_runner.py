"""ModelRunner: lays the chunks of a step end to end and runs the model over them. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from inference.engine.sequence import Chunk
from inference.kernels.kv_storage import KVPool
from inference.model.base import Model
from inference.types import F32, I32, I64, ForwardBatch


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
    """The chunks (at least one) as one batch."""
    token_ids: list[I32] = []
    positions: list[I32] = []
    slots: list[I64] = []
    block_tables: list[I32] = []
    query_start = [0]
    context_lens: list[int] = []
    logits_rows: list[int] = []
    num_rows = 0
    for chunk in chunks:
        sequence = chunk.sequence
        start, end = sequence.num_computed, sequence.num_computed + chunk.num_tokens + len(chunk.draft)
        block_table = np.array(sequence.table.block_ids, np.int32)
        position = np.arange(start, end, dtype=np.int32)
        token_ids.append(sequence.token_ids[start : start + chunk.num_tokens])
        if chunk.draft:
            token_ids.append(np.array(chunk.draft, np.int32))
        positions.append(position)
        slots.append(block_table[position // block_size].astype(np.int64) * block_size + position % block_size)
        block_tables.append(block_table)
        num_rows += end - start
        query_start.append(num_rows)
        context_lens.append(end)
        if chunk.is_last:
            logits_rows.extend(range(num_rows - len(chunk.draft) - 1, num_rows))
    return ForwardBatch(
        token_ids=np.concatenate(token_ids),
        positions=np.concatenate(positions),
        slot_mapping=np.concatenate(slots),
        query_start=np.array(query_start, np.int32),
        block_tables=tuple(block_tables),
        context_lens=np.array(context_lens, np.int32),
        logits_rows=np.array(logits_rows, np.int32),
    )
