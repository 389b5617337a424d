"""GoneBlocks: what a miss is explained with; and what a request says that it has left in the cache."""

from __future__ import annotations

import numpy as np
import pytest

from inference.engine.llm_engine import LLMEngine
from inference.kvcache.gone_blocks import GoneBlocks
from inference.types import MissCause
from tests.inference.cache_world import CacheWorld, P
from tests.inference.fakes import HELLO, finished, ids_of, make_engine, make_request, run

IDS = list(range(10, 30))
HERE, THERE = b"here", b"there"


def rows(*token_ids: int) -> np.ndarray:
    return np.array(token_ids, np.int32)


def test_a_cause_is_told_for_what_is_gone_at_that_place_and_nothing_else():
    gone = GoneBlocks(8)
    gone.add(HERE, rows(1, 2, 3, 4), MissCause.EVICTED)
    assert gone.cause(HERE, rows(1, 2, 3, 4), 0) == MissCause.EVICTED
    assert gone.cause(THERE, rows(1, 2, 3, 4), 0) == MissCause.NEW
    assert gone.cause(HERE, rows(5, 2, 3, 4), 0) == MissCause.NEW
    assert gone.cause(HERE, rows(1, 2, 9), 1) == MissCause.EVICTED  # two rows of it would have served
    assert gone.cause(HERE, rows(1, 2, 9), 2) == MissCause.NEW  # and were found


def test_no_token_of_what_is_gone_is_kept():
    gone = GoneBlocks(8)
    secret = rows(48_611, 1_234_567, 48_611, 7_654_321)
    gone.add(HERE, secret, MissCause.PURGED)
    kept = b"".join(key for places in gone._at.values() for key in places)
    assert len(kept) == 16
    assert all(row.tobytes() not in kept for row in secret)
    assert len(set(np.frombuffer(kept, np.int32).tolist())) == 4  # equal tokens have digests of their own


def test_the_one_that_would_have_given_most_counts_then_the_last():
    gone = GoneBlocks(8)
    gone.add(HERE, rows(1, 2, 3), MissCause.PURGED)
    gone.add(HERE, rows(1, 2, 7, 8), MissCause.EVICTED)
    assert gone.cause(HERE, rows(1, 2, 3, 4), 0) == MissCause.PURGED
    assert gone.cause(HERE, rows(1, 2, 5), 0) == MissCause.EVICTED
    gone.add(HERE, rows(1, 2, 3), MissCause.EVICTED)
    assert gone.cause(HERE, rows(1, 2, 3, 4), 0) == MissCause.EVICTED


def test_what_is_cached_again_is_not_gone():
    gone = GoneBlocks(8)
    gone.add(HERE, rows(1, 2), MissCause.EVICTED)
    gone.add(HERE, rows(1, 2, 3, 4), MissCause.EVICTED)
    gone.discard(HERE, rows(1, 2, 3))
    assert gone.cause(HERE, rows(1, 2), 0) == MissCause.EVICTED  # by the longer one
    gone.discard(HERE, rows(1, 2, 3, 4))
    assert gone.cause(HERE, rows(1, 2, 3, 4), 0) == MissCause.NEW
    assert not gone._at
    assert not any(gone._rows.values())


def test_it_forgets_the_oldest_and_evictions_push_out_no_purge():
    gone = GoneBlocks(2)
    gone.add(HERE, rows(0), MissCause.PURGED)
    for token in (1, 2, 3):
        gone.add(HERE, rows(token), MissCause.EVICTED)
    causes = [gone.cause(HERE, rows(token), 0) for token in range(4)]
    assert causes == [MissCause.PURGED, MissCause.NEW, MissCause.EVICTED, MissCause.EVICTED]


@pytest.mark.parametrize("length", range(1, 2 * P + 2))
def test_a_partly_filled_block_that_was_evicted_is_known_as_such(length):
    cache = CacheWorld()
    cache.serve(IDS[:length])
    cache.cache.forget_ram()
    cache.start([*IDS[:length], 99])
    assert cache.reuse.cause == MissCause.EVICTED
    assert cache.reuse.num_tokens == 0


def test_rows_of_an_evicted_block_with_another_end_are_known_as_such():
    cache = CacheWorld()
    cache.serve(IDS[: P + 2])
    cache.cache._forget(int(np.flatnonzero(cache.cache.blocks.num_rows == 2)[0]), MissCause.EVICTED)
    cache.start([*IDS[: P + 1], 99, 98])
    assert (cache.reuse.num_tokens, cache.reuse.cause) == (P, MissCause.EVICTED)


# --- what a request has left ------------------------------------------------------------------------------------------


def kept_and_found(engine: LLMEngine, **fields) -> tuple[int, int]:
    """What a request says it has left, and what is found of its prompt and reply."""
    events = run(engine, make_request("a", HELLO, **fields))["a"]
    whole = make_request("b", [*HELLO.encode(), *(ids_of(events) or ()), 3, 5])
    return finished(events).stats.num_kept, engine.count_cached(whole)


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_a_request_says_what_it_has_left(max_tokens):
    num_kept, num_found = kept_and_found(make_engine(), max_tokens=max_tokens)
    assert num_kept == num_found == len(HELLO) + max_tokens - 1  # of the last token there is no KV


def test_a_request_that_is_cancelled_while_it_is_read_has_left_what_was_computed():
    engine = make_engine(max_batch_tokens=8)
    engine.add_request(make_request("a", HELLO))
    engine.step()
    engine.cancel("a")
    (event,) = [event for event in engine.step() if event.request_id == "a"]
    assert event.stats.num_kept == 8
    assert engine.count_cached(make_request("b", HELLO)) == 8


def test_nothing_is_left_where_nothing_is_kept():
    assert kept_and_found(make_engine(is_prefix_cache_enabled=False)) == (0, 0)
