"""Scheduler: order, budget, admission and preemption, without a model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.config import EngineConfig
from inference.engine.pace import BESIDE_MIN, PrefillPace
from inference.engine.scheduler import Scheduler
from inference.engine.sequence import Sequence
from inference.errors import QueueFull
from inference.kvcache.prefix_cache import PrefixCache
from inference.types import Request, SamplingParams, Stage
from tests.inference.fakes import MarkerStorage

P = 4


class World:
    """A scheduler, and steps that compute what it says; `names` are those of the chunks with their sizes."""

    def __init__(self, num_blocks: int = 16, *, max_model_len: int = 64, **config) -> None:
        self.max_model_len = max_model_len
        limits = {"max_batch_tokens": 8, "max_running": 3, "max_waiting": 2, "max_draft_tokens": 0} | config
        self.cache = PrefixCache(MarkerStorage(num_blocks, P), num_blocks=num_blocks, block_size=P, root=b"root")
        config = EngineConfig(block_size=P, **limits)
        self.pace = PrefillPace(config.max_batch_tokens)
        self.scheduler = Scheduler(config, self.cache, self.pace)
        self.num_arrivals = 0

    def add(self, name: str, num_tokens: int, *, priority: int = 0, max_tokens: int = 100) -> Sequence:
        ids = np.full(num_tokens, self.num_arrivals, np.int32)
        request = Request(name, ids, SamplingParams(max_tokens=max_tokens), priority=priority)
        sequence = Sequence(
            request,
            arrival=self.num_arrivals,
            max_model_len=self.max_model_len,
            sampler=None,
            reply=None,
            submitted_at=0.0,
        )
        self.scheduler.add(sequence)
        self.num_arrivals += 1
        return sequence

    def step(self) -> dict[str, int]:
        chunks = self.scheduler.schedule(0.0)
        sizes = {chunk.sequence.request_id: chunk.num_tokens for chunk in chunks}
        for chunk in chunks:
            sequence, is_last = chunk.sequence, chunk.is_last
            sequence.num_computed += chunk.num_tokens
            self.cache.publish(sequence.table, sequence.token_ids, sequence.num_computed)
            if is_last:
                sequence.append(7)
                sequence.stage = Stage.WRITING
        self.cache.check_integrity()
        return sizes

    @property
    def waiting(self) -> list[str]:
        return [sequence.request_id for sequence in self.scheduler.waiting]


def test_half_of_the_budget_goes_to_the_first_and_the_rest_to_the_shortest():
    world = World(num_blocks=32)
    world.add("a", 20)
    world.add("b", 9)
    world.add("c", 2)
    assert world.step() == {"a": 4, "c": 2, "b": 2}
    assert world.step() == {"c": 1, "a": 4, "b": 3}
    assert world.step() == {"c": 1, "a": 4, "b": 2}


def test_what_the_shortest_leave_over_goes_to_the_first():
    world = World()
    world.add("a", 20)
    world.add("b", 1)
    assert world.step() == {"a": 7, "b": 1}


def test_short_prompts_of_low_priority_do_not_overtake():
    world = World(num_blocks=32)
    for name, num_tokens, priority in (("a", 20, 0), ("b", 20, 0), ("side", 2, 5)):
        world.add(name, num_tokens, priority=priority)
    assert world.step() == {"a": 4, "b": 4}


def test_low_priority_reads_only_what_the_others_leave_over():
    world = World(num_blocks=32)
    world.add("a", 15)
    world.add("side", 2, priority=5)
    assert world.step() == {"a": 8}
    assert world.step() == {"a": 7, "side": 1}


@settings(deadline=None)
@given(prompts=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2)), min_size=1, max_size=6))
def test_every_prompt_is_read_and_no_step_is_over_its_budget_or_idle(prompts):
    world = World(num_blocks=200, max_running=4, max_waiting=9, max_model_len=900)
    for index, (num_tokens, priority) in enumerate(prompts):
        world.add(str(index), num_tokens, priority=priority)
    waiting = {str(index): num_tokens for index, (num_tokens, _) in enumerate(prompts)}
    for _ in range(sum(waiting.values()) + 1):
        if not waiting:
            break
        sizes = world.step()
        assert sum(sizes.values()) <= 8
        reading = {name: size for name, size in sizes.items() if name in waiting}
        assert reading
        for name, size in reading.items():
            waiting[name] -= size
        waiting = {name: num_left for name, num_left in waiting.items() if num_left}
        for sequence in [each for each in world.scheduler.running if each.request_id not in waiting]:
            world.scheduler.finish(sequence)
    assert not waiting


def test_short_question_is_answered_while_a_long_prompt_is_read():
    world = World(num_blocks=99, max_model_len=900)
    world.add("long", 200)
    world.step()
    world.add("also long", 100)
    world.add("short", 3)
    assert world.step()["short"] == 3


def test_decoding_goes_on_while_a_long_prompt_is_read():
    world = World(max_batch_tokens=4)
    world.add("a", 3)
    world.step()
    world.add("long", 30)
    sizes = [world.step() for _ in range(10)]
    assert all(step["a"] == 1 and step["long"] == 3 for step in sizes)


def test_prompt_is_read_in_equal_parts():
    world = World(num_blocks=64, max_batch_tokens=48)
    world.add("a", 60)
    assert [world.step(), world.step()] == [{"a": 30}, {"a": 30}]


def test_pace_limits_what_is_read_and_never_who_writes():
    world = World(num_blocks=999, max_batch_tokens=512, max_running=200, max_waiting=200, max_model_len=900)
    for index in range(70):
        world.add(f"w{index}", 1)
    assert len(world.step()) == 70
    world.pace.record(200, 60.0, is_beside=True)
    world.add("long", 700)
    sizes = world.step()
    assert sizes.pop("long") == BESIDE_MIN
    assert list(sizes.values()) == [1] * 70


def test_priority_goes_before_arrival_among_the_waiting():
    world = World(max_running=1)
    running = world.add("a", 2)
    world.step()
    world.add("late", 2, priority=5)
    world.add("early", 2, priority=-1)
    assert world.waiting == ["early", "late"]
    world.scheduler.finish(running)
    assert world.step() == {"early": 2}


def test_no_more_than_max_running_run():
    world = World(max_running=2, max_waiting=9)
    for name in "abcd":
        world.add(name, 1)
    assert world.step().keys() == {"a", "b"}
    assert world.waiting == ["c", "d"]


def test_full_queue_says_how_full_it_is():
    world = World(max_running=1, max_waiting=2)
    world.add("a", 1)
    world.step()
    world.add("b", 1)
    world.add("c", 1)
    with pytest.raises(QueueFull) as caught:
        world.add("d", 1)
    assert (caught.value.num_waiting, caught.value.max_waiting) == (2, 2)


def test_without_waiting_places_the_running_ones_are_still_there():
    world = World(max_running=1, max_waiting=0)
    world.add("a", 1)
    with pytest.raises(QueueFull):
        world.add("b", 1)


def test_idle_scheduler_admits_whatever_fits_the_pool_exactly():
    world = World(num_blocks=4, max_batch_tokens=64)
    world.add("a", 16)
    assert world.step() == {"a": 16}


def test_head_of_the_queue_is_not_overtaken_when_it_does_not_fit():
    world = World(num_blocks=4, max_batch_tokens=64)
    running = world.add("a", 8)
    world.step()
    world.add("big", 12)
    world.add("small", 1)
    assert world.step() == {"a": 1}
    world.scheduler.finish(running)
    assert world.step().keys() == {"big"}


def test_admission_leaves_a_block_for_each_running_sequence():
    world = World(num_blocks=4, max_batch_tokens=64)
    world.add("a", 8)
    world.step()
    world.add("b", 8)
    assert world.step() == {"a": 1}
    assert world.waiting == ["b"]


def test_newest_gives_way_and_comes_back_first_with_a_hit():
    world = World(num_blocks=5, max_batch_tokens=64, max_waiting=5)
    old = world.add("old", 7)
    new = world.add("new", 7)
    world.step()
    world.add("later", 1)
    while world.waiting != ["new", "later"]:
        world.step()
        assert old in world.scheduler.running
    assert world.scheduler.num_preemptions == 1
    num_lost = new.num_lost
    world.scheduler.finish(old)
    sizes = world.step()
    assert list(sizes) == ["new", "later"]
    assert new.num_recomputed == num_lost - (new.num_tokens - 1 - sizes["new"])
    assert new.reuse.num_tokens == 0


def test_lowest_priority_gives_way_even_if_it_is_older():
    world = World(num_blocks=5, max_batch_tokens=64)
    world.add("side", 7, priority=9)
    world.add("main", 7)
    assert world.step() == {"main": 7, "side": 7}
    while not world.waiting:
        world.step()
    assert world.waiting == ["side"]


def test_last_in_order_gives_way_itself_when_it_is_the_one_that_needs_a_block():
    world = World(num_blocks=5, max_batch_tokens=64)
    world.add("a", 8)
    world.add("b", 7)
    assert world.step() == {"a": 8, "b": 7}
    assert world.step() == {"a": 1, "b": 1}  # a takes the last block
    assert world.step() == {"a": 1}
    assert world.waiting == ["b"]


def test_two_that_each_need_one_more_block_do_not_block_each_other():
    world = World(num_blocks=6, max_batch_tokens=64)
    sequences = {world.add("a", 8, max_tokens=12), world.add("b", 8, max_tokens=12)}
    for _ in range(200):
        world.step()
        for sequence in [s for s in sequences if s.is_full]:
            world.scheduler.finish(sequence)
            sequences.remove(sequence)
        if not sequences:
            break
    assert not sequences
    assert world.cache.pool.num_used == 0


def test_finish_works_once_wherever_the_sequence_is():
    world = World(max_running=1)
    running, waiting = world.add("a", 3), world.add("b", 3)
    world.step()
    assert world.scheduler.finish(waiting)
    assert world.scheduler.finish(running)
    assert not world.scheduler.finish(running)
    assert not world.scheduler.finish(waiting)
    assert world.cache.pool.num_used == 0
    assert world.step() == {}
