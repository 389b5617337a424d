"""Side requests: what extends a conversation beside its turns, and must cost them nothing."""

from __future__ import annotations

import pytest

from inference.engine.llm_engine import LLMEngine
from inference.errors import EngineStopped, QueueFull
from inference.kvcache.block_pool import FRESH_S
from inference.types import FinishReason, ProgressEvent, Request, Stage, TokenEvent
from tests.inference.fake_models import MODEL_BYTES, GatedModel, Receiver, load_now, make_worker
from tests.inference.fakes import (
    HELLO,
    MarkerModel,
    expected_ids,
    finished,
    ids_of,
    make_engine,
    make_request,
    run,
    steps,
)
from tests.patience import PATIENCE_S

TURN = HELLO + " tell me a story"  # 46 tokens


def title(request_id: str, prompt, num_lasting_tokens: int = 0, **fields) -> Request:
    return make_request(
        request_id, prompt, is_side=True, is_low_retention=True, num_lasting_tokens=num_lasting_tokens, **fields
    )


def end_of(engine: LLMEngine, request: Request):
    return finished(run(engine, request)[request.request_id])


def add(engine: LLMEngine, *requests: Request) -> None:
    for request in requests:
        engine.add_request(request)


# --- beside turns -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_steps", [0, 1, 3, 9])
def test_running_turn_says_the_same_with_a_side_request_beside_it(temperature, num_steps):
    turn = make_request("turn", TURN, max_tokens=20, temperature=temperature, seed=5)
    side = title("side", HELLO + "title?", max_tokens=6)
    engine = make_engine()
    add(engine, turn)
    events = steps(engine, num_steps)
    for name, later in run(engine, side).items():
        events += [event for event in later if event.request_id == name]
    by_name = {name: [event for event in events if event.request_id == name] for name in ("turn", "side")}
    assert ids_of(by_name["turn"]) == expected_ids(turn)
    assert ids_of(by_name["side"]) == expected_ids(side)


def test_side_request_waits_while_a_turn_reads_and_writes_beside_one_that_writes():
    engine = make_engine(max_draft_tokens=0)
    add(engine, title("side", "what a title", max_tokens=3), make_request("turn", TURN, max_tokens=20))
    stages = []
    while engine.has_work:
        writers = {event.request_id for event in engine.step() if isinstance(event, TokenEvent)}
        running = {each.request_id: each.stage for each in engine._scheduler.running}
        stages.append((running.get("turn"), "side" in running or "side" in writers))
    assert (Stage.READING, True) not in stages
    assert (Stage.WRITING, True) in stages
    assert stages.index((Stage.WRITING, True)) > stages.index((Stage.READING, False))


def test_one_side_request_at_a_time():
    engine = make_engine()
    add(engine, *[title(name, name * 9, max_tokens=3) for name in "abc"])
    while engine.has_work:
        engine.step()
        assert engine.stats().num_running <= 1


def test_side_request_gives_way_within_a_step_and_resumes_with_a_hit():
    model = MarkerModel()
    engine = make_engine(model, pool_tokens=256)
    side = title("side", TURN, max_tokens=12)
    add(engine, side)
    events = steps(engine, 6)  # three for the prompt, then it writes
    assert any(isinstance(event, TokenEvent) for event in events)
    num_computed = model.num_computed_tokens
    turn = make_request("turn", "something else entirely", max_tokens=2)
    add(engine, turn)
    engine.schedule_step()
    assert [each.request_id for each in engine._scheduler.running] == ["turn"]
    engine.run_step()
    assert model.num_computed_tokens - num_computed == 12  # half of the turn's prompt, and of nobody else's
    rest = run(engine)
    assert list(finished(rest["turn"]).token_ids) == expected_ids(turn)
    end = finished(rest["side"])
    assert list(end.token_ids) == expected_ids(side)
    assert end.stats.num_recomputed == 0  # all of it was still there
    assert engine.stats().num_yields >= 1
    assert engine.stats().num_preemptions == 0


def test_side_request_is_the_first_to_lose_its_blocks_to_a_running_turn():
    engine = make_engine(pool_tokens=64, max_draft_tokens=0)
    turn = make_request("turn", "abcdefgh", max_tokens=50)
    side = title("side", "12345678", max_tokens=40)
    add(engine, turn)
    steps(engine, 2)
    ends = run(engine, side)
    assert list(finished(ends["turn"]).token_ids) == expected_ids(turn)
    end = finished(ends["side"])
    assert end.finish_reason == FinishReason.CANCELLED
    assert list(end.token_ids) == expected_ids(side)[: len(end.token_ids)]


def test_drafts_are_for_turns():
    """Who says the same again and again is guessed well; a side request beside it takes none of the guesses."""
    model = MarkerModel()
    model.script = {ord(a): ord(b) for a, b in zip("abcd", "bcda", strict=True)}
    engine = make_engine(model, pool_tokens=512)
    add(engine, make_request("turn", "abcdabcdabcd", max_tokens=60))
    steps(engine, 3)
    ends = run(engine, title("side", "dabcdabcdabcd", max_tokens=30))
    assert finished(ends["turn"]).stats.num_accepted > 0
    while engine.has_work:
        engine.step()
    alone = end_of(engine, title("alone", "dabcdabcdabcd", max_tokens=30))
    assert alone.stats.num_accepted > 0
    assert finished(ends["side"]).stats.num_drafted < alone.stats.num_drafted


