"""`manage.py ask`: a turn from the terminal, what it prints, and whose it is."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from chatapp import llm, selectors
from chatapp.management.commands import ask
from chatapp.models import Conversation, Generation, Message, PrefixBreak, TurnContext, User
from chatapp.services import accounts
from chatapp.turn import run
from tests.conftest import ROOT
from tests.faults.paced_worker import PacedWorker, words

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def paced(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> dict[str, Any]:
    """The engine that `ask` starts, and how it is made."""
    options: dict[str, Any] = {"num_words": 5, "pace_s": 0.001}
    monkeypatch.setattr(llm.host, "Worker", lambda *args, **kwargs: PacedWorker(**options))
    settings.RECOLLECT_DATA = settings.RECOLLECT_KEYS = tmp_path
    return options


def run_ask(*args: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("ask", *args, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def asked(*args: str) -> dict[str, Any]:
    """The last line of an answer with --json."""
    line: dict[str, Any] = json.loads(run_ask("--json", *args)[0].splitlines()[-1])
    return line


def test_the_reply_goes_to_stdout_and_the_rest_to_stderr() -> None:
    out, err = run_ask("Hello")
    assert out == words(5) + "\n"
    assert err == f"conversation {Conversation.objects.get().id}\n"


def test_the_lines_of_a_server_stay_out_of_the_terminal(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run_ask("Hello")
    assert [record for record in caplog.records if record.name.startswith(("chatapp", "inference"))] == []
    assert logging.getLogger().level == logging.INFO


def test_the_last_line_of_json_has_ids_and_numbers() -> None:
    line = asked("Hello")
    message = Message.objects.get(role="assistant")
    assert line == {
        "conversation": str(message.conversation_id),
        "message": str(message.id),
        "prompt_tokens": 8,
        "reused_ram": 0,
        "reused_disk": 0,
        "computed": 8,
        "generated": 15,
        "ttft_ms": 0.0,
        "decode_tok_s": 14.0,
        "finish_reason": "stop",
        "window": {
            "tokens": 100_000,
            "system": 1,
            "summary": 0,
            "history": 0,
            "recalled": 0,
            "new": 7,
            "reserve": llm.sampling_params({}).max_tokens,
            "free": 100_000 - llm.sampling_params({}).max_tokens - 8,
            "policy": "truncate",
            "recall": True,
            "start": None,
            "outside": 0,
            "left": 0,
            "unsummarised": 0,
            "summary_id": None,
            "recalled_messages": [],
        },
        "cache": {"known": 0, "cause": "first_use", "why": "First use", "message": None, "position": None},
        "text": words(5),
        "thinking": "",
    }


def test_json_tells_what_left_the_window_and_what_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts add up to the prompt, as in the gauge; the rest is what the generation has stored."""
    monkeypatch.setattr(llm, "window", lambda model="": 1000)
    first = asked("My cat is called Ophelia.")
    lines = [first]
    for number in range(10):
        text = "And what about Ophelia?" if number == 9 else f"question {number} ".ljust(60, ".")
        lines.append(asked("--conversation", first["conversation"], text))
    window = lines[-1]["window"]
    for line in lines:
        parts = [line["window"][name] for name in ("system", "summary", "history", "recalled", "new")]
        assert sum(parts) == line["prompt_tokens"]
        assert line["window"]["free"] == 1000 - line["window"]["reserve"] - line["prompt_tokens"]
    generation = Generation.objects.get(message_id=lines[-1]["message"])
    assert (window["start"], window["outside"]) == (str(generation.window_start), generation.num_outside)
    assert window["outside"] > 0
    context = TurnContext.objects.get(message__text="And what about Ophelia?")
    assert window["recalled_messages"] == context.sources == [str(Message.objects.get(position=0).id)]
    assert window["recalled"] == len(context.text)
    moved = next(line for line in lines if line["window"]["left"])
    assert moved["cache"]["cause"] in PrefixBreak.values
    assert moved["cache"]["why"] == PrefixBreak(moved["cache"]["cause"]).label


def test_json_names_the_message_from_which_on_it_was_read_again() -> None:
    first = asked("Hello")
    asked("--conversation", first["conversation"], "And?")
    Conversation.objects.update(system_prompt="Be brief.")
    cache = asked("--conversation", first["conversation"], "So?")["cache"]
    assert (cache["cause"], cache["message"], cache["position"]) == ("preset_changed", None, None)


def test_a_conversation_goes_on() -> None:
    first = asked("Hello")
    second = asked("--conversation", first["conversation"], "And?")
    assert second["conversation"] == first["conversation"]
    assert second["prompt_tokens"] > first["prompt_tokens"] + len(words(5))
    assert [message.position for message in Message.objects.order_by("position")] == [0, 1, 2, 3]


def test_before_the_first_visit_the_owner_is_made_and_later_claimed() -> None:
    line = asked("Hello")
    owner = accounts.owner_create(username="ada", password="correct horse battery")
    assert selectors.conversation_get(owner, uuid.UUID(line["conversation"]))


