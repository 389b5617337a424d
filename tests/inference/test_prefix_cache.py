"""PrefixCache: what is found, who shares it, what is evicted or purged; checked row by row against markers."""

from __future__ import annotations

import numpy as np
import pytest

from inference.kvcache import keys
from inference.kvcache.block_table import BlockTable
from tests.inference.cache_world import ROOT, CacheWorld, P
from tests.inference.fakes import markers_of

IDS = list(range(10, 30))


def test_cold_cache_reuses_nothing_and_a_warm_one_all_but_the_last_token():
    cache = CacheWorld()
    assert cache.serve(IDS) == 0
    assert cache.find(IDS) == 19
    assert cache.find([*IDS, 1, 2, 3]) == 20


@pytest.mark.parametrize("length", range(1, 14))
def test_reuse_is_token_exact_at_every_length(length):
    cache = CacheWorld()
    cache.serve(IDS[:length])
    assert cache.find([*IDS[:length], 99]) == length
    assert cache.find(IDS[:length]) == length - 1
    assert cache.find([*IDS[: length - 1], 99, 98]) == length - 1


def test_divergence_inside_a_block_reuses_the_rows_before_it():
    cache = CacheWorld()
    cache.serve(IDS)
    assert cache.find([*IDS[:10], 99, *IDS[11:]]) == 10


def test_hit_stops_at_the_first_missing_block():
    cache = CacheWorld(num_blocks=8)
    cache.serve(IDS)
    block_id = next(b for b in range(8) if cache.cache.blocks.rows(b).tolist() == IDS[8:12])
    cache.cache._forget(block_id)
    cache.cache.check_integrity()
    assert cache.find([*IDS, 5]) == 8


def test_only_computed_rows_are_published():
    cache = CacheWorld()
    cache.serve(IDS, num_computed=10)
    assert cache.find(IDS) == 10


def test_nothing_is_found_before_it_is_computed():
    cache = CacheWorld()
    first, _ = cache.start(IDS)
    assert cache.find(IDS) == 0
    cache.compute(first, IDS, 9)
    assert cache.find(IDS) == 8
    cache.end(first, IDS, 9)


def test_two_copies_of_a_block_become_one():
    cache = CacheWorld()
    first, _ = cache.start(IDS)
    second, _ = cache.start(IDS)
    cache.compute(first, IDS)
    cache.compute(second, IDS)
    assert first.block_ids == second.block_ids
    assert cache.cache.pool.num_used == 5
    cache.end(first, IDS)
    assert cache.cache.pool.num_used == 5
    cache.end(second, IDS)
    assert cache.cache.pool.num_used == 0


def test_salts_separate_and_the_same_salt_shares():
    cache = CacheWorld()
    cache.serve(IDS, salt=b"alice")
    assert cache.find(IDS, salt=b"bob") == 0
    assert cache.find(IDS) == 0
    assert cache.find(IDS, salt=b"alice") == 19


def test_public_head_is_shared_and_the_border_block_is_not():
    cache = CacheWorld()
    cache.serve(IDS, salt=b"alice", num_public_tokens=10)
    assert cache.find(IDS, salt=b"bob", num_public_tokens=10) == 8
    assert cache.find(IDS, salt=b"alice", num_public_tokens=10) == 19


def test_private_child_of_a_public_parent_is_not_copied_from():
    """The rows agree, but a hit would tell Bob by its speed what Alice has written."""
    cache = CacheWorld()
    cache.serve([*IDS[:8], 7, 7, 7, 7, 7], salt=b"alice", num_public_tokens=8)
    assert cache.find([*IDS[:8], 7, 7, 7, 9], salt=b"bob", num_public_tokens=8) == 8
    assert cache.find([*IDS[:8], 7, 7, 7, 9], salt=b"alice", num_public_tokens=8) == 11


def test_salt_is_not_a_plain_tag_of_the_root():
    assert keys.salted_key(ROOT, b"") != ROOT
    assert keys.root_key(model_fingerprint="m", tokenizer_fingerprint="t", kv_format="f", adapter_digest="a") != ROOT
    fields = [("xy", "", "", ""), ("x", "y", "", ""), ("", "xy", "", ""), ("", "", "xy", ""), ("", "", "", "xy")]
    roots = {
        keys.root_key(model_fingerprint=m, tokenizer_fingerprint=t, kv_format=f, adapter_digest=a)
        for m, t, f, a in fields
    }
    assert len(roots) == len(fields)


