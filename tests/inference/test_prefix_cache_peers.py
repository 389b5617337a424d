"""Cases that other engines have tests or bug reports for, written anew against this cache.

Named after what happened there: vLLM's test_prefix_caching and test_kv_cache_utils, OpenVINO's block_manager, the slot
tests of llama.cpp, the caches of mlx-lm and Rapid-MLX.
"""

from __future__ import annotations

import numpy as np
import pytest

from inference.kvcache.block_table import BlockTable
from inference.types import MissCause
from tests.inference.cache_world import CacheWorld, P
from tests.inference.fakes import expected_ids, finished, ids_of, make_engine, make_request, run

SHARED = list(range(100, 112))  # three blocks


# --- vLLM -------------------------------------------------------------------------------------------------------------


def test_prefill_takes_shared_blocks_and_frees_tail_first():
    """Two requests share three full blocks; each has its own rest. Freed, the rest of the later one goes last."""
    world = CacheWorld(num_blocks=10)
    first, _ = world.start([*SHARED, 1, 2, 3])
    world.compute(first, [*SHARED, 1, 2, 3])
    assert first.block_ids == [0, 1, 2, 3]
    second, num_reused = world.start([*SHARED, 7, 8, 9, 10, 11])
    assert (second.block_ids, num_reused) == ([0, 1, 2, 4, 5], 12)
    world.compute(second, [*SHARED, 7, 8, 9, 10, 11])
    world.end(first, [*SHARED, 1, 2, 3])
    world.end(second, [*SHARED, 7, 8, 9, 10, 11])
    assert list(world.cache.pool.idle_blocks()) == [6, 7, 8, 9, 3, 5, 4, 2, 1, 0]


def test_decode_publishes_blocks_as_they_fill():
    world = CacheWorld()
    table, _ = world.start(SHARED[:7])
    world.compute(table, SHARED[:7])
    assert world.find(SHARED[:9]) == 4
    assert world.cache.grow(table, 9)
    world.compute(table, SHARED[:9])
    assert world.find(SHARED[:9]) == 8
    world.end(table, SHARED[:9])


def test_evict_takes_the_oldest_and_keeps_what_is_computed_first():
    world = CacheWorld(num_blocks=5)
    world.serve([*SHARED, 1])
    world.serve([*range(200, 209)])
    assert world.find([*SHARED, 1]) == 8  # from its end: the tail, the third block


def test_computed_blocks_are_not_evicted_by_the_request_that_hits_them():
    world = CacheWorld(num_blocks=4)
    world.serve(SHARED[:8])
    world.serve([*range(200, 208)])
    table, num_reused = world.start([*SHARED[:8], *range(50, 57)])
    assert num_reused == 8
    world.end(table, [*SHARED[:8], *range(50, 57)], 8)


def test_not_enough_blocks_beside_the_computed_ones_is_a_result_not_an_error():
    world = CacheWorld(num_blocks=5)
    held, _ = world.start(SHARED[:8])
    world.compute(held, SHARED[:8])
    assert world.cache.allocate(BlockTable(), np.array([*SHARED[:8], *range(17)], np.int32)) is None
    world.end(held, SHARED[:8])


def test_reset_with_live_requests_forgets_and_harms_nobody():
    world = CacheWorld()
    table, _ = world.start(SHARED)
    world.compute(table, SHARED, 8)
    world.cache.clear()
    assert world.find(SHARED) == 0
    world.compute(table, SHARED)
    assert world.storage.read(table.block_ids, 12) != [0] * 12
    world.end(table, SHARED)


@pytest.mark.parametrize("block_size", [1, 2, 4, 8, 16])
def test_every_block_size_reuses_to_the_token(block_size):
    engine = make_engine(block_size=block_size)
    prompt = "the quick brown fox jumps"
    run(engine, make_request("a", prompt))
    request = make_request("b", prompt[:17] + "!")
    events = run(engine, request)["b"]
    assert finished(events).stats.num_reused_ram == 17
    assert ids_of(events) == expected_ids(request)


def test_several_copies_of_one_key_end_as_one():
    world = CacheWorld()
    tables = [world.start(SHARED)[0] for _ in range(3)]
    for table in tables:
        world.compute(table, SHARED)
    assert {tuple(table.block_ids) for table in tables} == {tuple(tables[0].block_ids)}
    for table in tables:
        world.end(table, SHARED)
    assert world.cache.num_cached == 3


def test_a_request_that_is_aborted_before_it_has_computed_leaves_nothing():
    """vLLM #43569, #37152: keys are published after the pass, so there is nothing to take back."""
    world = CacheWorld()
    table, _ = world.start(SHARED)
    world.end(table, SHARED, 0)
    assert world.find(SHARED) == 0
    assert world.cache.num_cached == 0


