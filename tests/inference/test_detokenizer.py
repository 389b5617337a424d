"""Text comes out as the ids go in: never half a character, never part of a stop string, nothing lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.formats.model_file import open_model_file
from inference.tokenizer.detokenizer import Detokenizer, _StopMatcher
from inference.tokenizer.tokenizer import Tokenizer
from tests.examples import examples
from tests.inference.tiny_tokenizers import byte_level_spec, sentencepiece_spec

TOKENIZERS = {"byte-level": Tokenizer(byte_level_spec()), "SentencePiece": Tokenizer(sentencepiece_spec())}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def pieces(tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...] = ()) -> list[str]:
    detokenizer = Detokenizer(tokenizer, stop)
    return [*(detokenizer.add(token_id) for token_id in ids), detokenizer.finish()]


def cut_at_first_stop(text: str, stop: tuple[str, ...]) -> str:
    """The plain version: the stop string that is complete first; of those that end together the longest."""
    ends = [(text.find(one) + len(one), -len(one)) for one in stop if one in text]
    if not ends:
        return text
    end, minus_length = min(ends)
    return text[: end + minus_length]


any_ids = st.lists(st.integers(0, min(t.vocab_size for t in TOKENIZERS.values()) - 1), max_size=40)
stops = st.lists(st.text("abé h<|", min_size=1, max_size=4), max_size=3).map(tuple)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=examples(300), deadline=None)
@given(ids=any_ids, stop=stops)
def test_the_pieces_together_are_what_decode_says(name: str, ids: list[int], stop: tuple[str, ...]) -> None:
    tokenizer = TOKENIZERS[name]
    assert "".join(pieces(tokenizer, ids, stop)) == cut_at_first_stop(tokenizer.decode(ids), stop)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=examples(300), deadline=None)
@given(text=st.text(max_size=30) | st.text("ab h\n", max_size=30), stop=stops)
def test_text_comes_back_as_it_was(name: str, text: str, stop: tuple[str, ...]) -> None:
    tokenizer = TOKENIZERS[name]
    found = pieces(tokenizer, tokenizer.encode(text), stop)
    assert "".join(found) == cut_at_first_stop(text, stop)
    assert all("\ufffd" not in piece for piece in found) or "\ufffd" in text


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=examples(200), deadline=None)
@given(text=st.text("ab", max_size=30), stop=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3).map(tuple))
def test_no_piece_ever_shows_what_a_stop_string_takes_back(name: str, text: str, stop: tuple[str, ...]) -> None:
    tokenizer = TOKENIZERS[name]
    final = cut_at_first_stop(text, stop)
    shown = ""
    for piece in pieces(tokenizer, tokenizer.encode(text), stop):
        shown += piece
        assert final.startswith(shown)


def test_a_character_is_shown_when_its_last_byte_has_come(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("é😀")
    assert [piece for piece in pieces(tokenizer, ids) if piece] == ["é", "😀"]
    assert len(ids) >= 6


def test_half_a_character_at_the_end_becomes_the_replacement_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a😀")[:-1]
    found = pieces(tokenizer, ids)
    assert found[-1] == "\ufffd"
    assert "".join(found) == tokenizer.decode(ids) == "a\ufffd"


def test_a_possible_stop_string_is_held_back_until_it_is_decided(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ("###",))
    shown = [detokenizer.add(token_id) for token_id in tokenizer.encode("a##b")]
    assert [piece for piece in shown if piece] == ["a", "##b"]
    assert not detokenizer.is_stopped
    assert detokenizer.finish() == ""


def test_what_was_held_back_comes_at_the_end_when_no_stop_string_came(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ("###",))
    for token_id in tokenizer.encode("a##"):
        detokenizer.add(token_id)
    assert detokenizer.finish() == "##"
    assert detokenizer.finish() == ""


def test_after_a_stop_string_nothing_comes(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ("stop",))
    shown = "".join(map(detokenizer.add, tokenizer.encode("go stop more")))
    assert shown == "go "
    assert detokenizer.is_stopped
    assert (detokenizer.add(tokenizer.encode("x")[0]), detokenizer.finish()) == ("", "")


def test_of_overlapping_stop_strings_the_one_complete_first_counts(tokenizer: Tokenizer) -> None:
    assert "".join(pieces(tokenizer, tokenizer.encode("xabcd"), ("abcd", "bc"))) == "xa"
    assert "".join(pieces(tokenizer, tokenizer.encode("xabcd"), ("abc", "bc"))) == "x"


def test_spaces_are_neither_lost_nor_doubled(tokenizer: Tokenizer) -> None:
    for text in ("hello world", " hello", "  hello  world ", "hello ", " ", "\n hello"):
        assert "".join(pieces(tokenizer, tokenizer.encode(text))) == text


def test_a_continued_reply_keeps_the_space_that_joins_it() -> None:
    tokenizer = TOKENIZERS["SentencePiece"]
    (space_hello,) = (i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b" hello")
    assert Detokenizer(tokenizer).add(space_hello) == "hello"
    assert Detokenizer(tokenizer, is_continuation=True).add(space_hello) == " hello"


def test_the_cost_of_a_token_does_not_grow_with_the_reply(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each character is looked at once, and no more is kept than a stop string may take back."""
    num_looks, look = 0, _StopMatcher.add

    def look_and_count(self: _StopMatcher, char: str) -> bool:
        nonlocal num_looks
        num_looks += 1
        return look(self, char)

    monkeypatch.setattr(_StopMatcher, "add", look_and_count)
    stop = "a" * 500 + "b"
    detokenizer = Detokenizer(tokenizer, (stop,))
    num_shown = 0
    for token_id in tokenizer.encode("a" * 3000):
        num_shown += len(detokenizer.add(token_id))
        assert len(detokenizer._held) < len(stop)
    assert num_shown + len(detokenizer._held) == num_looks == 3000


@pytest.mark.model
def test_the_default_model_spells_an_emoji_over_several_tokens(model_path: Path) -> None:
    tokenizer = Tokenizer(open_model_file(model_path).tokenizer_spec)
    text = "naïve 北京 🇳🇴👩‍👩‍👧 \n\n  end "
    found = pieces(tokenizer, tokenizer.encode(text))
    assert "".join(found) == text
    assert "" in found[:-1]
