"""A fact from turn 3 of 200: is it in the prompt that the engine gets? With the tokenizer, template and window of the
default model; what a model would make of it is not asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from chatapp import llm, search
from chatapp.models import ContextPolicy, Conversation, Message, Role, SearchEntry, User, pack_ids
from chatapp.services import summaries
from chatapp.turn.live import Live
from inference.config import EngineConfig
from inference.engine.opened_model import OpenedModel, open_model
from tests.chatapp.conftest import ended, send, started
from tests.chatapp.fake_worker import FakeWorker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.model]
NUM_TURNS = 200
TALK = "We talked about the weather on day {0}, and about trains, ships and the price of potatoes in the market. " * 2
FACTS = {
    "English": ("My cat is called Ophelia.", "Ophelia", "Do you remember what my cat is called?"),
    "Chinese": ("我的猫叫咪子，今年三岁。", "咪子", "你还记得我的猫叫什么名字吗？"),
}


@pytest.fixture(scope="module")
def default_model(model_path: Path) -> OpenedModel:
    return open_model(model_path, EngineConfig())


@pytest.fixture
def real(worker: FakeWorker, default_model: OpenedModel) -> FakeWorker:
    """An engine that answers as told, with a real tokenizer in front of it."""
    worker.opened = default_model
    return worker


def told(user: User, fact: str, policy: ContextPolicy, *, has_recall: bool) -> Conversation:
    """200 turns, the fact in the third; with `summarise` most of them have been summed up."""
    conversation = Conversation.objects.create(owner=user, title="Long", updated_at=timezone.now())
    messages: list[Message] = []
    for position in range(2 * NUM_TURNS):
        text = fact if position == 4 else TALK.format(position)
        ids = llm.encode(text) if position % 2 else ()
        message = Message(
            conversation=conversation,
            parent=messages[-1] if messages else None,
            role=Role.ASSISTANT if position % 2 else Role.USER,
            text=text,
            token_ids=pack_ids(ids) if ids else None,
            token_fingerprint=llm.token_fingerprint() if ids else "",
            position=position,
        )
        messages.append(message)
    Message.objects.bulk_create(messages)
    SearchEntry.objects.bulk_create(
        SearchEntry(
            message=message, keys=search.keys_of(message.text, owner_id=user.pk, conversation_id=conversation.id)
        )
        for message in messages
    )
    if policy == ContextPolicy.SUMMARISE:
        text = f"We talked about the weather and trains. {fact}"
        assert summaries.summary_create(until_id=messages[331].id, text=text, model_name="m") is not None
    conversation.active_leaf, conversation.context_policy, conversation.has_recall = messages[-1], policy, has_recall
    conversation.save()
    return conversation


@pytest.mark.parametrize("language", FACTS)
@pytest.mark.parametrize(
    ("policy", "has_recall", "is_there"),
    [
        (ContextPolicy.TRUNCATE, False, False),
        (ContextPolicy.RECENT, False, False),
        (ContextPolicy.TRUNCATE, True, True),
        (ContextPolicy.RECENT, True, True),
        (ContextPolicy.SUMMARISE, False, True),
    ],
)
async def test_a_fact_from_turn_3_of_200(
    policy: ContextPolicy, has_recall: bool, is_there: bool, language: str, alice: User, real: FakeWorker
) -> None:
    fact, word, question = FACTS[language]
    conversation = await sync_to_async(told)(alice, fact, policy, has_recall=has_recall)
    frame = send(question, conversation=conversation.id, parent=conversation.active_leaf_id, is_new=False)
    turn = await started(Live(), alice, frame)
    prompt_ids = real.requests[-1].prompt_ids.tolist()
    real.finish(ids=None)
    await ended(turn)
    prompt = llm.decode(prompt_ids)
    assert (word in prompt) == is_there
    assert question in prompt
    assert TALK.format(399) in prompt
    assert TALK.format(7) not in prompt, "the turns around it have left"
    assert len(prompt_ids) + real.requests[-1].sampling.max_tokens <= llm.window()
