"""Prefix cache: finds the KV that a prompt can reuse, and gives the blocks of a sequence out and takes them back.

Knows tokens, keys and who may share what. The order of reuse is block_pool's, the KV bytes are the storage's, the files
are block_saver's. One owner calls it; no call leaves the cache in a state that the next one could not start from.

What holds after every call (check_integrity asserts it):
- a block is found under its key only once its KV has been computed, and only while nothing else can overwrite it;
- a cached block's parent is cached, and is evicted after it;
- an unreferenced block that is not cached holds zeros.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from inference.kernels.kv_storage import BlockStorage
from inference.kvcache.block_pool import BlockPool, Retention
from inference.kvcache.block_saver import BlockSaver
from inference.kvcache.block_table import BlockTable, KeyChain, Reuse
from inference.kvcache.cached_blocks import CachedBlocks, Place, num_common
from inference.kvcache.gone_blocks import GoneBlocks
from inference.kvcache.hints import RetentionHints
from inference.kvcache.last_logits import LastLogits
from inference.types import F32, I32, DiskStats, MissCause

NUM_REMEMBERED = 8  # times the number of blocks: so many that are gone are remembered


@dataclass(slots=True)
class _Match:
    """What a prompt can reuse from memory: whole blocks, then the first rows of one more. num_usable: at most."""

    num_usable: int
    logits: F32 | None = None
    block_ids: list[int] = field(default_factory=list)
    source: int = -1  # the block whose first rows fit, -1 for none
    num_rows: int = 0


class PrefixCache:
    """A full block is found under its key. A partly filled one (the tail of a finished request) has no key: it is only
    found among the children of its parent, and only ever copied from. With is_enabled False nothing is found or kept.
    """

    def __init__(
        self,
        storage: BlockStorage,
        *,
        num_blocks: int,
        block_size: int,
        root: bytes,
        is_enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.blocks = CachedBlocks(num_blocks, block_size)
        self.pool = BlockPool(num_blocks, on_reset=self._reset, is_parent=self._is_parent, clock=clock)
        self.block_size = block_size
        self.is_enabled = is_enabled
        self.num_collisions = 0
        self.disk_problem = ""  # why there is no saver, if there should be one
        self._storage = storage
        self._root = root
        self._chain = KeyChain(root, block_size)
        self._saver: BlockSaver | None = None
        self._hints = RetentionHints(clock)
        self._logits = LastLogits()
        self._gone = GoneBlocks(NUM_REMEMBERED * num_blocks)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # --- the life of a sequence ---------------------------------------------------------------------------------------

    def allocate(self, table: BlockTable, token_ids: I32, *, num_spare: int = 0) -> Reuse | None:
        """Give an empty table blocks for all of token_ids (T,), cached ones where possible.

        None, and nothing changed, when the pool would keep less than num_spare blocks for others, or a gentle table
        would take what somebody may soon want. Looking up, referencing the hits and allocating the rest is one step: in
        any other order an allocation could evict its own hits. What lies on disk is read into the new blocks, and
        published last.
        """
        assert not table.block_ids, "the table holds blocks already"
        self._reclassify(self._hints.expire() + self._hints.take_out(table.tags))
        match = self._match(table, token_ids)
        ref_count = self.pool.ref_count
        num_hits = len(match.block_ids)
        num_new = self.num_blocks_for(len(token_ids)) - num_hits
        num_idle_hits = sum(1 for block_id in match.block_ids if ref_count[block_id] == 0)
        num_left = self.pool.num_available - num_idle_hits - num_spare - num_new
        if num_left < 0 or not self._has_expendable(table, num_new, {*match.block_ids, match.source}):
            return None
        for i, block_id in enumerate(match.block_ids):
            self._share(table, i, block_id)
        has_source = match.source >= 0 and (num_left > 0 or num_spare > 0 or ref_count[match.source] > 0)
        if has_source:  # held while the allocation evicts
            self.pool.touch([match.source])
        new_ids = self._take_new(num_new)
        if has_source:
            self._storage.copy_rows(match.source, new_ids[0], match.num_rows)
            self.pool.free([match.source])
        table.block_ids = match.block_ids + new_ids
        table.num_hit_blocks = table.num_published = num_hits
        table.can_publish = self.is_enabled and bool(table.tags)
        if self._saver is not None:
            self._saver.disk.touch(table.keys[:num_hits])
        num_ram = num_hits * self.block_size + (match.num_rows if has_source else 0)
        return self._restore(table, token_ids, match, num_ram)

    def count_cached(self, token_ids: I32, *, salt: bytes, num_public_tokens: int) -> int:
        """How many leading tokens allocate() would find in memory now. Takes nothing."""
        match = self._match(BlockTable(salt=salt, num_public_tokens=num_public_tokens), token_ids)
        return len(match.block_ids) * self.block_size + match.num_rows

    def is_coming(self, table: BlockTable, token_ids: I32, leader: BlockTable, leader_ids: I32) -> bool:
        """Whether the next block that a live table will publish is one that this prompt wants and does not find yet."""
        i = leader.num_published
        num_usable = min(len(token_ids) - 1, len(leader_ids))
        if not leader.can_publish or (i + 1) * self.block_size > num_usable:
            return False
        key = self._chain.key_of(leader, i, leader_ids)
        return key == self._chain.key_of(table, i, token_ids) and self.blocks.find(key) is None

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Make room for num_tokens in all; False, and nothing changed, when the pool has no block left."""
        num_missing = self.num_blocks_for(num_tokens) - len(table.block_ids)
        if num_missing > self.pool.num_available or not self._has_expendable(table, num_missing):
            return False
        if num_missing > 0:
            table.block_ids += self._take_new(num_missing)
        return True

    def publish(self, table: BlockTable, token_ids: I32, num_computed: int) -> None:
        """Let others find the full blocks among the first num_computed tokens. Only after the pass that computed them.

        A block that somebody else has published meanwhile is swapped for theirs, and the own copy released.
        """
        while table.can_publish and table.num_published < num_computed // self.block_size:
            i = table.num_published
            place = self._chain.place(table, i, token_ids)
            if i > 0 and self.blocks.find(place.parent) != table.block_ids[i - 1]:  # purged meanwhile
                table.can_publish = False
                return
            own_id = table.block_ids[i]
            rows = self._chain.rows(token_ids, i)
            key = self._chain.key_of(table, i, token_ids)
            twin_id = self.blocks.find(key)
            if twin_id is None:
                self._register(table, i, key, place, rows)
                if self._saver is not None:
                    self._saver.note(own_id)
            elif np.array_equal(self.blocks.rows(twin_id), rows):
                self._share(table, i, twin_id)
                table.block_ids[i] = twin_id
                self.pool.free([own_id])
            else:
                self.num_collisions += 1
                table.can_publish = False
                return
            table.num_published += 1

    def keep_logits(self, table: BlockTable, token_ids: I32, logits: F32) -> None:
        """Remember logits (V,) of the last of token_ids, all of which are computed: a repeat need not compute it."""
        if table.can_publish and not table.is_low_retention:
            self._logits.put(self._chain.prompt_key(table, token_ids), logits, table.tags)

    def release(self, table: BlockTable, token_ids: I32, num_computed: int, *, is_valid: bool = True) -> int:
        """Take all blocks of a sequence back; what the first num_computed tokens filled stays cached.

        Returns how many leading tokens that is, 0 when others may have taken some of it away meanwhile. is_valid False:
        the KV cannot be trusted; whatever this sequence has published is forgotten, on disk as well.
        """
        num_kept = 0
        if is_valid:
            self.publish(table, token_ids, num_computed)
            num_rows = self._publish_tail(table, token_ids, num_computed)
            if table.can_publish:
                num_kept = table.num_published * self.block_size + num_rows
        else:
            self._logits.remove(self._chain.prompt_key(table, token_ids))
            if self._saver is not None:
                self._saver.distrust(table.keys[table.num_hit_blocks : table.num_published])
            for block_id in table.block_ids[table.num_hit_blocks : table.num_published]:
                if block_id in self.blocks:  # else forgotten together with the one before it
                    self._forget(block_id)
        self.pool.free(table.block_ids[::-1])  # a child is evicted before its parent
        table.block_ids = []
        table.num_hit_blocks = table.num_published = 0
        table.can_publish = False
        return num_kept

    # --- what the application knows -----------------------------------------------------------------------------------

    def protect(self, tag: str, seconds: float) -> None:
        """Evict blocks with this tag after the others of their owner, for so long from now on; 0 ends it."""
        if self._hints.protect(tag, seconds):  # else renewed, as for every open tab again and again
            self._reclassify([tag])

    def archive(self, tag: str) -> None:
        """Evict blocks that only archived owners have used before all others, until a request with the tag comes."""
        self._hints.archive(tag)
        self._reclassify([tag])

    def purge(self, tag: str) -> int:
        """Forget the private blocks that nobody but owners with this tag have used; returns their number.

        Those in use are no longer found and become zeros when they are released. Tables with the tag: see disown().
        """
        num_cached = self.num_cached
        self._hints.forget(tag)
        self._logits.purge(tag)
        shared_ids = []
        for block_id, tags in enumerate(self.blocks.tags):
            if tag in tags:
                tags.discard(tag)
                if tags:
                    shared_ids.append(block_id)
                else:
                    self._forget(block_id)
        self.pool.reclassify({block_id: self._retention(block_id) for block_id in shared_ids})
        if self._saver is not None:
            self._saver.purge(tag, shared_ids)
        return num_cached - self.num_cached

    def disown(self, table: BlockTable, tag: str) -> None:
        """Take a purged tag from a live table: without any left, nothing that it computes is kept."""
        if tag in table.tags:
            table.tags.discard(tag)
            table.can_publish = table.can_publish and bool(table.tags)

    def clear(self) -> None:
        """Forget every cached block, on disk as well."""
        self.forget_ram()
        if self._saver is not None:
            self._saver.clear()

    def use_disk(self, saver: BlockSaver) -> None:
        """From now on save what is cached, and find what was saved."""
        self._saver, self.disk_problem = saver, ""
        saver.attach(self.blocks)
        for block_id in range(self.pool.num_blocks):
            if block_id in self.blocks:
                saver.note(block_id)

    def save_some(self) -> float | None:
        """Hand a few blocks over to be written. In how many seconds there is more to do; None: not before a change."""
        return None if self._saver is None else self._saver.save_some()

    def disk_stats(self) -> DiskStats | None:
        return None if self._saver is None else self._saver.stats()

    def flush(self, timeout: float) -> None:
        """Save for at most timeout seconds what is not on disk."""
        if self._saver is not None:
            self._saver.flush(timeout)

    def close(self, timeout: float) -> None:
        """Save for at most timeout seconds what is not on disk, and give the folder back; from then on without it."""
        saver, self._saver = self._saver, None
        if saver is not None:
            saver.close(timeout)

    def forget_ram(self) -> None:
        """Forget every cached block in memory, as if all had been evicted."""
        self._logits.clear()
        for block_id in range(self.pool.num_blocks):
            if block_id in self.blocks:
                self._forget(block_id, MissCause.EVICTED)

    @property
    def num_cached(self) -> int:
        """Cached blocks, referenced or not."""
        return len(self.blocks)

    def check_integrity(self) -> None:
        """Assert the invariants of the module docstring as far as ids and keys go. O(N)."""
        self.pool.check_integrity()
        self.blocks.check_integrity(self._root)
        for block_id in range(self.pool.num_blocks):
            is_retained = self.pool.retention[block_id] != Retention.NONE
            assert (block_id in self.blocks) == is_retained
            if is_retained:
                assert self.pool.owner[block_id] == self.blocks.place_of(block_id).owner
        if self._saver is not None:
            self._saver.check_integrity()

    # --- looking up ---------------------------------------------------------------------------------------------------

    def _match(self, table: BlockTable, token_ids: I32) -> _Match:
        """The longest run of cached blocks from the start, then the child that agrees in most rows. Changes nothing.

        The last token is part of it only if its logits were kept: they are wanted, so else it has to be computed.
        """
        match = _Match(len(token_ids) - 1)
        if not self.is_enabled:
            return match
        match.logits = self._logits.get(self._chain.prompt_key(table, token_ids))
        match.num_usable += match.logits is not None
        for i in range(match.num_usable // self.block_size):
            block_id = self.blocks.find(self._chain.key_of(table, i, token_ids))
            if block_id is None:
                break
            if not np.array_equal(self.blocks.rows(block_id), self._chain.rows(token_ids, i)):
                self.num_collisions += 1
                break
            match.block_ids.append(block_id)
        i = len(match.block_ids)
        rows = self._chain.rows(token_ids[: match.num_usable], i)
        for child_id in self.blocks.siblings(self._chain.place(table, i, token_ids)):
            num_rows = num_common(self.blocks.rows(child_id), rows)
            if num_rows > match.num_rows:
                match.source, match.num_rows = child_id, num_rows
        return match

    def _restore(self, table: BlockTable, token_ids: I32, match: _Match, num_ram: int) -> Reuse:
        """Read what goes on on disk where memory ends into the table's own blocks, and publish it."""
        num_hits, P = table.num_hit_blocks, self.block_size
        num_disk = 0
        if self._saver is not None and num_ram < match.num_usable:
            last = match.num_usable // P
            keys = [self._chain.key_of(table, i, token_ids) for i in range(num_hits, last)]
            rows = [self._chain.rows(token_ids, i) for i in range(num_hits, last)]
            num_blocks = self._saver.restore(keys, rows, table.block_ids[num_hits:])
            for i in range(num_hits, num_hits + num_blocks):
                self._register(table, i, keys[i - num_hits], self._chain.place(table, i, token_ids), rows[i - num_hits])
            table.num_published += num_blocks
            end = table.num_published
            tail = self._chain.rows(token_ids[: match.num_usable], end)
            num_better_than = 0 if num_blocks else num_ram - num_hits * P
            place = self._chain.place(table, end, token_ids)
            num_rows = self._saver.restore_rows(place, tail, table.block_ids[end:], num_better_than)
            if self._saver.has_just_failed:  # a file has been removed, and memory may hold what was in it
                for block_id in table.block_ids[:end]:
                    self._saver.note(block_id)
            num_disk = num_blocks * P + num_rows
            num_ram = num_hits * P if num_disk else num_ram
            for record in self._saver.disk.take_useless():
                if not record.key or self.blocks.find(record.key) is None:
                    self._gone.add(record.place.link, record.token_ids, MissCause.RESTORE_FAILED)
        is_whole = num_ram + num_disk == len(token_ids)
        cause = self._cause(table, token_ids, num_ram + num_disk, match.num_usable)
        return Reuse(num_ram, num_disk, match.logits if is_whole else None, cause)

    def _cause(self, table: BlockTable, token_ids: I32, num_reused: int, num_usable: int) -> MissCause:
        """Why no more than num_reused tokens were found, as far as this cache knows."""
        if num_reused >= num_usable:
            return MissCause.NONE
        if not self.is_enabled:
            return MissCause.DISABLED
        i = num_reused // self.block_size
        rows = self._chain.rows(token_ids[:num_usable], i)
        return self._gone.cause(self._chain.place(table, i, token_ids).link, rows, num_reused % self.block_size)

    # --- keeping ------------------------------------------------------------------------------------------------------

    def _publish_tail(self, table: BlockTable, token_ids: I32, num_computed: int) -> int:
        """Keep the rows of the last, partly filled block, unless a cached block holds them; returns how many."""
        i = num_computed // self.block_size
        rows = self._chain.rows(token_ids[:num_computed], i)
        if not table.can_publish or table.num_published != i or not len(rows):
            return 0
        place = self._chain.place(table, i, token_ids)
        if i > 0 and self.blocks.find(place.parent) != table.block_ids[i - 1]:
            return 0
        for child_id in self.blocks.siblings(place):
            is_kept_as_long = table.is_side(num_computed) or not self.blocks.is_side[child_id]
            if is_kept_as_long and num_common(self.blocks.rows(child_id), rows) == len(rows):
                return len(rows)
        self._register(table, i, b"", place, rows)
        if self._saver is not None:
            self._saver.note(table.block_ids[i])
        return len(rows)

    def _register(self, table: BlockTable, i: int, key: bytes, place: Place, rows: I32) -> None:
        """Make block i of the table findable; forget the partly filled blocks that it contains whole."""
        block_id = table.block_ids[i]
        is_side = table.is_side(i * self.block_size + len(rows))
        for child_id in self.blocks.siblings(place):
            num_rows = int(self.blocks.num_rows[child_id])
            is_kept_as_long = self.blocks.is_side[child_id] or not is_side
            is_contained = num_rows < self.block_size and num_common(self.blocks.rows(child_id), rows) == num_rows
            if is_contained and is_kept_as_long:
                self._forget(child_id)
        tags = table.tags if place.owner else ()
        self.blocks.add(block_id, key, place, rows, tags, is_side=is_side)
        self.pool.retain(block_id, self._retention(block_id), place.owner)
        self._gone.discard(place.link, rows)

    def _share(self, table: BlockTable, i: int, block_id: int) -> None:
        """Reference a cached block as block i of the table. It now belongs to this owner as well."""
        self.pool.touch([block_id])
        if self.blocks.is_side[block_id] and not table.is_side((i + 1) * self.block_size):
            self.blocks.is_side[block_id] = False
            if self._saver is not None:
                self._saver.note(block_id)
        owner = self.blocks.place_of(block_id).owner
        if owner:
            self.blocks.tags[block_id] |= table.tags
        self.pool.retain(block_id, self._retention(block_id), owner)

    def _reclassify(self, tags: Iterable[str]) -> None:
        """The hints for these tags have changed."""
        changed = set(tags)
        if changed:
            blocks = [block_id for block_id, tags in enumerate(self.blocks.tags) if tags & changed]
            self.pool.reclassify({block_id: self._retention(block_id) for block_id in blocks})

    def _retention(self, block_id: int) -> Retention:
        if self.blocks.is_side[block_id]:
            return Retention.LOW
        return self._hints.retention_of(self.blocks.tags[block_id])

    # --- letting go ---------------------------------------------------------------------------------------------------

    def _has_expendable(self, table: BlockTable, num: int, besides: Collection[int] = ()) -> bool:
        """Whether a table may take num new blocks, as far as its manners go. besides: those that it will hold."""
        return not table.is_gentle or num <= self.pool.num_expendable(besides)

    def _take_new(self, num: int) -> list[int]:
        block_ids = self.pool.allocate(num)
        if self._saver is not None:
            self._saver.save_evicted()
        return block_ids

    def _forget(self, block_id: int, cause: MissCause = MissCause.PURGED) -> None:
        """Make a block and all that follow it unfindable, and zeros as soon as nobody references them."""
        stack = [block_id]
        while stack:
            block_id = stack.pop()
            stack.extend(self.blocks.children(block_id))
            self._unregister(block_id, cause)
            self.pool.drop(block_id)

    def _reset(self, block_id: int) -> None:
        """An unreferenced block is about to hold something else, or nothing: called by the pool."""
        if block_id in self.blocks:
            assert not self._is_parent(block_id), f"block {block_id} is evicted before its children"
            if self._saver is not None:
                self._saver.evict(block_id)
            self._unregister(block_id, MissCause.EVICTED)
        self._storage.zero_block(block_id)

    def _unregister(self, block_id: int, cause: MissCause) -> None:
        self._gone.add(self.blocks.place_of(block_id).link, self.blocks.rows(block_id), cause)
        if self._saver is not None:
            self._saver.forget(block_id)
        self.blocks.remove(block_id)

    def _is_parent(self, block_id: int) -> bool:
        return bool(self.blocks.children(block_id))
