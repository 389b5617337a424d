"""Replies that end by length: whether a person is told which limit it was, and that they go on where there is room."""

from __future__ import annotations

from typing import Any

import pytest

from chatapp import llm, wire
from chatapp.errors import WindowFull
from chatapp.models import ContextPolicy, Conversation, Generation, Message, User
from chatapp.turn import run
from chatapp.turn.live import Live, LiveTurn
from tests.chatapp.conftest import after, ended, started
from tests.chatapp.fake_worker import FakeWorker
from tests.chatapp.test_turn_window import preset, talk, turns_in

pytestmark = pytest.mark.django_db(transaction=True)
RESERVE = 250


@pytest.fixture
def small(worker: FakeWorker) -> FakeWorker:
    """An engine with a window of 1,000 tokens, a token a byte."""
    worker.opened.max_model_len = 1000
    return worker


async def written_out(live: Live, worker: FakeWorker, user: User, frame: run.TurnFrame) -> LiveTurn:
    """A turn whose reply takes all the tokens that it may have."""
    turn = await started(live, user, frame)
    worker.write("b" * worker.requests[-1].sampling.max_tokens, request_id=turn.request_id)
    worker.finish(llm.FinishReason.LENGTH, request_id=turn.request_id)
    await ended(turn)
    return turn


def more(turn: LiveTurn) -> wire.TurnContinue:
    return wire.TurnContinue(turn.conversation_id, turn.message_id)


async def newest(turn: LiveTurn) -> Generation:
    return await Generation.objects.filter(message_id=turn.message_id).alatest("created_at")


async def test_max_tokens_is_the_limit_while_the_window_has_room(alice: User, small: FakeWorker) -> None:
    await preset(ContextPolicy.TRUNCATE, sampling={"max_tokens": 60})
    live = Live()
    turn = await talk(live, small, alice, 3)
    turn = await written_out(live, small, alice, after(turn, "go on"))
    assert len((await Message.objects.aget(id=turn.message_id)).text) == 60
    assert turn.end is not None
    assert turn.end.stats is not None
    assert (turn.end.stats.finish_reason, turn.end.stats.is_cut_by_window) == ("length", False)
    assert not (await newest(turn)).is_cut_by_window


@pytest.mark.parametrize("max_tokens", [120, 2000])
async def test_the_reserve_is_there_for_every_reply(alice: User, small: FakeWorker, max_tokens: int) -> None:
    """All of it for a reply that is not longer than the reserve: the window never cuts that one."""
    await preset(ContextPolicy.TRUNCATE, sampling={"max_tokens": max_tokens})
    live = Live()
    turn = await talk(live, small, alice, 1)
    for number in range(9):
        turn = await written_out(live, small, alice, after(turn, str(number) * (1 + 30 * number)))
        request, stats = small.requests[-1], turn.end and turn.end.stats
        assert request.sampling.max_tokens >= min(max_tokens, RESERVE)
        assert len(request.prompt_ids) + request.sampling.max_tokens <= 1000
        assert stats is not None
        assert stats.is_cut_by_window == (request.sampling.max_tokens < max_tokens)
        assert (await newest(turn)).is_cut_by_window == stats.is_cut_by_window


async def test_a_reply_that_the_window_has_cut_goes_on_and_turns_leave_for_it(alice: User, small: FakeWorker) -> None:
    await preset(ContextPolicy.TRUNCATE, sampling={"max_tokens": 600})
    live = Live()
    turn = await written_out(live, small, alice, after(await talk(live, small, alice, 6), "go on then"))
    first = small.requests[-1]
    assert (await newest(turn)).is_cut_by_window
    assert len(first.prompt_ids) + first.sampling.max_tokens == 1000
    assert turns_in(first)[0] == "0"
    turn = await written_out(live, small, alice, more(turn))
    second = small.requests[-1]
    begun = first.sampling.max_tokens
    assert bytes(second.prompt_ids.tolist()[-begun:]) == b"b" * begun, "it goes on from its own words"
    numbers = await newest(turn)
    assert numbers.num_left == numbers.num_outside > 0
    assert len((await Message.objects.aget(id=turn.message_id)).text) == begun + second.sampling.max_tokens


async def test_what_cannot_go_on_says_so_and_is_kept(alice: User, small: FakeWorker) -> None:
    await preset(ContextPolicy.FULL, sampling={"max_tokens": 600})
    live = Live()
    turn = await written_out(live, small, alice, after(await talk(live, small, alice, 6), "go on then"))
    before: dict[str, Any] = await Message.objects.values().aget(id=turn.message_id)
    with pytest.raises(
        WindowFull, match=r"cannot go on: the conversation would have 1,000 .* Let the oldest"
    ) as caught:
        await run.start(live, alice, more(turn))
    assert caught.value.detail["window"] == 1000
    assert await Message.objects.values().aget(id=turn.message_id) == before
    await Conversation.objects.aupdate(context_policy=ContextPolicy.TRUNCATE)
    for _ in range(2):  # until there is nothing left that could leave for it
        try:
            turn = await written_out(live, small, alice, more(turn))
        except WindowFull as error:
            assert "with nothing but its question" in error.message  # noqa: PT017 -- how often it goes on is no matter
            break
    else:
        pytest.fail("a reply does not outgrow the window")
    assert (await Message.objects.aget(id=turn.message_id)).status == "done"
