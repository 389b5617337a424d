"""`manage.py fetch_model NAME` that is interrupted, runs into a limit of the system, or is there twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chatapp import hub_download
from tests.chatapp.hub_server import HubServer
from tests.chatapp.hub_world import NAME, WEIGHTS, fetch, models_folder, refusal, tiny_hub
from tests.conftest import ROOT
from tests.patience import PATIENCE_S


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with tiny_hub(monkeypatch) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    return models_folder(tmp_path, settings)


@pytest.fixture
def command(hub: HubServer, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts the command as a person does, in a process of its own."""
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "chatapp.settings",
        "HF_ENDPOINT": hub.url,
        "RECOLLECT_DATA": str(tmp_path),
        "RECOLLECT_MODEL": "",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "3600",  # no read ends by itself
    }

    def start(*before: str) -> subprocess.Popen[str]:
        """before: what it is started by."""
        line = [*before, sys.executable, "manage.py", "fetch_model", NAME]
        return subprocess.Popen(
            line,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def ended(process: subprocess.Popen[str], status: int) -> tuple[str, str]:
    """What it has said, when it has ended so."""
    with process:
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status, stderr
    return stdout, stderr


def test_interrupted_it_keeps_what_has_come_and_says_so(
    hub: HubServer, tmp_path: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    hub.stalls[WEIGHTS] = threading.Event()
    process = command()
    assert hub.half_sent.wait(PATIENCE_S)
    part = _grown(tmp_path / "models" / ".fetch-Tiny-Qwen3", len(hub.repositories[NAME][WEIGHTS]) // 2, process)
    process.send_signal(signal.SIGINT)
    _, stderr = ended(process, 130)
    assert "Interrupted." in stderr
    assert "are kept: the same command goes on from there" in stderr
    assert len(stderr.splitlines()) == 1
    num_kept = part.stat().st_size
    hub.stalls.pop(WEIGHTS).set()
    hub.sent.clear()
    stdout, _ = ended(command(), 0)
    assert [entry[1] for entry in hub.sent if entry[0] == WEIGHTS] == [f"bytes={num_kept}-"]
    assert "\r" not in stdout


_UNLUCKY = """
import sys, threading
from tests.chatapp.unlucky import interrupt_when_blocked

def interrupt():
    sys.stdin.readline()
    interrupt_when_blocked()

threading.Thread(target=interrupt, daemon=True).start()
sys.argv = sys.argv[2:]
import manage
manage.main()
"""


def test_a_ctrl_c_that_comes_just_before_a_read_does_not_wait_for_its_end(
    hub: HubServer, tmp_path: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    hub.stalls[WEIGHTS] = threading.Event()
    process = command(sys.executable, "-c", _UNLUCKY)
    assert hub.half_sent.wait(PATIENCE_S)
    _grown(tmp_path / "models" / ".fetch-Tiny-Qwen3", len(hub.repositories[NAME][WEIGHTS]) // 2, process)
    assert process.stdin is not None
    process.stdin.write("now\n")
    process.stdin.flush()
    _, stderr = ended(process, 130)
    assert "are kept: the same command goes on from there" in stderr


def test_interrupted_while_the_files_are_put_in_place_nothing_is_fetched_again(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(hub_download, "_sync", _interrupted)  # of the folder, whose files have their names now
        assert "71 kB of 71 kB are kept: the same command goes on from there" in refusal()
    assert not (folder / "Tiny-Qwen3").exists()
    hub.sent.clear()
    fetch()
    assert {name for name, _, _ in hub.sent} == {"config.json"}
    assert (folder / "Tiny-Qwen3" / WEIGHTS).read_bytes() == hub.repositories[NAME][WEIGHTS]


def test_interrupted_when_the_model_is_in_place_only_the_rest_is_tidied_up(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(hub_download.shutil, "rmtree", _interrupted_in_workshop)
        assert "Tiny-Qwen3 is there: nothing is left to be fetched" in refusal()
    assert "its checksums are right" in fetch()
    assert [path.name for path in folder.iterdir()] == ["Tiny-Qwen3"]


def _interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt


def _interrupted_in_workshop(place: Path, **options: Any) -> None:
    if place.name.startswith(hub_download.WORKSHOP_PREFIX):
        raise KeyboardInterrupt


def test_a_disk_that_takes_no_more_in_the_middle_of_a_file_leaves_the_rest_to_the_next_run(
    hub: HubServer, tmp_path: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    """The system itself refuses to write on: at so many bytes of any file."""
    models, limit = tmp_path / "models", 30_000
    limited = (
        "import os, resource, sys; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); os.execv(sys.argv[1], sys.argv[1:])"
    )
    _, stderr = ended(command(sys.executable, "-c", limited), 1)
    assert "takes no file as large as" in stderr
    assert "34.5 kB of 71 kB are kept: the same command goes on from there" in stderr
    assert len(stderr.splitlines()) == 1
    assert [path.name for path in models.iterdir()] == [".fetch-Tiny-Qwen3"]
    hub.sent.clear()
    stdout, _ = ended(command(), 0)
    assert "34.5 kB of it are here from before" in stdout
    assert [entry[1] for entry in hub.sent if entry[0] == WEIGHTS] == [f"bytes={limit}-"]
    assert (models / "Tiny-Qwen3" / WEIGHTS).read_bytes() == hub.repositories[NAME][WEIGHTS]
    assert [path.name for path in models.iterdir()] == ["Tiny-Qwen3"]


def test_of_two_commands_at_once_one_fetches_and_one_says_so(
    hub: HubServer, tmp_path: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    hub.stalls[WEIGHTS] = threading.Event()
    first = command()
    assert hub.half_sent.wait(PATIENCE_S)
    _, stderr = ended(command(), 1)
    assert "Tiny-Qwen3 is being fetched by another process." in stderr
    hub.stalls.pop(WEIGHTS).set()
    ended(first, 0)
    assert len([entry for entry in hub.sent if entry[0] == WEIGHTS]) == 2  # the second half after the stall
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["Tiny-Qwen3"]


def _grown(folder: Path, num_bytes: int, process: subprocess.Popen[str]) -> Path:
    """The part that has so many bytes, which have been sent already."""
    while process.poll() is None:
        for part in folder.glob("*.part"):
            if part.stat().st_size >= num_bytes:
                return part
    raise AssertionError("ended by itself")
