"""PrefixCache under random owners that come, compute, grow and go, against a brute-force oracle."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.kvcache.block_pool import Retention
from inference.kvcache.block_table import BlockTable
from tests.examples import examples
from tests.inference.cache_world import ROOT, CacheWorld, P
from tests.inference.fakes import markers_of

NUM_BLOCKS = 8
PROMPTS = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=14)


class Live:
    def __init__(self, table: BlockTable, ids: list[int], num_computed: int) -> None:
        self.table, self.ids, self.num_computed = table, ids, num_computed


def owner_of(table: BlockTable, i: int):
    """Who may find block i of a table: everybody, or those with its salt and its border."""
    return "public" if (i + 1) * P <= table.num_public_tokens else (table.salt, table.num_public_tokens // P)


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = CacheWorld(NUM_BLOCKS)
        self.cache = self.world.cache
        self.live: list[Live] = []
        self.owners: dict[int, object] = {}  # of the cached blocks
        self.lasting: set[int] = set()  # before the last allocation

    @rule(
        ids=PROMPTS,
        salt=st.sampled_from([b"", b"a", b"b"]),
        num_public_tokens=st.sampled_from([0, 3, 4, 8]),
        tag=st.sampled_from(["x", "y", ""]),
        is_low=st.booleans(),
        num_lasting_tokens=st.integers(0, 9),
        is_gentle=st.booleans(),
        num_spare=st.integers(0, 2),
    )
    def admit(self, ids, salt, num_public_tokens, tag, is_low, num_lasting_tokens, is_gentle, num_spare):
        num_public = min(num_public_tokens, len(ids))
        ids = [3] * num_public + ids[num_public:]  # the public head is the same for all, as a system prompt is
        table = BlockTable(salt, num_public, {tag}, is_low, num_lasting_tokens, is_gentle)
        hits, expected = self.expected_reuse(table, ids)
        pool = self.cache.pool
        num_wanted = -(-len(ids) // P) - sum(int(pool.ref_count[b] > 0) for b in hits)
        num_left = pool.num_available - num_wanted - num_spare
        self.lasting = self.lasting_blocks()
        order = list(pool.idle_blocks())
        reuse = self.cache.allocate(table, np.array(ids, np.int32), num_spare=num_spare)
        if num_left < 0 or reuse is None:
            assert reuse is None
            assert num_left < 0 or is_gentle
            assert list(pool.idle_blocks()) == order
            return
        self.see_manners(table)
        assert table.block_ids[: len(hits)] == hits
        assert reuse is not None
        num_reused = reuse.num_tokens
        has_no_room_for_source = num_left == 0 and num_spare == 0
        assert num_reused == expected or (has_no_room_for_source and num_reused == len(hits) * P)
        assert num_reused <= len(ids) - 1
        self.forget_owners()
        self.live.append(Live(table, ids, num_reused))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), num=st.integers(1, 9))
    def compute(self, data, num):
        live = data.draw(st.sampled_from(self.live))
        num_computed = min(len(live.ids), live.num_computed + num)
        for position in range(live.num_computed, num_computed):
            rows = self.world.storage.rows
            rows[live.table.block_ids[position // P], position % P] = markers_of(live.ids)[position]
        live.num_computed = num_computed
        self.cache.publish(live.table, np.array(live.ids, np.int32), num_computed)
        self.learn_owners(live.table, list(live.table.block_ids))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token_id=st.sampled_from([1, 2]))
    def grow(self, data, token_id):
        live = data.draw(st.sampled_from(self.live))
        has_room = len(live.ids) % P or self.cache.pool.num_available
        self.lasting = self.lasting_blocks()
        has_grown = self.cache.grow(live.table, len(live.ids) + 1)
        assert has_grown == bool(has_room) or (live.table.is_gentle and not has_grown)
        self.see_manners(live.table)
        if has_grown:
            live.ids = [*live.ids, token_id]
        self.forget_owners()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), is_valid=st.booleans())
    def end(self, data, is_valid):
        live = data.draw(st.sampled_from(self.live))
        self.live.remove(live)
        block_ids = list(live.table.block_ids)
        self.cache.release(live.table, np.array(live.ids, np.int32), live.num_computed, is_valid=is_valid)
        self.forget_owners()
        self.learn_owners(live.table, block_ids)

    @rule(tag=st.sampled_from(["x", "y"]))
    def purge(self, tag):
        for live in self.live:
            self.cache.disown(live.table, tag)
        self.cache.purge(tag)
        assert not any(tag in tags for tags in self.cache.blocks.tags)
        self.forget_owners()

    @rule()
    def clear(self):
        self.cache.clear()
        self.forget_owners()
        assert not self.owners

    @invariant()
    def books_agree(self):
        self.cache.check_integrity()
        references = np.zeros(NUM_BLOCKS, int)
        for live in self.live:
            np.add.at(references, live.table.block_ids, 1)
        assert references.tolist() == self.cache.pool.ref_count.tolist()
        assert set(self.owners) == {b for b in range(NUM_BLOCKS) if b in self.cache.blocks}

    @invariant()
    def rows_are_those_of_their_tokens(self):
        for live in self.live:
            held = self.world.storage.read(live.table.block_ids, live.num_computed)
            assert held == markers_of(live.ids)[: live.num_computed]
        for block_id in range(NUM_BLOCKS):
            rows = self.world.storage.rows[block_id]
            if block_id in self.owners:
                chain = self.chain_of(block_id)
                num_rows = int(self.cache.blocks.num_rows[block_id])
                assert rows[:num_rows].tolist() == markers_of(chain)[-num_rows:]
            elif self.cache.pool.ref_count[block_id] == 0:
                assert not rows.any(), "an empty block holds somebody's rows"

    def teardown(self):
        for live in self.live:
            self.cache.release(live.table, np.array(live.ids, np.int32), live.num_computed)
        self.cache.check_integrity()
        assert self.cache.pool.num_used == 0

    def lasting_blocks(self) -> set[int]:
        """Cached blocks that a gentle table must leave alone: nothing gets old here."""
        return {b for b in self.owners if self.cache.pool.retention[b] == Retention.NORMAL}

    def see_manners(self, table: BlockTable) -> None:
        if table.is_gentle:
            assert all(b in self.cache.blocks for b in self.lasting), "a gentle table has pushed something out"

    def learn_owners(self, table: BlockTable, block_ids: list[int]) -> None:
        for i, block_id in enumerate(block_ids):
            if block_id in self.cache.blocks:
                self.owners.setdefault(block_id, owner_of(table, i))
        self.forget_owners()

    def forget_owners(self) -> None:
        self.owners = {b: owner for b, owner in self.owners.items() if b in self.cache.blocks}

    def chain_of(self, block_id: int) -> list[int]:
        """All tokens from the start to the end of a cached block."""
        parent = self.cache.blocks.place_of(block_id).parent
        head = [] if parent == ROOT else self.chain_of(self.cache.blocks.find(parent))
        return head + self.cache.blocks.rows(block_id).tolist()

    def expected_reuse(self, table: BlockTable, ids: list[int]) -> tuple[list[int], int]:
        """Brute force, without keys: which blocks hold the head of ids and may be found, and how many tokens in all."""
        hits: list[int] = []
        num_reused = 0
        for chain, block_id in sorted((self.chain_of(b), b) for b in self.owners):
            i = (len(chain) - 1) // P
            if self.owners[block_id] != owner_of(table, i):
                continue
            differing = [n for n, (a, b) in enumerate(zip(chain, ids[:-1], strict=False)) if a != b]
            num_common = differing[0] if differing else min(len(chain), len(ids) - 1)
            if num_common > i * P:
                num_reused = max(num_reused, num_common)
            if num_common == (i + 1) * P:
                hits.append(block_id)
        return hits, num_reused


CacheMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestCache = CacheMachine.TestCase
