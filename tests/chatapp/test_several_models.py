"""A model per conversation: chosen at its beginning, changed later, cold then, and gone one day."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from chatapp import llm, wire
from chatapp.errors import EngineUnavailable, NotFound
from chatapp.models import ContextPolicy, Conversation, Generation, Message, PrefixBreak, Preset, User
from chatapp.turn import run
from chatapp.turn.live import Live, LiveTurn
from chatapp.turn.numbers import turn_stats
from inference.errors import ModelBusy, ModelTooLarge
from tests.chatapp.fake_worker import ByteTemplate, ByteTokenizer, FakeWorker
from tests.conftest import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

MODELS = ROOT / "tests" / "data" / "models"


@pytest.fixture(autouse=True)
def installed(settings: Any, tmp_path: Path, worker: FakeWorker) -> None:
    """Two models, of which llama is the default one; another tokenizer belongs to qwen3."""
    for name in ("llama", "qwen3"):
        shutil.copytree(MODELS / name, tmp_path / "models" / name)
    settings.RECOLLECT_DATA, settings.RECOLLECT_MODEL = tmp_path, tmp_path / "models" / "llama"
    worker.opened_of["qwen3"] = SimpleNamespace(
        max_model_len=4096, tokenizer=ByteTokenizer(), chat_template=ByteTemplate("another")
    )
    llm.host.handle.default_model = "llama"


async def turn_of(user: User, worker: FakeWorker, *, live: Live | None = None, **fields: Any) -> LiveTurn:
    """A whole turn, answered with "Hi!"."""
    values: dict[str, Any] = {"conversation": uuid.uuid4(), "is_new": True} | fields
    frame = wire.TurnSend(client_id=uuid.uuid4(), text="Hello", **values)
    turn = await run.start(live or Live(), user, frame)
    assert turn is not None
    assert turn.task is not None
    while len(worker.requests) == 0 or worker.requests[-1].request_id != turn.request_id:
        await asyncio.sleep(0)
    worker.write("Hi!")
    worker.finish()
    await turn.task
    return turn


async def follow(user: User, worker: FakeWorker, conversation: uuid.UUID, parent: uuid.UUID) -> Generation:
    """One more turn in the same conversation; its numbers."""
    later = await turn_of(user, worker, conversation=conversation, is_new=False, parent=parent)
    return await Generation.objects.aget(message_id=later.message_id)


def first_turn(user: User, worker: FakeWorker, **fields: Any) -> LiveTurn:
    return asyncio.run(turn_of(user, worker, **fields))


def choose(client: Client, turn: LiveTurn, name: str) -> Any:
    url = reverse("conversation_model", args=[turn.conversation_id])
    return client.post(url, {"model": name}, headers={"X-Requested-With": "fetch"})


def test_a_conversation_begins_with_the_chosen_model_or_the_default_one(alice: User, worker: FakeWorker) -> None:
    for model, expected in (("qwen3", "qwen3"), (None, "llama")):
        turn = first_turn(alice, worker, model=model)
        assert worker.models[-1] == expected
        assert Conversation.objects.get(id=turn.conversation_id).model_name == expected
        assert Generation.objects.get(message_id=turn.message_id).model_name == expected


def test_a_model_that_is_not_installed_is_refused_and_nothing_is_stored(alice: User, worker: FakeWorker) -> None:
    with pytest.raises(NotFound, match=r"no model named gpt-9; there are llama, qwen3"):
        first_turn(alice, worker, model="gpt-9")
    assert not Message.objects.exists()
    assert not Conversation.objects.exists()


def test_a_switch_says_what_will_be_read_anew(alice: User, client: Client, worker: FakeWorker) -> None:
    client.force_login(alice)
    turn = first_turn(alice, worker)
    answer = choose(client, turn, "qwen3").json()
    assert answer["model"] == "qwen3"
    assert answer["cold"] == (
        "The history of 11 tokens will be read anew by qwen3. 1 reply of another model is encoded again."
    )
    asked = client.get(reverse("conversation_cold", args=[turn.conversation_id])).json()
    assert asked | {"notes": []} == answer  # as a page that is opened later is told
    assert choose(client, turn, "llama").json() == {"model": "llama", "cold": "", "notes": []}


def test_what_a_model_leaves_out_is_said_where_it_is_chosen(
    alice: User, client: Client, worker: FakeWorker, tmp_path: Path
) -> None:
    client.force_login(alice)
    shutil.copytree(MODELS / "qwen3_vl", tmp_path / "models" / "qwen3_vl")
    turn = first_turn(alice, worker)
    (note,) = choose(client, turn, "qwen3_vl").json()["notes"]
    assert "are left out" in note
    assert client.get(reverse("engine"), {"model": "qwen3_vl"}).json()["notes"] == [note]


def test_a_model_that_still_remembers_says_so_and_one_that_is_loaded_first(
    alice: User, client: Client, worker: FakeWorker
) -> None:
    client.force_login(alice)
    turn = first_turn(alice, worker)
    worker.num_cached, worker.model_state = 7, "unloaded"
    assert choose(client, turn, "qwen3").json()["cold"] == (
        "Of the history of 11 tokens qwen3 still remembers 7; 4 will be read anew. "
        "1 reply of another model is encoded again. It is loaded first."
    )


def test_the_numbers_of_the_next_turn_name_the_cause(alice: User, client: Client, worker: FakeWorker) -> None:
    client.force_login(alice)
    turn = first_turn(alice, worker)
    choose(client, turn, "qwen3")
    numbers = asyncio.run(follow(alice, worker, turn.conversation_id, turn.message_id))
    assert (numbers.model_name, numbers.prefix_break, numbers.num_reencoded) == ("qwen3", PrefixBreak.MODEL_CHANGED, 1)
    stats = turn_stats(numbers)
    assert (stats.model, stats.cause, stats.reencoded) == ("qwen3", "model_changed", 1)
    worker.num_reused = 1000
    again = asyncio.run(follow(alice, worker, turn.conversation_id, numbers.message_id))
    assert (again.prefix_break, again.num_reencoded) == ("", 1)  # the same model goes on


def test_the_same_weights_under_another_name_are_another_model(alice: User, client: Client, worker: FakeWorker) -> None:
    """Each name has memory of its own: nothing has left that of the first."""
    client.force_login(alice)
    worker.weights_of["qwen3"] = "llama"
    turn = first_turn(alice, worker)
    choose(client, turn, "qwen3")
    numbers = asyncio.run(follow(alice, worker, turn.conversation_id, turn.message_id))
    assert (numbers.model_name, numbers.prefix_break) == ("qwen3", PrefixBreak.MODEL_CHANGED)


def test_a_history_that_the_other_model_cannot_hold_is_said(alice: User, client: Client, worker: FakeWorker) -> None:
    client.force_login(alice)
    turn = first_turn(alice, worker)
    worker.opened_of["qwen3"].max_model_len = 8
    assert choose(client, turn, "qwen3").json()["cold"] == (
        "The history of 0 tokens will be read anew by qwen3. 1 reply of another model is encoded again. "
        "The first 2 messages do not fit its window and are left out."
    )
    Conversation.objects.update(context_policy=ContextPolicy.FULL)
    assert choose(client, turn, "qwen3").json()["cold"] == (
        "The history of 11 tokens does not fit the window of qwen3, which holds 8."
    )


def test_a_model_too_large_for_the_budget_is_refused_with_numbers(
    alice: User, client: Client, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(alice)
    turn = first_turn(alice, worker)

    def too_large(name: str) -> Any:
        raise ModelTooLarge(name=name, num_bytes=9 << 30, max_bytes=4 << 30)

    monkeypatch.setattr(worker, "open", too_large)
    answer = choose(client, turn, "qwen3")
    assert answer.status_code == 503
    assert "9.0" in answer.json()["message"]
    assert "4.0" in answer.json()["message"]
    assert Conversation.objects.get(id=turn.conversation_id).model_name == "llama"


def test_a_conversation_whose_model_is_gone_offers_the_others(alice: User, client: Client, worker: FakeWorker) -> None:
    client.force_login(alice)
    turn = first_turn(alice, worker)
    Conversation.objects.update(model_name="gone")
    page = client.get(reverse("conversation", args=[turn.conversation_id]))
    assert page.status_code == 200
    text = page.content.decode()
    assert "The model gone is not installed any more." in text
    assert all(f'<option value="{name}">' in text for name in ("llama", "qwen3"))
    asked = client.get(reverse("conversation_cold", args=[turn.conversation_id])).json()
    assert asked["cold"].startswith("The model gone is not installed")
    assert choose(client, turn, "llama").json() == {"model": "llama", "cold": "", "notes": []}


def test_a_loaded_model_whose_files_are_gone_goes_on_and_says_so(
    alice: User, client: Client, worker: FakeWorker, tmp_path: Path
) -> None:
    client.force_login(alice)
    turn = first_turn(alice, worker, model="qwen3")
    shutil.rmtree(tmp_path / "models" / "qwen3")
    worker.loaded_names = ["qwen3"]
    text = client.get(reverse("conversation", args=[turn.conversation_id])).content.decode()
    said = (
        "The model qwen3 is not installed any more. It goes on answering while it stays loaded, and cannot be loaded "
        "again."
    )
    assert said in text
    assert "Not installed: qwen3</option>" in text  # the beginning is what a narrow screen shows
    assert client.get(reverse("conversation_cold", args=[turn.conversation_id])).json()["cold"] == said
    asyncio.run(follow(alice, worker, turn.conversation_id, turn.message_id))
    worker.loaded_names = []
    text = client.get(reverse("conversation", args=[turn.conversation_id])).content.decode()
    assert "Choose another one to go on." in text


def test_the_only_model_that_is_gone_and_loaded_is_told_as_well(
    alice: User, client: Client, worker: FakeWorker, tmp_path: Path
) -> None:
    client.force_login(alice)
    shutil.rmtree(tmp_path / "models")
    worker.loaded_names = ["llama"]
    text = client.get(reverse("conversation_new")).content.decode()
    assert "It goes on answering while it stays loaded" in text


def test_a_person_chooses_where_there_is_a_choice(
    alice: User, client: Client, worker: FakeWorker, tmp_path: Path
) -> None:
    client.force_login(alice)
    home = reverse("conversation_new")
    Preset.objects.create(name="Plain", is_default=True)
    page = client.get(home).content.decode()
    assert 'id="model-select"' in page
    assert 'id="preset-select"' not in page
    Preset.objects.create(name="Poet")
    shutil.rmtree(tmp_path / "models" / "qwen3")
    page = client.get(home).content.decode()
    assert 'id="model-select"' not in page
    assert 'id="preset-select"' in page


async def test_nothing_is_prepared_for_a_model_that_has_left(worker: FakeWorker) -> None:
    """Whose place it took would have to leave, for a question that may never come."""
    prompt = llm.build_prompt([llm.ChatMessage("user", "Hello")])
    worker.model_state = "unloaded"
    with pytest.raises(EngineUnavailable):
        await llm.prepare(user_id=1, request_id="guess", prompt=prompt, is_head_public=False)
    assert not worker.requests


async def test_a_turn_that_waits_for_its_model_shows_how_far_it_is(alice: User, worker: FakeWorker) -> None:
    live = Live()
    frame = wire.TurnSend(uuid.uuid4(), uuid.uuid4(), "Hello", is_new=True)
    turn = await run.start(live, alice, frame)
    assert turn is not None
    assert turn.task is not None
    while not worker.requests:
        await asyncio.sleep(0)
    worker.load_further(256, 1000)
    while turn.stage != "loading":
        await asyncio.sleep(0.001)
    assert (turn.snapshot().done, turn.snapshot().total) == (256, 1000)
    worker.finish()
    await turn.task


def test_the_engine_page_lists_models_and_loads_them(staff: Client, worker: FakeWorker) -> None:
    worker.model_state = "unloaded"
    page = staff.get(reverse("admin:engine")).content.decode()
    assert "llama" in page
    assert "Not loaded" in page
    assert staff.post(reverse("admin:engine_load"), {"model": "qwen3"}).status_code == 302
    assert worker.model_state == "ready"
    assert staff.post(reverse("admin:engine_unload"), {"model": "qwen3"}).status_code == 302
    assert worker.model_state == "unloaded"
    assert staff.get(reverse("admin:engine_unload")).status_code == 405


def test_a_loaded_model_whose_files_are_gone_can_be_unloaded(staff: Client, worker: FakeWorker, tmp_path: Path) -> None:
    """Its memory is wanted back most of all: it cannot answer for long, and nobody can choose it."""
    page, unload = reverse("admin:engine"), reverse("admin:engine_unload")
    shutil.rmtree(tmp_path / "models" / "qwen3")
    worker.loaded_names = ["llama", "qwen3"]
    row = staff.get(page).content.decode().split('<a href="?model=qwen3"')[1].split("</li>")[0]
    assert "The model qwen3 is not installed any more. It goes on answering while it stays loaded" in row
    assert "Ready" in row
    assert "Load</button>" not in row
    assert "Unload</button>" in row
    assert "There is no model named gone" in staff.post(unload, {"model": "gone"}, follow=True).content.decode()
    assert (
        "There is no model named qwen3"
        in staff.post(reverse("admin:engine_load"), {"model": "qwen3"}, follow=True).content.decode()
    )
    assert worker.model_state == "ready"
    assert staff.post(unload, {"model": "qwen3"}).status_code == 302
    assert worker.model_state == "unloaded"
    assert 'href="?model=qwen3"' not in staff.get(page).content.decode()


def test_the_default_model_whose_file_is_gone_can_be_unloaded(
    staff: Client, worker: FakeWorker, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "models" / "llama")
    worker.loaded_names = ["llama"]
    row = staff.get(reverse("admin:engine")).content.decode().split('<a href="?model=llama"')[1].split("</li>")[0]
    assert "Ready" in row
    assert "there is no file" in row
    assert "Unload</button>" in row
    staff.post(reverse("admin:engine_unload"), {"model": "llama"})
    assert worker.model_state == "unloaded"


def test_the_engine_page_says_why_a_model_stays(
    staff: Client, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(name: str) -> None:
        raise ModelBusy(name=name, num_requests=2)

    monkeypatch.setattr(worker, "unload", busy)
    page = staff.post(reverse("admin:engine_unload"), {"model": "qwen3"}, follow=True).content.decode()
    assert "qwen3 cannot be unloaded: 2 replies need it." in page


def test_people_may_not_load_models(client: Client, alice: User) -> None:
    client.force_login(alice)
    assert client.post(reverse("admin:engine_load"), {"model": "qwen3"}).status_code in (302, 403)


def test_health_stays_ready_while_another_model_has_the_memory(client: Client, worker: FakeWorker) -> None:
    assert client.get("/healthz/ready").status_code == 200
    worker.model_state = "failed"
    assert client.get("/healthz/ready").status_code == 503
