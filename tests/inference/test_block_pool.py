"""BlockPool: order of reuse, references, and that nothing is lost or handed out twice."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.kvcache.block_pool import BlockPool, Retention


def make_pool(num_blocks: int = 4) -> tuple[BlockPool, list[int]]:
    resets: list[int] = []
    return BlockPool(num_blocks, resets.append), resets


def test_new_pool_hands_out_ascending_ids():
    pool, resets = make_pool()
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.num_available == 1
    assert resets == []


def test_empty_blocks_go_before_cached_ones_and_those_before_low_retention():
    pool, resets = make_pool(4)
    a, b, c, d = pool.allocate(4)
    pool.retain(a, Retention.NORMAL)
    pool.retain(b, Retention.LOW)
    pool.free([a, b, c, d])
    assert list(pool.in_reuse_order()) == [d, c, b, a]
    assert resets == [c, d]
    assert pool.allocate(4) == [d, c, b, a]
    assert resets == [c, d, b, a]
    assert pool.num_evicted == 2


def test_cached_blocks_are_evicted_in_order_of_release_and_a_touch_renews():
    pool, _ = make_pool(3)
    a, b, c = pool.allocate(3)
    for block_id in (a, b, c):
        pool.retain(block_id, Retention.NORMAL)
    pool.free([c, b, a])
    pool.touch([c])
    pool.free([c])
    assert list(pool.in_reuse_order()) == [b, a, c]


def test_released_sequence_leaves_its_blocks_in_ascending_order():
    pool, _ = make_pool(6)
    table = pool.allocate(4)
    pool.free(table[::-1])
    assert pool.allocate(6) == [0, 1, 2, 3, 4, 5]


def test_shared_block_is_released_with_its_last_reference():
    pool, resets = make_pool(2)
    (a,) = pool.allocate(1)
    pool.touch([a])
    pool.free([a])
    assert pool.num_used == 1
    pool.free([a])
    assert pool.num_used == 0
    assert resets == [a]


def test_double_free_is_refused():
    pool, _ = make_pool()
    (a,) = pool.allocate(1)
    pool.free([a])
    with pytest.raises(AssertionError, match="more often than referenced"):
        pool.free([a])


def test_more_than_available_is_refused():
    pool, _ = make_pool(2)
    with pytest.raises(AssertionError, match="3 blocks wanted, 2 available"):
        pool.allocate(3)


def test_dropped_block_counts_as_empty_at_once_or_when_released():
    pool, resets = make_pool(2)
    a, b = pool.allocate(2)
    pool.retain(a, Retention.NORMAL)
    pool.retain(b, Retention.NORMAL)
    pool.free([a])
    pool.drop(a)
    pool.drop(b)
    assert resets == [a]
    pool.free([b])
    assert resets == [a, b]
    assert pool.num_empty == 2


class PoolMachine(RuleBasedStateMachine):
    """The pool against lists and a dict."""

    NUM_BLOCKS = 6

    def __init__(self) -> None:
        super().__init__()
        self.resets: list[int] = []
        self.pool = BlockPool(self.NUM_BLOCKS, self.resets.append)
        self.refs = dict.fromkeys(range(self.NUM_BLOCKS), 0)
        self.lists: list[list[int]] = [list(range(self.NUM_BLOCKS)), [], []]
        self.retention = dict.fromkeys(range(self.NUM_BLOCKS), 0)

    @rule(num=st.integers(0, NUM_BLOCKS))
    def allocate(self, num):
        expected = [block_id for blocks in self.lists for block_id in blocks][:num]
        if num > sum(map(len, self.lists)):
            return
        assert self.pool.allocate(num) == expected
        for block_id in expected:
            self.lists[self.retention[block_id]].remove(block_id)
            self.retention[block_id] = 0
            self.refs[block_id] = 1

    @rule(block_id=st.integers(0, NUM_BLOCKS - 1))
    def touch(self, block_id):
        if self.refs[block_id] == 0:
            if self.retention[block_id] == 0:
                return  # nobody finds an empty block
            self.lists[self.retention[block_id]].remove(block_id)
        self.refs[block_id] += 1
        self.pool.touch([block_id])

    @precondition(lambda self: any(self.refs.values()))
    @rule(data=st.data())
    def free(self, data):
        block_id = data.draw(st.sampled_from([b for b, refs in self.refs.items() if refs]))
        self.refs[block_id] -= 1
        if self.refs[block_id] == 0:
            self.put(block_id)
        self.pool.free([block_id])

    @precondition(lambda self: any(self.refs.values()))
    @rule(data=st.data(), retention=st.sampled_from(list(Retention)))
    def retain(self, data, retention):
        block_id = data.draw(st.sampled_from([b for b, refs in self.refs.items() if refs]))
        self.retention[block_id] = retention
        self.pool.retain(block_id, retention)

    @rule(block_id=st.integers(0, NUM_BLOCKS - 1))
    def drop(self, block_id):
        if self.refs[block_id] == 0:
            self.lists[self.retention[block_id]].remove(block_id)
        self.retention[block_id] = 0
        if self.refs[block_id] == 0:
            self.put(block_id)
        self.pool.drop(block_id)

    def put(self, block_id):
        blocks = self.lists[self.retention[block_id]]
        blocks.insert(len(blocks) if self.retention[block_id] else 0, block_id)

    @invariant()
    def agrees(self):
        self.pool.check_integrity()
        assert list(self.pool.in_reuse_order()) == [block_id for blocks in self.lists for block_id in blocks]
        assert self.pool.ref_count.tolist() == [self.refs[b] for b in range(self.NUM_BLOCKS)]
        assert self.pool.num_used + self.pool.num_cached + self.pool.num_empty == self.NUM_BLOCKS


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
