"""Summaries: which stretch they stand for, on which branches, and that a change leaves the old words there."""

from __future__ import annotations

import uuid

import pytest

from chatapp import selectors
from chatapp.errors import Conflict, Invalid, NotFound
from chatapp.models import Message, Summary, User
from chatapp.services import conversations, summaries
from chatapp.turn.summary_rules import accepted_summary, system_part, wording
from tests.chatapp import rows

pytestmark = pytest.mark.django_db


def talk(user: User, num_turns: int) -> list[Message]:
    """The messages of one branch."""
    begun = rows.turn(user)
    for _ in range(num_turns - 1):
        begun = rows.turn(user, conversation=begun.conversation, parent_id=begun.assistant_message.id)
    return list(begun.conversation.messages.order_by("position"))


def summarise(until: Message, text: str) -> Summary:
    made = summaries.summary_create(until_id=until.id, text=text, model_name="m")
    assert made is not None
    return made


def test_the_newest_of_each_stretch_stands_on_its_branches_only(alice: User) -> None:
    messages = talk(alice, 4)
    summarise(messages[1], "old")
    summarise(messages[3], "longer")
    summarise(messages[1], "new")
    found = selectors.summaries(messages[-1], 0)
    assert [(each.text, each.position, each.until) for each in found] == [
        ("new", 1, messages[1].id),
        ("longer", 3, messages[3].id),
    ]
    conversation = messages[0].conversation
    branch = rows.turn(alice, conversation=conversation, parent_id=messages[1].id).assistant_message
    assert [each.text for each in selectors.summaries(branch, 0)] == ["new"]
    assert selectors.summaries(messages[1], 0) == []  # a message is not in front of itself


def test_a_change_by_a_person_is_a_summary_of_its_own(alice: User, bob: User) -> None:
    messages = talk(alice, 2)
    old = summarise(messages[1], "by the model")
    conversation_id = messages[0].conversation_id
    new = summaries.summary_edit(user=alice, conversation_id=conversation_id, summary_id=old.id, text=" by me \n")
    assert (new.text, new.is_edited, new.until_id, new.num_messages) == ("by me", True, old.until_id, 2)
    assert Summary.objects.count() == 2
    assert [each.id for each in selectors.summaries(messages[-1], 0)] == [new.id]
    same = summaries.summary_edit(user=alice, conversation_id=conversation_id, summary_id=new.id, text="by me")
    assert same.id == new.id
    for text in ("", " \u200b\n", "x" * 20_001, "a\0b"):
        with pytest.raises(Invalid):
            summaries.summary_edit(user=alice, conversation_id=conversation_id, summary_id=new.id, text=text)
    with pytest.raises(NotFound):
        summaries.summary_edit(user=bob, conversation_id=conversation_id, summary_id=new.id, text="mine now")
    with pytest.raises(NotFound):
        summaries.summary_edit(user=alice, conversation_id=conversation_id, summary_id=uuid.uuid4(), text="which?")


def test_of_two_changes_the_second_takes_the_place_of_no_words_that_it_has_not_seen(alice: User) -> None:
    messages = talk(alice, 2)
    old = summarise(messages[1], "by the model")
    names = {"user": alice, "conversation_id": messages[0].conversation_id}
    first = summaries.summary_edit(summary_id=old.id, text="from one tab", **names)
    with pytest.raises(Conflict):
        summaries.summary_edit(summary_id=old.id, text="from the other", **names)
    again = summaries.summary_edit(summary_id=old.id, text="from one tab", **names)  # the answer was lost
    assert again.id == first.id
    assert [each.text for each in selectors.summaries(messages[-1], 0)] == ["from one tab"]
    assert Summary.objects.count() == 2


@pytest.mark.parametrize(("text", "reason"), [("a\0b", "cannot be stored"), ("x" * 20_001, "20,001 characters")])
def test_a_refusal_says_what_is_wrong_with_a_summary(alice: User, text: str, reason: str) -> None:
    messages = talk(alice, 1)
    old = summarise(messages[1], "by the model")
    with pytest.raises(Invalid, match=reason):
        summaries.summary_edit(user=alice, conversation_id=messages[0].conversation_id, summary_id=old.id, text=text)


def test_summaries_go_with_their_conversation(alice: User) -> None:
    messages = talk(alice, 2)
    first = summarise(messages[1], "one")
    summaries.summary_create(until_id=messages[1].id, text="two", model_name="m", earlier_id=first.id)
    assert summaries.summary_create(until_id=messages[1].id, text="3", model_name="m", earlier_id=uuid.uuid4())
    conversations.conversation_delete(user=alice, conversation_id=messages[0].conversation_id)
    assert Summary.objects.count() == 0
    assert summaries.summary_create(until_id=messages[1].id, text="late", model_name="m") is None


# --- what is taken for one --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "is_cut", "accepted"),
    [
        (" Tom has a cat named Mitzi.\n", False, "Tom has a cat named Mitzi."),
        ("Tom has a cat named Mitzi. She is three. And the", True, "Tom has a cat named Mitzi. She is three."),
        ("汤姆有一只叫咪子的猫。它今年三岁。还有", True, "汤姆有一只叫咪子的猫。它今年三岁。"),
        ("Tom has a cat but no sentence ends", True, ""),
        ("Tom, a cat", False, ""),
        (" \n", False, ""),
        ("The cat is here now. " * 5, False, ""),
    ],
)
def test_what_a_model_writes_is_taken_or_not(written: str, is_cut: bool, accepted: str) -> None:
    assert accepted_summary(written, is_cut=is_cut) == accepted


def test_it_is_asked_for_and_told_in_the_language_of_the_conversation() -> None:
    assert "总结" in wording(["我的猫叫咪子", "ok"]).instruction
    assert wording(["What does 猫 mean?"]) == wording(["hello"])
    assert wording(["これは猫です"]) == wording(["hello"])
    assert system_part("Be brief.", "Tom has a cat.").startswith("Be brief.\n\nSummary of the earlier part")
    assert system_part("", "汤姆有一只猫。").startswith("本次对话较早部分的摘要")