def test_whose_conversation_it_is(alice: User, bob: User) -> None:
    with pytest.raises(CommandError, match="whose"):
        run_ask("Hello")
    line = asked("--user", "alice", "Hello")
    assert Conversation.objects.get().owner == alice
    with pytest.raises(CommandError, match="bob has no conversation"):
        run_ask("--user", "bob", "--conversation", line["conversation"], "Hello")
    with pytest.raises(CommandError, match="no active user"):
        run_ask("--user", "carol", "Hello")


def test_a_title_of_ones_own() -> None:
    asked("--title", "Mine", "Hello")
    assert Conversation.objects.get().title == "Mine"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
    run_ask("-")
    assert Message.objects.get(role="user").text == "from a pipe\n"


@pytest.mark.parametrize(("text", "said"), [("", "empty"), ("x" * 200_000, "200,000"), ("\ud800", "stored")])
def test_a_message_that_cannot_be_stored_costs_no_model(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "start", lambda: pytest.fail("the model was loaded"))
    with pytest.raises(CommandError, match=said):
        run_ask(text)


def test_another_model_answers_from_now_on(settings: Any, tmp_path: Path) -> None:
    for name in ("llama", "qwen3"):
        shutil.copytree(ROOT / "tests" / "data" / "models" / name, tmp_path / "models" / name)
    settings.RECOLLECT_MODEL = tmp_path / "models" / "llama"
    first = asked("Hello")
    assert Conversation.objects.get().model_name == "llama"
    _out, err = run_ask("--conversation", first["conversation"], "--model", "qwen3", "And you?")
    assert "tokens will be read anew by qwen3." in err
    assert Conversation.objects.get().model_name == "qwen3"
    _out, err = run_ask("--conversation", first["conversation"], "Go on")
    assert "read anew" not in err
    with pytest.raises(CommandError, match="no model named gpt-9; there are llama, qwen3"):
        run_ask("--model", "gpt-9", "Hello")


def test_a_model_that_cannot_be_loaded_is_an_error_and_stores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(PacedWorker):
        def start(self) -> None:
            self.model_state, self.model_error = "failed", "gone.gguf: there is no such file"

    monkeypatch.setattr(llm.host, "Worker", lambda *args, **kwargs: Broken())
    with pytest.raises(CommandError, match=r"gone.gguf.*manage.py fetch_model"):
        run_ask("Hello")
    assert not Conversation.objects.exists()


def test_ctrl_c_stops_the_reply_and_keeps_its_text(paced: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    paced.update(num_words=100_000)
    printed: list[str] = []

    def press(self: ask.Command, text: str) -> None:
        printed.append(text)
        if len(printed) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ask.Command, "_print", press)
    with pytest.raises(SystemExit) as caught:
        run_ask("Hello")
    assert caught.value.code == 130
    message = Message.objects.get(role="assistant")
    assert message.status == "stopped"
    assert message.text == "".join(printed)


def test_ctrl_c_while_the_question_is_being_stored_stops_the_reply_to_it(
    paced: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that it would be found open, and called interrupted, by the next start."""
    paced.update(num_words=100_000)
    admit = run._admit

    def pressed(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return admit(*args)

    monkeypatch.setattr(run, "_admit", pressed)
    with pytest.raises(SystemExit) as caught:
        run_ask("Hello")
    assert caught.value.code == 130
    assert Message.objects.get(role="assistant").status == "stopped"


def test_ctrl_c_while_the_model_is_loaded_stores_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(PacedWorker):
        def start(self) -> None:
            self.model_state = "loading"
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(llm.host, "Worker", lambda *args, **kwargs: Slow())
    with pytest.raises(CommandError, match=r"^Interrupted. Nothing has been stored.$") as caught:
        run_ask("Hello")
    assert caught.value.returncode == 130
    assert not Conversation.objects.exists()


def test_a_second_ctrl_c_does_not_wait_for_the_end_of_the_reply() -> None:
    async def press_twice() -> None:
        is_pressed = ask._ctrl_c()
        signal.raise_signal(signal.SIGINT)
        await is_pressed.wait()
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(press_twice())


@pytest.mark.model
@pytest.mark.slow
def test_a_new_process_on_the_real_model_remembers(model_path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "RECOLLECT_DATA": str(tmp_path / "data"), "RECOLLECT_MODEL": str(model_path)}
    environment |= {"DJANGO_SETTINGS_MODULE": "chatapp.settings"}

    def manage(*args: str) -> str:
        command = [sys.executable, "manage.py", *args]
        return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout

    manage("migrate", "--verbosity", "0")
    first = json.loads(manage("ask", "--json", "My name is Ada. Say hello.").splitlines()[-1])
    line = json.loads(manage("ask", "--json", "--conversation", first["conversation"], "Hm?").splitlines()[-1])
    assert line["prompt_tokens"] > first["prompt_tokens"] + first["generated"]
    assert line["prompt_tokens"] == line["reused_ram"] + line["reused_disk"] + line["computed"]


@pytest.mark.parametrize(("has_thinking", "printed"), [(False, "So it is."), (True, "Hm.\n\nSo it is.")])
def test_thinking_is_printed_only_when_it_is_asked_for(has_thinking: bool, printed: str) -> None:
    out = io.StringIO()
    tell = ask.Command(stdout=out)._printer(has_thinking)
    for thought, answer in (("H", ""), ("m.", ""), ("", "So "), ("", "it is.")):
        tell(thought, answer)
    assert out.getvalue() == printed
