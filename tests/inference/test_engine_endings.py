"""How a reply ends: stop tokens, stop strings, the limit, the window; and what is refused before it begins."""

from __future__ import annotations

import pytest

from inference.errors import PromptTooLong, QueueFull
from inference.types import FinishReason, TokenEvent
from tests.inference.fakes import EOS, HELLO, finished, ids_of, make_engine, make_request, run, scripted, text_of

R = FinishReason


def test_stop_token_is_counted_and_neither_shown_nor_stored():
    events = run(make_engine(scripted(65, 66, EOS)), make_request("a", "go?", max_tokens=9))["a"]
    end = finished(events)
    assert (end.finish_reason, end.token_ids, end.stats.num_generated) == (R.STOP, (65, 66), 3)
    assert (ids_of(events), text_of(events)) == ([65, 66], "AB")


def test_reply_may_be_empty():
    end = finished(run(make_engine(scripted(EOS)), make_request("a", "go?"))["a"])
    assert (end.finish_reason, end.token_ids, end.stats.num_generated) == (R.STOP, (), 1)


def test_stop_string_takes_its_tokens_with_it():
    model = scripted(65, 66, *b"\nYou:")
    events = run(make_engine(model), make_request("a", "go?", max_tokens=20, stop=("\nYou:", "zzz")))["a"]
    end = finished(events)
    assert (end.finish_reason, text_of(events), end.token_ids) == (R.STOP, "AB", (65, 66))
    assert end.stats.num_generated == 7
    assert [e.token_ids for e in events if isinstance(e, TokenEvent)] == [(65,), (66,), (), (), (), (), ()]


def test_stop_string_that_begins_inside_a_token_leaves_no_ids():
    model = scripted(65, 258, ord(":"))  # 258 is "b\nU"
    events = run(make_engine(model), make_request("a", "go?", max_tokens=20, stop=("\nU:",)))["a"]
    assert (text_of(events), finished(events).token_ids) == ("Ab", None)


def test_text_held_back_for_a_stop_string_comes_with_the_end():
    model = scripted(65, *b"\nYo", EOS)
    events = run(make_engine(model), make_request("a", "go?", max_tokens=20, stop=("\nYou:",)))["a"]
    end = finished(events)
    assert (end.text, text_of(events), end.token_ids) == ("\nYo", "A\nYo", (65, *b"\nYo"))


def test_ids_and_text_go_together_at_every_moment():
    """What is saved in mid-reply can be continued: neither runs ahead of the other, even inside a token."""
    model = scripted(65, 258, ord("x"), 259, 260, EOS)  # 258 is "b\nU", of which "\nU" may begin the stop string
    events = run(make_engine(model), make_request("a", "go?", max_tokens=20, stop=("\nU:",)))["a"]
    tokens = [(e.token_ids, e.text) for e in events if isinstance(e, TokenEvent)]
    assert tokens == [((65,), "A"), ((), ""), ((258, 120), "b\nUx"), ((), ""), ((259, 260), "€")]
    assert ids_of(events) == [65, 258, 120, 259, 260]


def test_characters_are_never_cut_in_two():
    events = run(make_engine(scripted(259, 260, EOS)), make_request("a", "go?", max_tokens=9))["a"]
    tokens = [(e.token_ids, e.text) for e in events if isinstance(e, TokenEvent)]
    assert tokens == [((), ""), ((259, 260), "€")]


def test_half_a_character_at_the_limit_is_marked_and_its_ids_are_kept():
    events = run(make_engine(scripted(65, 259)), make_request("a", "go?", max_tokens=2))["a"]
    assert (text_of(events), finished(events).token_ids) == ("A\ufffd", (65, 259))


def test_end_of_the_window_ends_the_reply():
    engine = make_engine(max_model_len=40)
    events = run(engine, make_request("a", HELLO, max_tokens=100))["a"]
    assert finished(events).finish_reason == R.LENGTH
    assert len(ids_of(events)) == 10


def test_pool_smaller_than_the_model_is_the_window():
    engine = make_engine(pool_tokens=36)
    assert engine.max_model_len == 36
    assert len(ids_of(run(engine, make_request("a", HELLO, max_tokens=100))["a"])) == 6


# --- refused ----------------------------------------------------------------------------------------------------------


def test_window_beyond_the_model_is_refused():
    with pytest.raises(ValueError, match="max_model_len is 600, the model holds 512"):
        make_engine(max_model_len=600)


def test_prompt_that_can_never_fit_is_refused_with_numbers():
    engine = make_engine(max_model_len=30)
    with pytest.raises(PromptTooLong) as caught:
        engine.add_request(make_request("a", HELLO))
    assert (caught.value.num_prompt_tokens, caught.value.max_tokens) == (30, 30)
    assert not engine.has_work
    run(engine, make_request("a", HELLO[:29]))


@pytest.mark.parametrize(
    ("prompt", "fields", "message"),
    [([], {}, "at least one id"), ([1, 999], {}, "vocabulary"), ([-1], {}, "vocabulary"), ([1], {"seed": -4}, "seed")],
)
def test_senseless_request_is_refused(prompt, fields, message):
    with pytest.raises(ValueError, match=message):
        make_engine().add_request(make_request("a", prompt, **fields))


def test_id_in_use_is_refused_and_free_again_afterwards():
    engine = make_engine()
    engine.add_request(make_request("a", HELLO))
    with pytest.raises(ValueError, match="already"):
        engine.add_request(make_request("a", HELLO))
    run(engine)
    run(engine, make_request("a", HELLO))


def test_full_queue_refuses_and_leaves_the_others_alone():
    engine = make_engine(max_running=1, max_waiting=1)
    engine.add_request(make_request("a", HELLO))
    engine.add_request(make_request("b", HELLO))
    with pytest.raises(QueueFull):
        engine.add_request(make_request("c", HELLO))
    assert run(engine).keys() == {"a", "b"}
