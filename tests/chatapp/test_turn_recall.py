"""What has left the window comes back as a quotation when it is asked about, within its budget, and stays as it was."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from hypothesis import given
from hypothesis import strategies as st

from chatapp import window_rows, wire
from chatapp.models import ContextPolicy, Message, Preset, TurnContext, User
from chatapp.search import Hit
from chatapp.services import conversations
from chatapp.turn.live import Live, LiveTurn
from chatapp.turn.recall import quote
from tests.chatapp.conftest import after, send, started, whole
from tests.chatapp.fake_worker import FakeWorker

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "My cat is called Mitzi"
ASKED = "Do you remember what the cat is called?"


@pytest.fixture
def small(worker: FakeWorker) -> FakeWorker:
    """An engine with a window of 1,000 tokens, a token a byte."""
    worker.opened.max_model_len = 1000
    return worker


def text_of(worker: FakeWorker, number: int = -1) -> str:
    return bytes(token for token in worker.requests[number].prompt_ids.tolist() if token < 256).decode()


async def talk(live: Live, worker: FakeWorker, user: User, *, has_recall: bool = True, text: str = SECRET) -> LiveTurn:
    """A fact, and then so much else that it leaves the window."""
    await Preset.objects.acreate(
        name="small", is_default=True, context_policy=ContextPolicy.TRUNCATE, has_recall=has_recall
    )
    turn = await whole(live, worker, user, send(text), "A fine name.")
    for number in range(10):
        turn = await whole(live, worker, user, after(turn, str(number) * 60), "All right.")
    assert text not in text_of(worker)
    return turn


async def test_a_fact_that_left_the_window_is_quoted(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await talk(live, small, alice)
    assert await TurnContext.objects.acount() == 0
    await whole(live, small, alice, after(turn, ASKED), "Mitzi")
    assert f"> User: {SECRET}\n\n{ASKED}" in text_of(small)
    context = await TurnContext.objects.select_related("message").aget()
    assert context.message.text == ASKED  # the person's words stay the person's
    assert context.sources == [str((await Message.objects.aget(text=SECRET)).id)]
    assert len(small.requests[-1].prompt_ids) + small.requests[-1].sampling.max_tokens <= 1000


async def test_who_asked_is_told_at_once_what_is_quoted(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await talk(live, small, alice)
    told: list[wire.TurnAccepted] = []
    await started(live, alice, after(turn, ASKED), accept=told.append)
    (accepted,) = told
    assert accepted.recalled is not None
    secret = await Message.objects.aget(text=SECRET)
    assert accepted.recalled.sources == (wire.RecalledMessage(secret.id, secret.position),)
    context = await TurnContext.objects.aget()
    assert accepted.recalled.text == context.text
    stored = await sync_to_async(window_rows.recalled_for)([context.message_id])
    assert stored == {context.message_id: accepted.recalled}
    small.finish()


async def test_without_recall_it_is_absent(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await talk(live, small, alice, has_recall=False)
    await whole(live, small, alice, after(turn, ASKED), "I do not know")
    assert "Mitzi" not in text_of(small)


async def test_the_quotation_stays_word_for_word(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await talk(live, small, alice)
    asked = await whole(live, small, alice, after(turn, ASKED), "Mitzi")
    before = small.requests[-1].prompt_ids.tolist()
    await Message.objects.filter(text=SECRET).aupdate(text="changed")  # it is not looked up again
    await whole(live, small, alice, after(asked, "And now?"), "Yes")
    assert small.requests[-1].prompt_ids.tolist()[: len(before)] == before
    await whole(live, small, alice, wire.TurnRegenerate(asked.conversation_id, asked.message_id, uuid.uuid4()), "Ms")
    assert small.requests[-1].prompt_ids.tolist() == before
    assert await TurnContext.objects.acount() == 1


async def test_an_edit_is_a_new_question(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await talk(live, small, alice)
    await whole(live, small, alice, after(turn, ASKED), "Mitzi")
    question = await Message.objects.aget(text=ASKED)
    frame = wire.TurnEdit(turn.conversation_id, question.id, uuid.uuid4(), "Something else entirely")
    await whole(live, small, alice, frame, "Fine")
    assert "Mitzi" not in text_of(small)
    assert await TurnContext.objects.acount() == 1


async def test_nothing_in_the_window_is_quoted(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await whole(live, small, alice, send(SECRET), "A fine name.")
    await whole(live, small, alice, after(turn, ASKED), "Mitzi")
    assert text_of(small).count("Mitzi") == 1


async def test_a_chinese_fact_is_quoted_in_chinese(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await talk(live, small, alice, text="我的猫叫咪子")
    await whole(live, small, alice, after(turn, "还记得我的猫吗"), "咪子")
    assert "较早的记录：\n> 用户: 我的猫叫咪子\n\n还记得我的猫吗" in text_of(small)


async def test_where_there_is_no_room_there_is_no_quotation(alice: User, small: FakeWorker, settings: Any) -> None:
    live = Live()
    turn = await talk(live, small, alice)
    settings.RECOLLECT_RECALL_TOKENS = 40
    await whole(live, small, alice, after(turn, ASKED), "?")
    assert "Mitzi" not in text_of(small)
    settings.RECOLLECT_RECALL_TOKENS = 512
    long = ASKED.ljust(700, "y")
    await whole(live, small, alice, after(turn, long), "?")
    assert "Mitzi" not in text_of(small)
    assert len(small.requests[-1].prompt_ids) <= 750


async def test_deleting_the_conversation_takes_its_quotations_along(alice: User, small: FakeWorker) -> None:
    live = Live()
    turn = await talk(live, small, alice)
    await whole(live, small, alice, after(turn, ASKED), "Mitzi")
    delete = sync_to_async(conversations.conversation_delete)
    await delete(user=alice, conversation_id=turn.conversation_id)
    assert await TurnContext.objects.acount() == 0


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=3000), st.floats(0.1, 9)), max_size=8),
    st.integers(0, 2000),
)
def test_a_quotation_keeps_to_its_budget(texts: list[tuple[str, float]], max_tokens: int) -> None:
    hits = [Hit(uuid.uuid4(), i, "user", text, score) for i, (text, score) in enumerate(texts)]
    found = quote("?", hits, ["a"], count=lambda text: len(text.encode()), max_tokens=max_tokens)
    if found is not None:
        assert len(found.text.encode()) <= max_tokens
        positions = [hit.position for source in found.sources for hit in hits if hit.message_id == source]
        assert positions == sorted(positions)
        best = max(hits, key=lambda hit: hit.score)
        assert best.message_id in found.sources or any(
            hit.score == best.score and hit.message_id in found.sources for hit in hits
        )
        assert all(line.startswith("> ") for line in found.text.strip().split("\n")[1:])


def test_a_log_full_of_figures_is_looked_through_in_one_go() -> None:
    """Each figure is a place; comparing each with each of the others would take minutes, while the send is stored."""
    text = "1 0 " * 20_000 + "error 7 in the boiler " + "1 0 " * 5_000
    found = quote(
        "Which boiler?", [Hit(uuid.uuid4(), 0, "user", text, 1.0)], ["1", "0", "boiler"], count=len, max_tokens=2000
    )
    assert found is not None
    assert len(found.text) < 2000
