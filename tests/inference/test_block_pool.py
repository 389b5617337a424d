"""BlockPool: order of reuse, references, and that nothing is lost or handed out twice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.kvcache.block_pool import FRESH_S, BlockPool, Retention
from tests.examples import examples


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
    assert list(pool.idle_blocks()) == [d, c, b, a]
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
    assert list(pool.idle_blocks()) == [b, a, c]


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


class OwnedPool:
    """A pool whose blocks are all cached and idle: two of Alice, released first, then so many of Bob."""

    def __init__(self, num_bob: int, retention: Retention = Retention.NORMAL) -> None:
        self.now = 0.0
        self.parents: set[int] = set()
        self.pool = BlockPool(
            2 + num_bob, lambda block_id: None, is_parent=self.parents.__contains__, clock=lambda: self.now
        )
        self.alice, self.bob = self.pool.allocate(2), self.pool.allocate(num_bob)
        for owner, block_ids in ((b"alice", self.alice), (b"bob", self.bob)):
            for block_id in block_ids:
                self.pool.retain(block_id, retention, owner)
            self.pool.free(block_ids)


def test_nobody_pushes_out_what_a_smaller_owner_has_just_used():
    world = OwnedPool(num_bob=6)
    assert world.pool.allocate(4) == world.bob[:4]
    assert world.pool.allocate(2) == [world.alice[0], world.bob[4]]  # equal by now: the one who came first, then Bob


def test_what_nobody_has_used_for_long_goes_whoever_has_it():
    world = OwnedPool(num_bob=6)
    world.now = FRESH_S
    assert world.pool.allocate(3) == [*world.alice, world.bob[0]]
    assert world.pool.evicted_age_s == 3 * FRESH_S


def test_protection_counts_among_the_blocks_of_one_owner_only():
    """Who protects everything takes nothing from others by it."""
    world = OwnedPool(num_bob=4)
    world.pool.reclassify(dict.fromkeys(world.bob, Retention.PROTECTED))
    assert world.pool.allocate(2) == world.bob[:2]
    world = OwnedPool(num_bob=4)
    world.pool.reclassify({world.bob[0]: Retention.PROTECTED})
    assert world.pool.allocate(2) == world.bob[1:3]


def test_low_retention_goes_first_whoever_has_it():
    world = OwnedPool(num_bob=4)
    world.pool.reclassify({world.alice[1]: Retention.LOW})
    assert world.pool.allocate(1) == [world.alice[1]]


def test_changing_a_retention_back_gives_a_block_its_old_turn_again():
    world = OwnedPool(num_bob=4)
    world.pool.reclassify({world.bob[1]: Retention.PROTECTED})
    world.pool.reclassify({world.bob[1]: Retention.NORMAL})
    world.pool.check_integrity()
    assert world.pool.allocate(2) == world.bob[:2]


def test_a_block_with_children_outlives_them():
    world = OwnedPool(num_bob=4)
    world.parents.add(world.bob[0])
    assert world.pool.allocate(2) == world.bob[1:3]
    world.parents.clear()
    assert world.pool.allocate(1) == [world.alice[0]]


def test_release_of_the_oldest_idle_block():
    world = OwnedPool(num_bob=1)
    world.now = 7.0
    assert world.pool.oldest_release == 0.0
    world.pool.touch([*world.alice, *world.bob])
    assert world.pool.oldest_release is None


@pytest.mark.parametrize(("age_s", "place"), [(0, 0), (60, 0), (61, 1), (600, 1), (3600, 2), (86_400, 3), (90_000, 4)])
def test_evicted_blocks_are_counted_by_age(age_s, place):
    world = OwnedPool(num_bob=1)
    world.now = age_s
    world.pool.allocate(1)
    assert world.pool.num_evicted_by_age == [int(i == place) for i in range(5)]
    assert world.pool.evicted_age_s == age_s


class PoolMachine(RuleBasedStateMachine):
    """The pool against its own rules, written down as sorting."""

    NUM_BLOCKS = 7

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.resets: list[int] = []
        self.pool = BlockPool(self.NUM_BLOCKS, self.resets.append, clock=lambda: self.now)
        self.empty = list(range(self.NUM_BLOCKS))  # the next one first
        self.refs = dict.fromkeys(range(self.NUM_BLOCKS), 0)
        self.retention = dict.fromkeys(range(self.NUM_BLOCKS), Retention.NONE)
        self.owner = dict.fromkeys(range(self.NUM_BLOCKS), b"")
        self.released: dict[int, tuple[int, float]] = {}  # the cached idle ones
        self.num_released = 0

    def expected_victims(self) -> set[int]:
        """One block, or one of each owner where several have equally many."""
        by_age = sorted(self.released, key=lambda block_id: self.released[block_id])
        low = [b for b in by_age if self.retention[b] == Retention.LOW]
        stale = [
            b for b in by_age if self.retention[b] == Retention.NORMAL and self.released[b][1] <= self.now - FRESH_S
        ]
        if low or stale:
            return {(low or stale)[0]}
        sizes = Counter(self.owner[block_id] for block_id in by_age)
        largest = [owner for owner, size in sizes.items() if size == max(sizes.values())]
        by_rank = sorted(by_age, key=lambda block_id: self.retention[block_id])  # stable: age decides among equals
        return {next(b for b in by_rank if self.owner[b] == owner) for owner in largest}

    @rule(num=st.integers(0, NUM_BLOCKS))
    def allocate(self, num):
        if num > len(self.empty) + len(self.released):
            return
        for _ in range(num):
            expected = {self.empty[0]} if self.empty else self.expected_victims()
            (block_id,) = self.pool.allocate(1)
            assert block_id in expected
            if self.empty:
                self.empty.pop(0)
            else:
                del self.released[block_id]
            self.retention[block_id] = Retention.NONE
            self.refs[block_id] = 1

    @rule(seconds=st.sampled_from([1.0, FRESH_S / 2]))
    def wait(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.released or any(self.refs.values()))
    @rule(data=st.data())
    def touch(self, data):
        used = [b for b, refs in self.refs.items() if refs]
        block_id = data.draw(st.sampled_from(sorted([*self.released, *used])))
        self.released.pop(block_id, None)
        self.refs[block_id] += 1
        self.pool.touch([block_id])

    @precondition(lambda self: any(self.refs.values()))
    @rule(data=st.data())
    def free(self, data):
        block_id = data.draw(st.sampled_from([b for b, refs in self.refs.items() if refs]))
        self.refs[block_id] -= 1
        if self.refs[block_id] == 0 and self.retention[block_id] == Retention.NONE:
            self.empty.insert(0, block_id)
        elif self.refs[block_id] == 0:
            self.num_released += 1
            self.released[block_id] = (self.num_released, self.now)
        self.pool.free([block_id])

    @precondition(lambda self: any(self.refs.values()))
    @rule(data=st.data(), retention=st.sampled_from(list(Retention)), owner=st.sampled_from([b"", b"a", b"b"]))
    def retain(self, data, retention, owner):
        block_id = data.draw(st.sampled_from([b for b, refs in self.refs.items() if refs]))
        self.retention[block_id], self.owner[block_id] = retention, owner
        self.pool.retain(block_id, retention, owner)

    @rule(data=st.data(), retention=st.sampled_from([Retention.LOW, Retention.NORMAL, Retention.PROTECTED]))
    def reclassify(self, data, retention):
        cached = [b for b, kept in self.retention.items() if kept != Retention.NONE]
        chosen = data.draw(st.sets(st.sampled_from(cached))) if cached else set()
        self.retention.update(dict.fromkeys(chosen, retention))
        self.pool.reclassify(dict.fromkeys(chosen, retention))

    @precondition(lambda self: any(self.retention.values()))
    @rule(data=st.data())
    def drop(self, data):
        block_id = data.draw(st.sampled_from([b for b, kept in self.retention.items() if kept != Retention.NONE]))
        self.retention[block_id] = Retention.NONE
        if self.released.pop(block_id, None):
            self.empty.insert(0, block_id)
        self.pool.drop(block_id)

    @invariant()
    def agrees(self):
        self.pool.check_integrity()
        idle = list(self.pool.idle_blocks())
        assert idle[: len(self.empty)] == self.empty
        assert set(idle[len(self.empty) :]) == set(self.released)
        assert self.pool.ref_count.tolist() == [self.refs[b] for b in range(self.NUM_BLOCKS)]
        assert self.pool.num_used + self.pool.num_cached + self.pool.num_empty == self.NUM_BLOCKS


PoolMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
