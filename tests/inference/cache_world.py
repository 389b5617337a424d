"""A PrefixCache with a storage of markers, and a pretended engine that computes whatever is not reused."""

from __future__ import annotations

import numpy as np

from inference.kvcache.block_table import BlockTable
from inference.kvcache.keys import root_key
from inference.kvcache.prefix_cache import PrefixCache
from tests.inference.fakes import MarkerStorage, markers_of

P = 4
ROOT = root_key(model_fingerprint="m", tokenizer_fingerprint="t", kv_format="f")


class CacheWorld:
    """One cache, and the steps of a request against it."""

    def __init__(self, num_blocks: int = 16, **options) -> None:
        self.storage = MarkerStorage(num_blocks, P)
        self.cache = PrefixCache(self.storage, num_blocks=num_blocks, block_size=P, root=ROOT, **options)

    def start(self, ids, **owner) -> tuple[BlockTable, int]:
        """Allocate; the reused rows must hold what these tokens would have computed."""
        table = BlockTable(**owner)
        self.reuse = self.cache.allocate(table, np.array(ids, np.int32))
        assert self.reuse is not None
        num_reused = self.reuse.num_tokens
        assert self.storage.read(table.block_ids, num_reused) == markers_of(ids)[:num_reused]
        return table, num_reused

    def compute(self, table: BlockTable, ids, num_computed: int | None = None) -> None:
        """Write the markers of the first num_computed tokens (all) and publish them."""
        num_computed = len(ids) if num_computed is None else num_computed
        for position, marker in enumerate(markers_of(ids)[:num_computed]):
            self.storage.rows[table.block_ids[position // P], position % P] = marker
        self.cache.publish(table, np.array(ids, np.int32), num_computed)

    def end(self, table: BlockTable, ids, num_computed: int | None = None, **options) -> None:
        num_computed = len(ids) if num_computed is None else num_computed
        self.cache.release(table, np.array(ids, np.int32), num_computed, **options)
        self.cache.check_integrity()

    def serve(self, ids, num_computed: int | None = None, **owner) -> int:
        """A whole request; returns how many of its tokens were reused."""
        table, num_reused = self.start(ids, **owner)
        self.compute(table, ids, num_computed)
        self.end(table, ids, num_computed)
        return num_reused

    def find(self, ids, **owner) -> int:
        """How many tokens a request would reuse; leaves no trace but recency."""
        table, num_reused = self.start(ids, **owner)
        self.end(table, ids, 0)
        return num_reused