def test_preempted_requests_are_not_counted_as_hits():
    """vLLM #25780: their second look-up finds their own work."""
    engine = make_engine(pool_tokens=48, max_running=2)
    run(engine, make_request("a", "x" * 20, max_tokens=20), make_request("b", "y" * 20, max_tokens=20))
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert stats.cache.num_relookups == stats.num_preemptions
    assert (stats.cache.since_start.num_tokens, stats.cache.since_start.num_tokens_hit) == (40, 0)


def test_a_known_hit_changes_the_counter_by_an_exact_number():
    engine = make_engine()
    run(engine, make_request("a", "hello world!", max_tokens=1))
    before = engine.stats().cache.since_start.num_tokens_hit
    run(engine, make_request("b", "hello wonder", max_tokens=1))
    assert engine.stats().cache.since_start.num_tokens_hit - before == 8


# --- OpenVINO ---------------------------------------------------------------------------------------------------------


def test_two_identical_sequences_at_once_answer_alike():
    engine = make_engine()
    events = run(engine, *(make_request(name, "the same words") for name in "ab"))
    assert ids_of(events["a"]) == ids_of(events["b"]) == expected_ids(make_request("c", "the same words"))


def test_a_reply_of_one_token_leaves_its_prompt():
    engine = make_engine()
    run(engine, make_request("a", "abcdefg", max_tokens=1))
    assert finished(run(engine, make_request("b", "abcdefgh", max_tokens=1))["b"]).stats.num_reused_ram == 7


def test_an_incomplete_block_is_copied_before_it_is_written():
    world = CacheWorld()
    world.serve(SHARED[:6])
    table, num_reused = world.start([*SHARED[:6], 1])
    other, num_other = world.start([*SHARED[:6], 2])
    assert num_reused == num_other == 6
    assert table.block_ids[0] == other.block_ids[0]
    assert table.block_ids[1] != other.block_ids[1]
    world.compute(table, [*SHARED[:6], 1])
    world.compute(other, [*SHARED[:6], 2])
    world.end(table, [*SHARED[:6], 1])
    world.end(other, [*SHARED[:6], 2])
    assert world.find([*SHARED[:6], 2, 9]) == 7


# --- llama.cpp and mlx-lm ---------------------------------------------------------------------------------------------


def test_slot_save_restore(tmp_path):
    """A prompt of 21, then one that shares 15 of it, then the first again from disk: 21, 6 and 1 are computed."""
    one, two = "abcdefghijklmnopqrstu", "abcdefghijklmnoPQRSTU"
    engine = make_engine(kv_dir=tmp_path, kv_disk_bytes=1 << 20)
    assert finished(run(engine, make_request("a", one, max_tokens=1))["a"]).stats.num_computed == 21
    assert finished(run(engine, make_request("b", two, max_tokens=1))["b"]).stats.num_computed == 6
    engine.close(20.0)
    engine = make_engine(kv_dir=tmp_path, kv_disk_bytes=1 << 20)
    events = run(engine, make_request("c", one))["c"]
    assert finished(events).stats.num_computed == 1
    assert ids_of(events) == expected_ids(make_request("c", one))


@pytest.mark.parametrize("max_batch_tokens", [1, 2, 3, 5, 8, 13, 64])
def test_cache_and_no_cache_answer_alike_for_every_chunk(max_batch_tokens):
    prompts = ["abcdefghijklmnop", "abcdefghijklmnopqrs", "abcdefgh!", "abcdefghijklmnop"]
    for is_enabled in (True, False):
        engine = make_engine(max_batch_tokens=max_batch_tokens, is_prefix_cache_enabled=is_enabled)
        for prompt in prompts:
            request = make_request("a", prompt, temperature=1.0, seed=1)
            assert ids_of(run(engine, request)["a"]) == expected_ids(request)


def test_a_hit_counts_as_use():
    """mlx-lm #1496: finding an entry did not refresh it."""
    world = CacheWorld(num_blocks=4)
    world.serve(SHARED[:4])
    world.serve([1, 2, 3, 4])
    world.find([*SHARED[:4], 0])
    world.serve([*range(50, 62)])
    assert world.find([*SHARED[:4], 0]) == 4


def test_restart_in_the_middle_of_saving_keeps_the_longest_prefix(tmp_path):
    """What was written before the end is used; a child without its parent is not."""
    engine = make_engine(kv_dir=tmp_path, kv_disk_bytes=1 << 20, pool_tokens=512)
    prompt = "".join(chr(33 + i % 90) for i in range(400))
    run(engine, make_request("a", prompt, max_tokens=1))
    assert engine.idle() == 0.0  # the first run of 64 blocks
    assert engine.cache._saver.wait_for_writer(20.0)
    engine.close(0.0)
    engine = make_engine(kv_dir=tmp_path, kv_disk_bytes=1 << 20, pool_tokens=512)
    stats = finished(run(engine, make_request("b", prompt, max_tokens=1))["b"]).stats
    assert (stats.num_reused_disk, stats.miss_cause) == (64 * P, MissCause.NEW)