# --- what it leaves behind --------------------------------------------------------------------------------------------


def second_turn(engine: LLMEngine, *, with_title: bool, pool_is_tight: bool = False):
    """A conversation of two turns; returns the end of the second, and how many tokens its history has."""
    first = end_of(engine, make_request("one", TURN, max_tokens=9, tags=("talk",)))
    history = [*TURN.encode(), *first.token_ids]
    if with_title:
        end = end_of(engine, title("title", [*history, *b"\nTitle?"], len(history), max_tokens=7, tags=("talk",)))
        assert end.finish_reason == FinishReason.LENGTH
        assert end.stats.num_reused_ram == len(history) - 1  # the last token of a reply is never computed
    if pool_is_tight:
        end_of(engine, make_request("other", "0123456789" * 2 + "!", max_tokens=2))
    return end_of(engine, make_request("two", [*history, *b"#next question"], max_tokens=9)), len(history)


def test_next_turn_reuses_the_whole_history_with_a_title_in_between_and_without():
    without, num_history = second_turn(make_engine(pool_tokens=256), with_title=False)
    assert without.stats.num_reused_ram == num_history - 1
    with_title, _ = second_turn(make_engine(pool_tokens=256), with_title=True)
    assert with_title.stats.num_reused_ram == num_history  # and the token that the title had to compute
    assert with_title.token_ids == without.token_ids


def test_tail_goes_first_and_the_history_stays():
    """Of 20 blocks the history has 14, the title takes 5 more, and whoever comes next gets these and the empty one."""
    end, num_history = second_turn(make_engine(pool_tokens=80), with_title=True, pool_is_tight=True)
    assert end.stats.num_reused_ram >= num_history - 1


def test_tail_is_not_written_to_disk_and_the_history_that_it_computed_is(tmp_path):
    history, tail = list(HELLO.encode()), list(b"\nTitle?")
    engine = make_engine(kv_dir=tmp_path, kv_disk_bytes=1 << 20)
    end = end_of(engine, title("title", [*history, *tail], len(history), max_tokens=8))
    assert end.stats.num_computed == len(history) + len(tail)  # the history had gone
    while engine.idle() == 0.0:
        pass
    engine.close()
    again = make_engine(kv_dir=tmp_path, kv_disk_bytes=1 << 20)
    stats = end_of(again, title("again", [*history, *tail], len(history), max_tokens=1)).stats
    assert stats.num_reused_disk == len(history) // 4 * 4


def test_public_head_of_a_side_request_is_everybodys():
    engine = make_engine(pool_tokens=256)
    fields = {"num_public_tokens": 12, "salt": b"alice", "tags": ("talk",)}
    end_of(engine, title("side", TURN, 40, max_tokens=3, **fields))
    end = end_of(engine, make_request("bob", TURN, salt=b"bob", num_public_tokens=12, max_tokens=1))
    assert end.stats.num_reused_ram == 12
    engine.purge("talk")
    engine.check_integrity()
    assert engine.cache.num_cached == 3 + 9  # the head, and what Bob has


# --- room -------------------------------------------------------------------------------------------------------------


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def of(name: str) -> dict:
    return {"salt": b"1" if name < "d" else b"2", "tags": (name,)}


def full_engine(clock: Clock) -> LLMEngine:
    """Three conversations of one user and one of another in a pool that holds no more."""
    engine = make_engine(pool_tokens=64, clock=clock)
    for name in "abcd":
        end_of(engine, make_request(name, name * 15, max_tokens=2, **of(name)))
    assert engine.stats().num_blocks_free == 0
    assert [num_cached(engine, name) for name in "abcd"] == [15] * 4
    return engine


def num_cached(engine: LLMEngine, name: str) -> int:
    return engine.count_cached(make_request("", name * 15, **of(name)))


def test_side_request_pushes_nothing_out_that_was_used_lately():
    clock = Clock()
    engine = full_engine(clock)
    before = engine.stats().cache.num_evicted_blocks
    end = end_of(engine, title("side", "a" * 15 + "title?", 15, max_tokens=9, **of("a")))
    assert (end.finish_reason, end.stats.num_prompt_tokens) == (FinishReason.CANCELLED, 0)
    assert engine.stats().cache.num_evicted_blocks == before
    assert [num_cached(engine, name) for name in "abcd"] == [15] * 4


def test_side_request_takes_what_nobody_has_used_for_long():
    clock = Clock()
    engine = full_engine(clock)
    clock.now += FRESH_S
    engine.protect("b", 60.0)
    end_of(engine, make_request("a2", "a" * 15, max_tokens=1, **of("a")))
    end = end_of(engine, title("side", "a" * 15 + "title?", 15, max_tokens=9, **of("a")))
    assert end.finish_reason == FinishReason.LENGTH
    assert [num_cached(engine, name) for name in "ab"] == [15, 15]
    assert min(num_cached(engine, name) for name in "cd") == 0


