"""The door to the engine: who gets a place, what comes back, and what the engine's errors become."""

from __future__ import annotations

import asyncio
import resource
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chatapp import llm
from chatapp.errors import Busy, Draining, EngineUnavailable, Invalid, WindowFull
from inference.errors import EngineStopped, InferenceError, PromptTooLong, QueueFull
from inference.types import FinishedEvent, FinishReason, ProgressEvent, SamplingParams, TokenEvent
from tests.chatapp.fake_worker import FakeWorker

HELLO = [llm.ChatMessage("user", "Hello")]


@pytest.fixture(autouse=True)
def _closed_door() -> Iterator[None]:
    llm.shutdown()
    yield
    llm.shutdown()


@pytest.fixture
def places(settings: Any) -> None:
    settings.RECOLLECT_MAX_RUNNING, settings.RECOLLECT_MAX_WAITING = 4, 12


async def ask(ticket: llm.Ticket, request_id: str = "r", **changes: Any) -> list[llm.Event]:
    values: dict[str, Any] = {"prompt": llm.build_prompt(HELLO), "sampling": SamplingParams(), "is_head_public": False}
    return [event async for event in llm.generate(ticket=ticket, request_id=request_id, **(values | changes))]


# --- loading ----------------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_a_pool_that_does_not_fit_names_its_bytes_and_what_to_lower(model_path: Path, settings: Any) -> None:
    settings.RECOLLECT_POOL_TOKENS = 1 << 31
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, limits[1]))  # whatever this machine promises
    try:
        with pytest.raises(InferenceError, match=r"needs \d{13,} bytes.*: lower RECOLLECT_POOL_TOKENS$"):
            llm.host._load(llm.host._open(model_path), on_progress=lambda _share: None, run_kernels=lambda work: work())
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("places")
def test_one_person_leaves_places_for_others() -> None:
    llm.start(FakeWorker())
    held = [llm.reserve(1) for _ in range(14)]
    with pytest.raises(Busy) as caught:
        llm.reserve(1)
    assert (caught.value.detail["num_waiting"], caught.value.detail["max_waiting"]) == (14, 16)
    others = [llm.reserve(2), llm.reserve(3)]
    with pytest.raises(Busy):
        llm.reserve(4)
    held.pop().release()
    others.append(llm.reserve(4))
    for ticket in held + others:
        ticket.release()
    assert len([llm.reserve(5) for _ in range(14)]) == 14


@pytest.mark.usefixtures("places")
def test_the_first_send_of_one_runs_before_the_fiftieth_of_another() -> None:
    llm.start(FakeWorker())
    assert [llm.reserve(1).priority for _ in range(3)] == [0, 1, 2]
    assert llm.reserve(2).priority == 0


@pytest.mark.usefixtures("places")
def test_a_place_is_given_back_once() -> None:
    llm.start(FakeWorker())
    first, _second = llm.reserve(1), llm.reserve(1)
    first.release()
    first.release()
    with first:
        pass
    assert llm.host.handle.places.total() == 1


def test_without_a_ready_engine_nothing_is_reserved() -> None:
    llm.host.handle.worker = None
    for state, word in ((None, "No model"), ("failed", "out of blocks"), ("stopped", "stopped")):
        if state:
            worker = FakeWorker()
            worker.state, worker.error = state, "out of blocks" if state == "failed" else ""
            llm.host.handle.worker = worker  # type: ignore[assignment]
        with pytest.raises(EngineUnavailable, match=word):
            llm.reserve(1)
        assert llm.status().state == (state or "off")


@pytest.mark.parametrize(
    ("model_state", "state", "word"),
    [
        ("ready", "ready", ""),
        ("waiting", "loading", "being loaded"),
        ("loading", "loading", "being loaded"),
        ("unloaded", "unloaded", "next message"),
        ("failed", "failed", "gone.gguf"),
    ],
)
def test_each_state_of_a_model_has_its_word(model_state: str, state: str, word: str) -> None:
    worker = FakeWorker()
    worker.model_state, worker.model_error = model_state, "gone.gguf: there is no such file"  # type: ignore[assignment]
    llm.start(worker)
    assert llm.status().state == state
    assert word in llm.status().message
    llm.reserve(1).release()  # whatever becomes of the model: the turn will wait, or hear why not


def test_a_draining_server_takes_nothing_new() -> None:
    llm.start(FakeWorker())
    llm.drain()
    assert llm.status().state is llm.EngineState.DRAINING
    with pytest.raises(Draining):
        llm.reserve(1)


