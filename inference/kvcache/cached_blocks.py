"""CachedBlocks: what each cached block holds, and how the blocks hang together.

A block is cached when it has contents that may be found: by its key if it is full, among the children of its parent in
any case. Knows nothing of references and eviction (block_pool.py) and of who may reuse what (prefix_cache.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from inference.types import I32


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a chain a block belongs, and to whom.

    link is the parent's key, salted in front of the first private block: what the key is made from. owner names those
    who may find it ("" for everybody); it tells nothing about their salt.
    """

    parent: bytes
    link: bytes
    owner: bytes


class CachedBlocks:
    """Contents by block id, blocks by key, children by parent."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.token_ids = np.zeros((num_blocks, block_size), np.int32)  # (N, P)
        self.num_rows = np.zeros(num_blocks, np.int32)  # (N,) 0: not cached
        self.key = [b""] * num_blocks  # b"" when partly filled
        self.place: list[Place | None] = [None] * num_blocks
        self.tags: list[set[str]] = [set() for _ in range(num_blocks)]  # empty for a public block
        self.is_side = np.zeros(num_blocks, np.bool_)  # (N,) of side requests only
        self._block_of: dict[bytes, int] = {}
        self._children: dict[bytes, set[int]] = {}

    def __len__(self) -> int:
        return int(np.count_nonzero(self.num_rows))

    def __contains__(self, block_id: int) -> bool:
        return bool(self.num_rows[block_id])

    def add(self, block_id: int, key: bytes, place: Place, rows: I32, tags: Collection[str], *, is_side: bool) -> None:
        """Make a block findable. rows (up to P,): its tokens."""
        self.token_ids[block_id, : len(rows)] = rows
        self.num_rows[block_id] = len(rows)
        self.key[block_id], self.place[block_id] = key, place
        self.tags[block_id], self.is_side[block_id] = set(tags), is_side
        self._children.setdefault(place.parent, set()).add(block_id)
        if key:
            self._block_of[key] = block_id

    def remove(self, block_id: int) -> None:
        """Make a block unfindable."""
        place, key = self.place_of(block_id), self.key[block_id]
        if key:
            del self._block_of[key]
        siblings = self._children[place.parent]
        siblings.discard(block_id)
        if not siblings:
            del self._children[place.parent]
        self.key[block_id], self.place[block_id], self.num_rows[block_id] = b"", None, 0
        self.tags[block_id], self.is_side[block_id] = set(), False

    def find(self, key: bytes) -> int | None:
        return self._block_of.get(key)

    def place_of(self, block_id: int) -> Place:
        place = self.place[block_id]
        assert place is not None, f"block {block_id} is not cached"
        return place

    def rows(self, block_id: int) -> I32:
        """The tokens of a block (up to P,)."""
        return self.token_ids[block_id, : self.num_rows[block_id]]

    def children(self, block_id: int) -> Collection[int]:
        """The cached blocks that follow a block, whatever their salt."""
        return self._children.get(self.key[block_id], ()) if self.key[block_id] else ()

    def siblings(self, place: Place) -> list[int]:
        """Cached children of a parent under one salt: those of a public parent include other users' private blocks."""
        children = self._children.get(place.parent, ())
        return [block_id for block_id in children if self.place_of(block_id).link == place.link]

    def check_integrity(self, root: bytes) -> None:
        """Assert that keys, children and contents agree, and that every parent is cached. O(N)."""
        for block_id, key in enumerate(self.key):
            place = self.place[block_id]
            if block_id not in self:
                assert (key, place, self.tags[block_id]) == (b"", None, set()), f"block {block_id} is half removed"
                continue
            assert place is not None, f"block {block_id} hangs nowhere"
            assert block_id in self._children[place.parent]
            assert bool(key) == (self.num_rows[block_id] == self.block_size)
            assert not key or self._block_of[key] == block_id
            assert bool(place.owner) == bool(self.tags[block_id]), "a private block has tags, a public one has none"
            if place.parent != root:
                parent_id = self._block_of[place.parent]
                is_public = not self.place_of(parent_id).owner
                assert is_public or self.tags[block_id] <= self.tags[parent_id], "a child has an owner its parent lacks"
        assert len(self._block_of) == np.count_nonzero(self.num_rows == self.block_size)
        assert sum(map(len, self._children.values())) == len(self)


def num_common(a: I32, b: I32) -> int:
    """How many leading tokens of a (n,) and b (m,) are equal."""
    num = min(len(a), len(b))
    differing = np.flatnonzero(a[:num] != b[:num])
    return int(differing[0]) if len(differing) else num