def test_side_requests_take_from_one_another():
    engine = make_engine(pool_tokens=64, clock=Clock())
    end_of(engine, make_request("a", "a" * 31, max_tokens=1))
    for n in range(5):
        assert end_of(engine, title(f"t{n}", f"{n}" * 20, max_tokens=9)).finish_reason == FinishReason.LENGTH
    assert end_of(engine, make_request("b", "a" * 31, max_tokens=1)).stats.num_reused_ram == 31


def test_side_request_that_grows_out_of_its_room_ends_with_what_it_has():
    clock = Clock()
    engine = make_engine(pool_tokens=64, clock=clock)
    end_of(engine, make_request("a", "a" * 31, max_tokens=1))
    side = title("side", "b" * 20, max_tokens=40)
    end = end_of(engine, side)
    assert end.finish_reason == FinishReason.CANCELLED
    assert 0 < len(end.token_ids) < 40
    assert list(end.token_ids) == expected_ids(side)[: len(end.token_ids)]
    assert end_of(engine, make_request("b", "a" * 31, max_tokens=1)).stats.num_reused_ram == 31


def test_side_request_without_room_holds_up_no_prefill():
    engine = full_engine(Clock())
    add(engine, title("side", "a" * 15 + "title?"), make_request("warm", "new words", is_prefill_only=True))
    ends = run(engine)
    assert finished(ends["side"]).finish_reason == FinishReason.CANCELLED
    assert finished(ends["warm"]).finish_reason == FinishReason.PREFILLED


# --- books ------------------------------------------------------------------------------------------------------------


def test_side_requests_are_counted_apart_and_in_no_hit_ratio():
    engine = make_engine(pool_tokens=256)
    second_turn(engine, with_title=True)
    stats = engine.stats()
    assert (stats.num_requests, stats.cache.since_start.num_requests) == (2, 2)
    assert (stats.cache.num_side, stats.cache.num_side_tokens) == (1, 1 + len("\nTitle?") + 7)


def test_side_requests_take_nobodys_place_in_the_queue():
    engine = make_engine(max_running=2, max_waiting=1)
    add(engine, title("s1", HELLO), title("s2", HELLO))
    with pytest.raises(QueueFull):
        add(engine, title("s3", HELLO))
    add(engine, *[make_request(name, name * 9) for name in "abc"])
    with pytest.raises(QueueFull):
        add(engine, make_request("d", HELLO))
    run(engine)


def test_side_request_can_be_cancelled_wherever_it_is():
    engine = make_engine()
    add(engine, title("running", HELLO, max_tokens=50), title("waiting", "hello", max_tokens=50))
    steps(engine, 4)
    engine.cancel("running")
    engine.cancel("waiting")
    ends = run(engine)
    assert {finished(events).finish_reason for events in ends.values()} == {FinishReason.CANCELLED}


# --- several models ---------------------------------------------------------------------------------------------------


def test_side_request_is_not_worth_loading_a_model():
    worker = make_worker({"m": make_engine()})
    worker.start()
    with pytest.raises(EngineStopped, match="m is not loaded"):
        worker.submit("m", title("side", "hello"), lambda event: None)
    assert worker.shutdown(PATIENCE_S)


def test_side_work_of_one_model_waits_for_the_turns_of_another():
    gated = GatedModel()
    worker = make_worker({"busy": make_engine(gated), "other": make_engine()})
    worker.start()
    load_now(worker, "busy")
    load_now(worker, "other")
    turn, side, seen = Receiver(), Receiver(), []

    def notes(receiver: Receiver):
        return lambda event: (seen.append(event), receiver(event))

    worker.submit("busy", make_request("turn", HELLO, max_tokens=20), notes(turn))
    assert gated.has_entered.wait(PATIENCE_S)
    worker.submit("other", title("side", HELLO), notes(side))
    gated.gate.set()
    assert finished(turn.wait()).finish_reason == FinishReason.LENGTH
    assert finished(side.wait()).finish_reason == FinishReason.LENGTH
    names = [event.request_id for event in seen if not isinstance(event, ProgressEvent)]
    assert names == ["turn"] * 21 + ["side"] * 5
    assert worker.shutdown(PATIENCE_S)


def test_side_work_holds_up_no_model_that_is_waited_for():
    """There is room for one model; the one that has a title to write leaves all the same."""
    gated = GatedModel()
    worker = make_worker({"m": make_engine(gated), "next": make_engine()}, max_bytes=MODEL_BYTES)
    worker.start()
    load_now(worker, "m")
    side, turn = Receiver(), Receiver()
    worker.submit("m", title("side", HELLO, max_tokens=200), side)
    assert gated.has_entered.wait(PATIENCE_S)
    worker.submit("next", make_request("turn", HELLO), turn)
    gated.gate.set()
    assert finished(turn.wait()).finish_reason == FinishReason.LENGTH
    assert finished(side.wait()).finish_reason == FinishReason.CANCELLED
    assert worker.shutdown(PATIENCE_S)