def test_keys_are_the_same_in_every_process():
    assert keys.block_key(ROOT, np.arange(4, dtype=np.int32)).hex() == "92533d014d9a0b67ff972aaf1f3069c6"


def test_collision_is_a_miss_and_is_counted(monkeypatch):
    monkeypatch.setattr("inference.kvcache.block_table.block_key", lambda link, token_ids: b"always the same")
    cache = CacheWorld()
    cache.serve(IDS[:5])
    assert cache.find([1, 2, 3, 4, 5]) == 0
    assert cache.cache.num_collisions == 1
    table, _ = cache.start([1, 2, 3, 4, 5])
    cache.compute(table, [1, 2, 3, 4, 5])
    assert cache.storage.read(table.block_ids, 5) == markers_of([1, 2, 3, 4, 5])  # not swapped
    cache.end(table, [1, 2, 3, 4, 5])
    assert cache.find([*IDS[:4], 77]) == 4


def test_children_are_evicted_before_their_parents():
    cache = CacheWorld(num_blocks=6)
    cache.serve(IDS)  # five blocks
    cache.serve([1, 2, 3, 4, 5, 6, 7, 8])  # takes the empty one and evicts one
    assert cache.find([*IDS, 1], salt=b"") == 16


def test_recently_found_blocks_survive():
    cache = CacheWorld(num_blocks=6)
    cache.serve(IDS[:8])
    cache.serve([1, 2, 3, 4, 5, 6, 7, 8])
    cache.find([*IDS[:8], 0])
    cache.serve([90, 91, 92, 93, 94, 95, 96, 97, 98, 99, 100, 101])
    assert cache.find([*IDS[:8], 0]) == 8


def test_allocation_does_not_evict_its_own_hits():
    """Four cached blocks and none to spare: the hits count as taken, though nobody references them yet."""
    cache = CacheWorld(num_blocks=5)
    cache.serve(IDS[:16])
    other, _ = cache.start([70])
    assert cache.cache.allocate(BlockTable(), np.array([*IDS[:16], 1, 2], np.int32)) is None
    cache.end(other, [70], 0)
    assert cache.find([*IDS[:16], 1, 2]) == 16


def test_failed_allocation_changes_nothing():
    cache = CacheWorld(num_blocks=4)
    cache.serve(IDS[:8])
    order = list(cache.cache.pool.idle_blocks())
    table = BlockTable()
    assert cache.cache.allocate(table, np.array([*IDS[:8], *range(20)], np.int32)) is None
    assert cache.cache.allocate(table, np.array(IDS[:8], np.int32), num_spare=3) is None
    assert list(cache.cache.pool.idle_blocks()) == order
    assert table.block_ids == []


def test_rows_are_not_copied_when_their_block_is_the_last_that_can_be_had():
    cache = CacheWorld(num_blocks=2)
    cache.serve(IDS[:7])
    assert cache.serve([*IDS[:6], 9]) == 4
    cache = CacheWorld(num_blocks=3)
    cache.serve(IDS[:7])
    assert cache.serve([*IDS[:6], 9]) == 6


def test_partly_filled_block_gives_way_to_one_that_contains_it():
    cache = CacheWorld()
    cache.serve(IDS[:6])
    assert cache.cache.num_cached == 2
    cache.serve(IDS[:7])
    assert cache.cache.num_cached == 2
    cache.serve(IDS[:8])
    assert cache.cache.num_cached == 2
    cache.serve(IDS[:5])
    assert cache.cache.num_cached == 2


def test_side_request_leaves_the_conversations_tail_alone_and_goes_first():
    cache = CacheWorld(num_blocks=8)
    cache.serve(IDS[:10])  # two full blocks and two rows
    side = [*IDS[:10], 77, 78, 79, 80, 81, 82]
    assert cache.serve(side, is_low_retention=True) == 10
    assert cache.cache.num_cached == 5  # the tail is still there, beside the block of the side request that contains it
    assert cache.find([*side, 1]) == 16
    cache.serve([*range(200, 200 + 5 * P)])  # the two empty ones, and then what the side request has left
    assert cache.find([*IDS[:10], 1]) == 10