def test_the_engine_is_started_once() -> None:
    llm.start(FakeWorker())
    with pytest.raises(RuntimeError):
        llm.start(FakeWorker())


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_events_arrive_in_order_and_end() -> None:
    worker = FakeWorker()
    llm.start(worker)
    asking = asyncio.create_task(ask(llm.reserve(1)))
    await asyncio.sleep(0)
    worker.read(3, 9)
    worker.write("Hi")
    worker.finish()
    events = await asking
    assert [type(event) for event in events] == [ProgressEvent, ProgressEvent, ProgressEvent, TokenEvent, FinishedEvent]
    assert events[-2].text == "Hi"


async def test_closing_the_iterator_cancels_the_request() -> None:
    worker = FakeWorker()
    llm.start(worker)
    asking = asyncio.create_task(ask(llm.reserve(1)))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not worker.stats().num_running


async def test_only_a_public_head_is_shared() -> None:
    worker = FakeWorker()
    llm.start(worker)
    prompt = llm.build_prompt([llm.ChatMessage("system", "Be kind."), *HELLO])
    for user_id, is_head_public in ((1, True), (1, False), (2, True)):
        asking = asyncio.create_task(
            ask(llm.reserve(user_id), f"{user_id}{is_head_public}", prompt=prompt, is_head_public=is_head_public)
        )
        await asyncio.sleep(0)
        worker.finish()
        await asking
    public, private, other = worker.requests
    assert public.num_public_tokens == prompt.num_public_tokens > 0
    assert private.num_public_tokens == 0
    assert public.salt == private.salt != other.salt
    assert len(public.salt) == 32


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (EngineStopped(), EngineUnavailable),
        (QueueFull(num_waiting=3, max_waiting=3), Busy),
        (PromptTooLong(num_prompt_tokens=5000, num_reserved_tokens=1, max_tokens=4096), WindowFull),
    ],
)
async def test_errors_of_the_engine_become_errors_of_the_chat(raised: Exception, expected: type[Exception]) -> None:
    worker = FakeWorker()
    llm.start(worker)

    def refuse(*args: Any) -> None:
        raise raised

    worker.submit = refuse  # type: ignore[method-assign]
    with pytest.raises(expected):
        await ask(llm.reserve(1))


async def test_an_engine_that_ends_ends_its_requests() -> None:
    worker = FakeWorker()
    llm.start(worker)
    asking = asyncio.create_task(ask(llm.reserve(1)))
    await asyncio.sleep(0)
    llm.shutdown()
    assert (await asking)[-1].finish_reason is FinishReason.CANCELLED


def test_purge_without_an_engine_is_nothing() -> None:
    llm.host.handle.worker = None
    llm.purge(uuid.uuid4())


def test_stored_sampling_values_are_checked() -> None:
    assert llm.sampling_params({"temperature": 0, "stop": ["\n"]}) == SamplingParams(temperature=0, stop=("\n",))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"temperature": -1}, "temperature is -1, legal are 0.0 to 5.0"),
        ({"temperature": "x"}, "temperature is 'x', legal are 0.0 to 5.0"),
        ({"temperature": None}, "temperature is None, legal are 0.0 to 5.0"),
        ({"top_k": 1.5}, "top_k is 1.5, legal are whole numbers from 0 to 1000000"),
        ({"max_tokens": True}, "max_tokens is True, legal are whole numbers from 1"),
        ({"seed": "a"}, "seed is 'a', legal are whole numbers"),
        ({"stop": "END"}, "stop is 'END', legal is a list of texts"),
        ({"stop": [3]}, "stop is (3,), legal is a list of texts"),
        ({"heat": 3, "top_k": 1}, "no sampling value named 'heat'; legal are temperature, top_k, top_p"),
    ],
)
def test_a_wrong_sampling_value_is_named_with_what_is_legal(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid) as caught:
        llm.sampling_params(wrong)
    assert said in caught.value.message
    assert "__init__" not in caught.value.message


def test_a_begun_reply_lies_behind_the_prompt() -> None:
    llm.start(FakeWorker())
    prompt = llm.build_prompt(HELLO)
    longer = llm.extended(prompt, [7, 8])
    assert longer.ids.tolist() == [*prompt.ids.tolist(), 7, 8]
    assert longer.ids.dtype == prompt.ids.dtype
