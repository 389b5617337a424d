"""Prefix cache: finds the KV that a prompt can reuse, and gives the blocks of a sequence out and takes them back.

Knows tokens, keys and who may share what. The order of reuse is block_pool's, the KV bytes are the storage's. One owner
calls it; no call leaves the cache in a state that the next one could not start from.

What holds after every call (check_integrity asserts it):
- a block is found under its key only once its KV has been computed, and only while nothing else can overwrite it;
- a cached block's parent is cached, and is evicted after it;
- an unreferenced block that is not cached holds zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from inference.kvcache.block_pool import BlockPool, Retention
from inference.kvcache.keys import block_key, salted_key
from inference.types import I32

UNTAGGED = ""  # the tag of those who give none: a purge must not take their blocks


class BlockStorage(Protocol):
    """What the cache needs of the KV arrays."""

    def copy_rows(self, src_block: int, dst_block: int, num_rows: int) -> None:
        """Copy the first rows of a block, in all layers."""
        ...

    def zero_block(self, block_id: int) -> None:
        """Overwrite all rows of a block with zeros, in all layers."""
        ...


@dataclass(slots=True)
class BlockTable:
    """The blocks of one sequence, and what the cache has to know about their owner. Only the cache changes it."""

    salt: bytes = b""
    num_public_tokens: int = 0
    tags: set[str] = field(default_factory=lambda: {UNTAGGED})
    is_low_retention: bool = False
    block_ids: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)  # of the full blocks, as far as they have been asked for
    num_hit_blocks: int = 0  # leading blocks that were found at the last allocation
    num_published: int = 0  # leading blocks that are cached under their key
    can_publish: bool = False


@dataclass(slots=True)
class _Match:
    """What a prompt can reuse: whole blocks, then the first rows of one more."""

    block_ids: list[int]
    source: int = -1  # the block whose first rows fit, -1 for none
    num_rows: int = 0


class PrefixCache:
    """Cached blocks by key and by parent.

    A full block is found under its key. A partly filled one (the tail of a finished request) has no key: it is only
    found among the children of its parent, and only ever copied from. With is_enabled False nothing is found or kept.
    """

    def __init__(
        self, storage: BlockStorage, *, num_blocks: int, block_size: int, root: bytes, is_enabled: bool = True
    ) -> None:
        self.pool = BlockPool(num_blocks, on_reset=self._reset)
        self.block_size = block_size
        self.is_enabled = is_enabled
        self.num_collisions = 0
        self._storage = storage
        self._root = root
        self._block_of: dict[bytes, int] = {}  # key -> full block
        self._children: dict[bytes, set[int]] = {}  # key of the parent -> its cached children, whatever their salt
        # What a cached block holds. A block is cached when it has a parent key; its key is b"" when partly filled.
        self._token_ids = np.zeros((num_blocks, block_size), np.int32)  # (N, P)
        self._num_rows = np.zeros(num_blocks, np.int32)  # (N,)
        self._key = [b""] * num_blocks
        self._parent = [b""] * num_blocks
        self._link = [b""] * num_blocks  # the parent's key, salted in front of the first private block
        self._tags: list[set[str]] = [set() for _ in range(num_blocks)]  # empty for a public block

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def allocate(self, table: BlockTable, token_ids: I32, *, num_spare: int = 0) -> int | None:
        """Give an empty table blocks for all of token_ids (T,), cached ones where possible.

        Returns how many leading tokens have their KV, at most T - 1; None, and nothing changed, when the pool would
        keep less than num_spare blocks for others. Looking up, referencing the hits and allocating the rest is one
        step: in any other order an allocation could evict its own hits.
        """
        assert not table.block_ids, "the table holds blocks already"
        match = self._match(table, token_ids)
        ref_count = self.pool.ref_count
        num_new = self.num_blocks_for(len(token_ids)) - len(match.block_ids)
        num_idle_hits = sum(1 for block_id in match.block_ids if ref_count[block_id] == 0)
        num_left = self.pool.num_available - num_idle_hits - num_spare - num_new
        if num_left < 0:
            return None
        for i, block_id in enumerate(match.block_ids):
            self._share(table, i, block_id)
        has_source = match.source >= 0 and (num_left > 0 or num_spare > 0 or ref_count[match.source] > 0)
        if has_source:  # held while the allocation evicts
            self.pool.touch([match.source])
        new_ids = self.pool.allocate(num_new)
        if has_source:
            self._storage.copy_rows(match.source, new_ids[0], match.num_rows)
            self.pool.free([match.source])
        table.block_ids = match.block_ids + new_ids
        table.num_hit_blocks = table.num_published = len(match.block_ids)
        table.can_publish = self.is_enabled and bool(table.tags)
        return len(match.block_ids) * self.block_size + (match.num_rows if has_source else 0)

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Make room for num_tokens in all; False, and nothing changed, when the pool has no block left."""
        num_missing = self.num_blocks_for(num_tokens) - len(table.block_ids)
        if num_missing > self.pool.num_available:
            return False
        if num_missing > 0:
            table.block_ids += self.pool.allocate(num_missing)
        return True

    def publish(self, table: BlockTable, token_ids: I32, num_computed: int) -> None:
        """Let others find the full blocks among the first num_computed tokens. Only after the pass that computed them.

        A block that somebody else has published meanwhile is swapped for theirs, and the own copy released.
        """
        while table.can_publish and table.num_published < num_computed // self.block_size:
            i = table.num_published
            parent, link = self._parent_and_link(table, i, token_ids)
            if i > 0 and self._block_of.get(parent) != table.block_ids[i - 1]:  # purged meanwhile
                table.can_publish = False
                return
            own_id = table.block_ids[i]
            rows = self._rows(token_ids, i)
            key = self._key_of(table, i, token_ids)
            twin_id = self._block_of.get(key)
            if twin_id is None:
                self._register(table, i, key, parent, link, rows)
            elif np.array_equal(self._token_ids[twin_id], rows):
                self._share(table, i, twin_id)
                table.block_ids[i] = twin_id
                self.pool.free([own_id])
            else:
                self.num_collisions += 1
                table.can_publish = False
                return
            table.num_published += 1

    def release(self, table: BlockTable, token_ids: I32, num_computed: int, *, is_valid: bool = True) -> None:
        """Take all blocks of a sequence back; what the first num_computed tokens filled stays cached.

        is_valid False: the KV cannot be trusted; whatever this sequence has published is forgotten.
        """
        if is_valid:
            self.publish(table, token_ids, num_computed)
            self._publish_tail(table, token_ids, num_computed)
        else:
            for block_id in table.block_ids[table.num_hit_blocks : table.num_published]:
                if self._num_rows[block_id]:  # else forgotten together with the one before it
                    self._forget(block_id)
        self.pool.free(table.block_ids[::-1])  # a child is evicted before its parent
        table.block_ids = []
        table.num_hit_blocks = table.num_published = 0
        table.can_publish = False

    def purge(self, tag: str) -> int:
        """Forget the private blocks that nobody but owners with this tag have used; returns their number.

        Those in use are no longer found and become zeros when they are released. Tables with the tag: see disown().
        """
        num_cached = self.num_cached
        for block_id, tags in enumerate(self._tags):
            if tag in tags:
                tags.discard(tag)
                if not tags:
                    self._forget(block_id)
        return num_cached - self.num_cached

    def disown(self, table: BlockTable, tag: str) -> None:
        """Take a purged tag from a live table: without any left, nothing that it computes is kept."""
        if tag in table.tags:
            table.tags.discard(tag)
            table.can_publish = table.can_publish and bool(table.tags)

    def clear(self) -> None:
        """Forget every cached block, as if all had been evicted."""
        for block_id in range(self.pool.num_blocks):
            if self._num_rows[block_id]:
                self._forget(block_id)

    @property
    def num_cached(self) -> int:
        """Cached blocks, referenced or not."""
        return int(np.count_nonzero(self._num_rows))

    def check_integrity(self) -> None:
        """Assert the invariants of the module docstring as far as ids and keys go. O(N)."""
        self.pool.check_integrity()
        place = {block_id: n for n, block_id in enumerate(self.pool.in_reuse_order())}
        for block_id in range(self.pool.num_blocks):
            parent, key = self._parent[block_id], self._key[block_id]
            is_cached = bool(self._num_rows[block_id])
            assert is_cached == bool(parent) == (self.pool.retention[block_id] != Retention.NONE)
            if not is_cached:
                assert not key, f"block {block_id} has a key and no contents"
                continue
            assert bool(key) == (self._num_rows[block_id] == self.block_size)
            assert not key or self._block_of[key] == block_id
            assert block_id in self._children[parent]
            if parent != self._root:
                parent_id = self._block_of[parent]
                in_use = len(place)
                assert place.get(block_id, in_use) <= place.get(parent_id, in_use), "a parent goes before its child"
        assert len(self._block_of) == np.count_nonzero(self._num_rows == self.block_size)
        assert sum(map(len, self._children.values())) == self.num_cached

    def _match(self, table: BlockTable, token_ids: I32) -> _Match:
        """The longest run of cached blocks from the start, then the child that agrees in most rows. Changes nothing.

        The last token is never part of it: its logits are wanted, so it has to be computed.
        """
        match = _Match([])
        if not self.is_enabled:
            return match
        num_usable = len(token_ids) - 1
        for i in range(num_usable // self.block_size):
            block_id = self._block_of.get(self._key_of(table, i, token_ids))
            if block_id is None:
                break
            if not np.array_equal(self._token_ids[block_id], self._rows(token_ids, i)):
                self.num_collisions += 1
                break
            match.block_ids.append(block_id)
        i = len(match.block_ids)
        rows = self._rows(token_ids[:num_usable], i)
        for child_id in self._siblings(*self._parent_and_link(table, i, token_ids)):
            num_rows = self._num_common_rows(child_id, rows)
            if num_rows > match.num_rows:
                match.source, match.num_rows = child_id, num_rows
        return match

    def _publish_tail(self, table: BlockTable, token_ids: I32, num_computed: int) -> None:
        """Keep the rows of the last, partly filled block, unless a cached block holds them already."""
        i = num_computed // self.block_size
        rows = self._rows(token_ids[:num_computed], i)
        if not table.can_publish or table.num_published != i or not len(rows):
            return
        parent, link = self._parent_and_link(table, i, token_ids)
        if i > 0 and self._block_of.get(parent) != table.block_ids[i - 1]:
            return
        retention = self._retention(table)
        for child_id in self._siblings(parent, link):
            if self._num_common_rows(child_id, rows) == len(rows) and self.pool.retention[child_id] >= retention:
                return
        self._register(table, i, b"", parent, link, rows)

    def _register(self, table: BlockTable, i: int, key: bytes, parent: bytes, link: bytes, rows: I32) -> None:
        """Make block i of the table findable; forget the partly filled blocks that it contains whole."""
        block_id, retention = table.block_ids[i], self._retention(table)
        for child_id in self._siblings(parent, link):
            num_rows = self._num_rows[child_id]
            if (
                num_rows < self.block_size
                and self._num_common_rows(child_id, rows) == num_rows
                and self.pool.retention[child_id] <= retention
            ):
                self._forget(child_id)
        self._token_ids[block_id, : len(rows)] = rows
        self._num_rows[block_id] = len(rows)
        self._key[block_id], self._parent[block_id], self._link[block_id] = key, parent, link
        self._tags[block_id] = set() if self._is_public(table, i) else set(table.tags)
        self._children.setdefault(parent, set()).add(block_id)
        if key:
            self._block_of[key] = block_id
        self.pool.retain(block_id, retention)

    def _share(self, table: BlockTable, i: int, block_id: int) -> None:
        """Reference a cached block as block i of the table. It now belongs to this owner as well."""
        self.pool.touch([block_id])
        if not table.is_low_retention:
            self.pool.retain(block_id, Retention.NORMAL)
        if not self._is_public(table, i):
            self._tags[block_id] |= table.tags

    def _forget(self, block_id: int) -> None:
        """Make a block and all that follow it unfindable, and zeros as soon as nobody references them."""
        stack = [block_id]
        while stack:
            block_id = stack.pop()
            stack.extend(self._children.get(self._key[block_id], ()))
            self._unregister(block_id)
            self.pool.drop(block_id)

    def _reset(self, block_id: int) -> None:
        """An unreferenced block is about to hold something else, or nothing: called by the pool."""
        if self._num_rows[block_id]:
            assert not self._children.get(self._key[block_id]), f"block {block_id} is evicted before its children"
            self._unregister(block_id)
        self._storage.zero_block(block_id)

    def _unregister(self, block_id: int) -> None:
        key, parent = self._key[block_id], self._parent[block_id]
        if key:
            del self._block_of[key]
        siblings = self._children[parent]
        siblings.discard(block_id)
        if not siblings:
            del self._children[parent]
        self._key[block_id] = self._parent[block_id] = self._link[block_id] = b""
        self._num_rows[block_id] = 0
        self._tags[block_id] = set()

    def _siblings(self, parent: bytes, link: bytes) -> list[int]:
        """Cached children of a parent under one salt: those of a public parent include other users' private blocks."""
        return [block_id for block_id in self._children.get(parent, ()) if self._link[block_id] == link]

    def _num_common_rows(self, block_id: int, rows: I32) -> int:
        num = min(int(self._num_rows[block_id]), len(rows))
        differing = np.flatnonzero(self._token_ids[block_id, :num] != rows[:num])
        return int(differing[0]) if len(differing) else num

    def _parent_and_link(self, table: BlockTable, i: int, token_ids: I32) -> tuple[bytes, bytes]:
        """The key of block i - 1, and what block i is chained to: the salt enters at the first private block."""
        parent = self._key_of(table, i - 1, token_ids) if i > 0 else self._root
        is_first_private = i == table.num_public_tokens // self.block_size
        return parent, salted_key(parent, table.salt) if is_first_private else parent

    def _key_of(self, table: BlockTable, i: int, token_ids: I32) -> bytes:
        """The key of full block i. The tokens of a table never change, so its keys are computed once."""
        while len(table.keys) <= i:
            n = len(table.keys)
            _, link = self._parent_and_link(table, n, token_ids)
            table.keys.append(block_key(link, self._rows(token_ids, n)))
        return table.keys[i]

    def _is_public(self, table: BlockTable, i: int) -> bool:
        return (i + 1) * self.block_size <= table.num_public_tokens

    def _retention(self, table: BlockTable) -> Retention:
        return Retention.LOW if table.is_low_retention else Retention.NORMAL

    def _rows(self, token_ids: I32, i: int) -> I32:
        """The tokens of block i, fewer at the end."""
        return token_ids[i * self.block_size : (i + 1) * self.block_size]