def test_conversation_keeps_its_own_tail_even_if_a_side_request_has_it():
    cache = CacheWorld()
    cache.serve([*IDS[:10], 77, 78], is_low_retention=True)
    cache.serve(IDS[:10])
    assert cache.cache.num_cached == 4


def test_block_of_a_side_request_that_others_use_is_kept_like_theirs():
    cache = CacheWorld(num_blocks=4)
    cache.serve(IDS[:8], is_low_retention=True)
    cache.find([*IDS[:8], 1])
    cache.serve([1, 2, 3, 4])
    cache.serve([5, 6, 7, 8])
    cache.serve([11, 12, 13, 14])
    assert cache.find([*IDS[:4], 1]) == 4


def test_purge_forgets_and_zeroes_what_only_this_tag_has_used():
    cache = CacheWorld()
    cache.serve(IDS, salt=b"a", num_public_tokens=9, tags={"x"})
    cache.serve([*IDS[:14], 3, 3, 3], salt=b"a", num_public_tokens=9, tags={"y"})
    assert cache.cache.purge("x") == 2
    cache.cache.check_integrity()
    assert not set(markers_of(IDS)[14:]) & set(map(int, cache.storage.rows.flat))
    assert cache.find(IDS, salt=b"a", num_public_tokens=9, tags={"y"}) == 14
    assert cache.cache.purge("y") == 3
    assert cache.find(IDS, salt=b"b", num_public_tokens=9) == 8
    assert set(map(int, cache.storage.rows.flat)) == {0, *markers_of(IDS)[:8]}


def test_purge_of_blocks_in_use_zeroes_them_when_they_are_released():
    cache = CacheWorld()
    table, _ = cache.start(IDS, tags={"x"})
    cache.compute(table, IDS, 9)
    cache.cache.disown(table, "x")
    assert cache.cache.purge("x") == 2
    assert cache.find(IDS) == 0
    cache.compute(table, IDS)
    assert cache.storage.read(table.block_ids, 20) == markers_of(IDS)
    cache.end(table, IDS)
    assert not cache.storage.rows.any()
    assert cache.cache.num_cached == 0


def test_purge_before_anything_is_published_keeps_it_that_way():
    cache = CacheWorld()
    table, _ = cache.start(IDS, tags={"x"})
    cache.cache.disown(table, "x")
    assert cache.cache.purge("x") == 0
    cache.compute(table, IDS)
    cache.end(table, IDS)
    assert cache.cache.num_cached == 0


def test_purge_of_one_tag_leaves_a_table_with_another_one_alone():
    cache = CacheWorld()
    table, _ = cache.start(IDS, tags={"x", "y"})
    cache.compute(table, IDS, 9)
    cache.cache.disown(table, "x")
    assert cache.cache.purge("x") == 0
    cache.compute(table, IDS)
    cache.end(table, IDS)
    assert cache.find(IDS, tags={"y"}) == 19


def test_purge_leaves_the_blocks_of_those_without_a_tag():
    cache = CacheWorld()
    cache.serve(IDS, tags={"x"})
    cache.serve(IDS[:12])
    cache.cache.purge("x")
    assert cache.find(IDS) == 12


def test_untrusted_kv_is_forgotten_with_all_that_follows_it():
    cache = CacheWorld()
    cache.serve(IDS[:4])
    bad, _ = cache.start(IDS[:13])
    cache.compute(bad, IDS[:13])
    later, _ = cache.start(IDS)
    cache.compute(later, IDS)
    cache.end(bad, IDS[:13], is_valid=False)
    assert cache.find(IDS) == 4
    cache.end(later, IDS)
    assert cache.find(IDS) == 4


def test_switched_off_cache_finds_and_keeps_nothing():
    cache = CacheWorld(is_enabled=False)
    assert cache.serve(IDS) == 0
    assert cache.find(IDS) == 0
    assert cache.cache.num_cached == 0
    assert not cache.storage.rows.any()


def test_clear_forgets_everything():
    cache = CacheWorld()
    cache.serve(IDS)
    table, _ = cache.start(IDS)
    cache.cache.clear()
    cache.cache.check_integrity()
    assert cache.find(IDS) == 0
    cache.compute(table, IDS)
    cache.end(table, IDS)
    assert cache.cache.num_cached == 0
