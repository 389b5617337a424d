"""Long conversations: what of them reaches the engine, how rarely that begins elsewhere, and what brings turns back."""

from __future__ import annotations

import itertools
import math
import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatapp import llm, wire
from chatapp.errors import WindowFull
from chatapp.models import ContextPolicy, Conversation, Generation, Message, Preset, User
from chatapp.turn import run
from chatapp.turn.live import Live, LiveTurn
from chatapp.turn.past import Past, past_of, rules_of
from chatapp.turn.prompt import plan_turn
from inference.types import Request
from tests.chatapp import rows
from tests.chatapp.conftest import after, send, whole
from tests.chatapp.fake_worker import END, HEADERS, FakeWorker

pytestmark = pytest.mark.django_db(transaction=True)
SYSTEM = "Be brief."


@pytest.fixture
def small(worker: FakeWorker) -> FakeWorker:
    """An engine with a window of 1,000 tokens, a token a byte, a quarter of them for the reply."""
    worker.opened.max_model_len = 1000
    return worker


async def preset(policy: ContextPolicy, **changes: Any) -> Preset:
    return await Preset.objects.acreate(
        name=policy.value, is_default=True, system_prompt=SYSTEM, context_policy=policy, has_recall=False, **changes
    )


async def talk(
    live: Live, worker: FakeWorker, user: User, num_turns: int, *, since: LiveTurn | None = None
) -> LiveTurn:
    """So many turns of 40 + 40 characters, numbered."""
    turn = since
    for number in range(num_turns):
        text = f"question {number} ".ljust(40, ".")
        turn = await whole(live, worker, user, send(text) if turn is None else after(turn, text), "a" * 40)
    assert turn is not None
    return turn


