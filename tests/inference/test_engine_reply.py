"""Reply: whatever tokens and stop strings come, ids and text agree at every moment."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.reply import Reply
from inference.tokenizer.detokenizer import Detokenizer
from tests.examples import examples
from tests.inference.fakes import ByteTokenizer

TOKENS = st.lists(st.sampled_from([*b"ab\nU: ", 257, 258, 259, 260, 0xE2, 0xFF]), max_size=24)
STOPS = st.lists(st.sampled_from(["\nU", "ab", "ba", "€", "a\n", ": ", "\ufffd", "UU:"]), max_size=2, unique=True)


class SpaceTokenizer(ByteTokenizer):
    """Drops the first space of a text, as SentencePiece vocabularies do."""

    strips_leading_space = True

    def decode(self, ids) -> str:
        return super().decode(ids).removeprefix(" ")


@settings(max_examples=examples(400), deadline=None)
@given(
    tokens=TOKENS,
    stop=STOPS,
    is_continuation=st.booleans(),
    tokenizer=st.sampled_from([ByteTokenizer(), SpaceTokenizer()]),
)
def test_ids_decode_to_the_text_at_every_moment(tokens, stop, is_continuation, tokenizer):
    def decode(ids) -> str:
        return ByteTokenizer().decode(ids) if is_continuation else tokenizer.decode(ids)

    reply = Reply(tokenizer, tuple(stop), is_continuation=is_continuation)
    plain = Detokenizer(tokenizer, tuple(stop), is_continuation=is_continuation)
    ids, text, expected, used = [], "", "", []
    for token_id in tokens:
        used.append(token_id)
        expected += plain.add(token_id)
        new_ids, new_text = reply.add(token_id)
        ids += new_ids
        text += new_text
        assert decode(ids) == text
        if reply.is_stopped:
            break
    all_ids, rest = reply.finish()
    text += rest
    assert text == expected + plain.finish()
    heads = [used[:n] for n in range(len(used) + 1)]
    if all_ids is None:
        assert text not in map(decode, heads)
    else:
        assert decode(all_ids) == text
        assert list(all_ids) in heads
        assert list(all_ids[: len(ids)]) == ids
        if not reply.is_stopped:
            assert list(all_ids) == used


@pytest.mark.parametrize(("is_continuation", "text"), [(False, "hi"), (True, " hi")])
def test_leading_space_belongs_to_a_continued_reply_only(is_continuation, text):
    reply = Reply(SpaceTokenizer(), (), is_continuation=is_continuation)
    assert "".join(reply.add(token_id)[1] for token_id in b" hi") == text
    assert reply.finish() == (tuple(b" hi"), "")
