"""KV that requests share and that is forgotten: public heads, purges, side requests, a cleared cache."""

from __future__ import annotations

from tests.inference.fakes import HELLO, expected_ids, finished, make_engine, make_request, markers_of, run, steps


def reused(engine, request) -> int:
    return finished(run(engine, request)[request.request_id]).stats.num_reused_ram


def test_other_user_reuses_exactly_the_public_head():
    engine = make_engine(pool_tokens=512)
    alice = {"salt": b"alice", "num_public_tokens": 14}
    bob = {"salt": b"bob", "num_public_tokens": 14}
    assert reused(engine, make_request("a", HELLO, **alice)) == 0
    assert reused(engine, make_request("b", HELLO, **bob)) == 12
    assert reused(engine, make_request("c", HELLO, **alice)) == 30


def test_purge_leaves_nothing_of_a_conversation_in_the_pool():
    engine = make_engine(pool_tokens=512)
    run(engine, make_request("a", HELLO, num_public_tokens=9, tags=("talk",), max_tokens=9))
    assert engine.purge("talk") > 0
    engine.check_integrity()
    rows = {int(row) for row in engine.cache._storage.rows.flat}
    assert rows == {0, *markers_of(HELLO.encode()[:8])}
    assert reused(engine, make_request("b", HELLO, num_public_tokens=9)) == 8


def test_purge_in_mid_reply_lets_it_end_and_keeps_nothing():
    engine = make_engine(max_running=1)
    running = make_request("a", HELLO, tags=("talk",), max_tokens=9)
    waiting = make_request("b", HELLO[:9], tags=("talk",), max_tokens=9)
    engine.add_request(running)
    engine.add_request(waiting)
    events = steps(engine, 4)
    engine.purge("talk")
    for name, later in run(engine).items():
        events += [event for event in later if event.request_id == name]
    assert finished([e for e in events if e.request_id == "a"]).token_ids == tuple(expected_ids(running))
    assert finished([e for e in events if e.request_id == "b"]).token_ids == tuple(expected_ids(waiting))
    assert engine.stats().num_blocks_cached == 0
    assert not engine.cache._storage.rows.any()


def test_side_request_does_not_cost_the_conversation_its_cache():
    engine = make_engine(pool_tokens=48)
    run(engine, make_request("a", HELLO, max_tokens=2))
    side = make_request("title", HELLO + "title?", is_low_retention=True, max_tokens=2)
    assert reused(engine, side) == 30
    run(engine, make_request("other", "12345678", max_tokens=1))
    assert reused(engine, make_request("b", HELLO + "next", max_tokens=2)) == 30


def test_cleared_cache_is_cold():
    engine = make_engine()
    run(engine, make_request("a", HELLO))
    engine.clear_cache()
    assert reused(engine, make_request("b", HELLO)) == 0


def test_switched_off_cache_zeroes_what_it_gives_back():
    engine = make_engine(is_prefix_cache_enabled=False)
    run(engine, make_request("a", HELLO))
    assert engine.stats().num_blocks_free == 32
    assert not engine.cache._storage.rows.any()