def turns_in(request: Request) -> list[str]:
    """The numbers of the questions in a prompt, and whether its shape is right: system, then question and answer."""
    ids = request.prompt_ids.tolist()
    roles = [name for token in ids for name, header in HEADERS.items() if token == header]
    assert roles == ["system", *["user", "assistant"] * (len(roles) // 2)]
    assert bytes(token for token in ids[1 : ids.index(END)]).decode() == SYSTEM
    text = "".join(chr(token) if token < 256 else " " for token in ids)
    return [part.split()[0] for part in text.split("question ")[1:]]


def breaks(requests: list[Request]) -> int:
    """How many prompts do not begin with the whole prompt before them."""
    ids = [request.prompt_ids.tolist() for request in requests]
    return sum(later[: len(earlier)] != earlier for earlier, later in itertools.pairwise(ids))


async def test_the_oldest_turns_leave_whole_and_rarely(alice: User, small: FakeWorker) -> None:
    await preset(ContextPolicy.TRUNCATE)
    last = await talk(Live(), small, alice, 40)
    assert all(len(request.prompt_ids) + request.sampling.max_tokens <= 1000 for request in small.requests)
    kept = [turns_in(request) for request in small.requests]
    assert all(numbers == [str(n) for n in range(int(numbers[0]), turn + 1)] for turn, numbers in enumerate(kept))
    rules = rules_of(await Conversation.objects.aget())
    trigger, target = rules.marks(0)
    assert 0 < breaks(small.requests) <= math.ceil(40 * 84 / (trigger - target))

    generation = await Generation.objects.aget(message_id=last.message_id)
    assert generation.num_outside == 2 * int(kept[-1][0]) > 0
    assert (await Message.objects.aget(id=generation.window_start)).text.startswith(f"question {kept[-1][0]} ")
    assert await Message.objects.acount() == 80  # the window is a view


async def test_the_latest_turns_only(alice: User, small: FakeWorker) -> None:
    await preset(ContextPolicy.RECENT, recent_tokens=300)
    await talk(Live(), small, alice, 20)
    head = len(SYSTEM) + 2
    assert max(len(request.prompt_ids) for request in small.requests) <= head + 300
    assert len(turns_in(small.requests[-1])) < 5
    assert breaks(small.requests) < 19


async def test_full_refuses_and_another_policy_helps(alice: User, small: FakeWorker) -> None:
    await preset(ContextPolicy.FULL)
    live = Live()
    turn = await talk(live, small, alice, 8)
    for _ in range(2):
        with pytest.raises(WindowFull, match="let the oldest turns leave"):
            await run.start(live, alice, after(turn, "question 8 ".ljust(80, ".")))
    assert await Message.objects.acount() == 16
    await Conversation.objects.aupdate(context_policy=ContextPolicy.TRUNCATE)
    await whole(live, small, alice, after(turn, "question 8 "), "yes")
    assert turns_in(small.requests[-1])[0] != "0"
    await Conversation.objects.aupdate(context_policy=ContextPolicy.FULL)  # everything counts again
    with pytest.raises(WindowFull):
        await run.start(live, alice, after(turn, "question 8 ".ljust(80, ".")))


async def test_a_longer_window_brings_the_old_turns_back(alice: User, small: FakeWorker) -> None:
    await preset(ContextPolicy.TRUNCATE)
    live = Live()
    turn = await talk(live, small, alice, 12)
    assert turns_in(small.requests[-1])[0] != "0"
    small.opened.max_model_len = 4000
    turn = await talk(live, small, alice, 1, since=turn)
    assert turns_in(small.requests[-1])[0] == "0"
    small.opened.max_model_len = 1000
    await talk(live, small, alice, 1, since=turn)
    assert turns_in(small.requests[-1])[0] != "0"


async def test_each_branch_has_its_own_window(alice: User, small: FakeWorker) -> None:
    await preset(ContextPolicy.TRUNCATE)
    live = Live()
    third = await talk(live, small, alice, 3)
    last = await talk(live, small, alice, 12, since=third)
    start = turns_in(small.requests[-1])[0]
    await talk(live, small, alice, 1, since=third)  # an early branch knows nothing of it
    assert turns_in(small.requests[-1]) == ["0", "1", "2", "0"]
    await talk(live, small, alice, 1, since=last)  # and this one goes on where it was
    assert turns_in(small.requests[-1])[0] == start


async def test_a_reply_made_again_or_continued_sees_what_the_first_one_saw(alice: User, small: FakeWorker) -> None:
    await preset(ContextPolicy.TRUNCATE)
    live = Live()
    turn = await talk(live, small, alice, 7)
    moved = await talk(live, small, alice, 1, since=turn)
    assert breaks(small.requests[-2:]) == 1, "the window moves with this very turn"
    await whole(live, small, alice, wire.TurnRegenerate(moved.conversation_id, moved.message_id, uuid.uuid4()), "b")
    again, first = small.requests[-1], small.requests[-2]
    assert again.prompt_ids.tolist() == first.prompt_ids.tolist()
    await Message.objects.filter(text="b").aupdate(status="stopped")
    reply = await Message.objects.aget(text="b")
    await whole(live, small, alice, wire.TurnContinue(moved.conversation_id, reply.id), "c")
    assert small.requests[-1].prompt_ids.tolist() == [*first.prompt_ids.tolist(), ord("b")]


def test_planning_reads_what_has_room_however_long_the_conversation(alice: User, small: FakeWorker) -> None:
    conversation = rows.long_conversation(alice, 2000)
    Conversation.objects.update(context_policy=ContextPolicy.TRUNCATE)
    conversation.refresh_from_db()
    question = Message.objects.get(id=conversation.active_leaf_id).parent
    assert question is not None
    reply = Message(conversation=conversation, parent=question, role="assistant")
    for is_known in (False, True):
        before = Generation.objects.get(message=question.parent_id)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            past = past_of(conversation, question, before)
        assert len(queries) == 1
        rules = rules_of(conversation)
        assert len(past.messages) <= (rules.limit // 4 if is_known else rules.room // 3 + 2)
        plan = plan_turn(Past(conversation, past), reply)
        assert plan.window.num_outside > 1800
        before.window_start, before.window_limit = plan.window.start, plan.window.limit
        before.save()
    assert llm.window() == 1000
