"""`manage.py fetch_model NAME`: whole and right, or not there at all; and nothing is fetched twice."""

from __future__ import annotations

import hashlib
import io
import shutil
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from huggingface_hub import constants

from chatapp import hub_download, model_catalogue
from chatapp.default_model import FetchError
from chatapp.hub import Hub
from inference import cli
from tests.chatapp.hub_server import COMMIT, TOKEN, HubServer
from tests.chatapp.hub_world import MODEL, NAME, WEIGHTS, fetch, models_folder, refusal, tiny_hub
from tests.inference import tiny_models as tiny
from tests.inference.test_formats_gguf_parts import split


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with tiny_hub(monkeypatch) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    return models_folder(tmp_path, settings)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long would have been waited before a connection was taken up again."""
    waited: list[float] = []
    monkeypatch.setattr(hub_download, "time", SimpleNamespace(sleep=waited.append))
    return waited


def test_fetches_what_is_needed_and_runs_it(hub: HubServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = fetch()
    target = folder / "Tiny-Qwen3"
    needed = {"config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS}
    assert {path.name for path in target.iterdir()} == needed
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        name: hub.repositories[NAME][name] for name in needed
    }
    assert {path.name for path in folder.iterdir()} == {"Tiny-Qwen3"}
    assert all(NAME in path for path in hub.asked)  # nothing else is told to the hub
    assert f"Fetching {NAME} at {COMMIT[:12]}: 4 files, 71 kB." in said
    assert f"RECOLLECT_MODEL={target} make serve" in said
    assert model_catalogue.get("Tiny-Qwen3").can_run
    greedy = ["--temperature", "0", "--max-tokens", "4", "--threads", "1"]
    assert cli.main(["hello", "--model", str(target), *greedy]) == 0
    fetched = capsys.readouterr().out
    assert cli.main(["hello", "--model", str(MODEL), *greedy]) == 0
    assert fetched == capsys.readouterr().out


def test_a_second_run_compares_and_fetches_nothing(hub: HubServer, folder: Path) -> None:
    fetch()
    hub.sent.clear()
    assert "is there already, its checksums are right" in fetch(NAME, "--revision", "main")
    assert {name for name, _, _ in hub.sent} <= {"config.json"}  # looked at before anything else
    (folder / "Tiny-Qwen3" / "tokenizer.json").write_bytes(b"{}")
    assert "differs from the hub's (tokenizer.json)" in refusal()


def test_a_connection_that_breaks_is_taken_up_where_it_was(hub: HubServer, folder: Path) -> None:
    hub.cuts[WEIGHTS] = [10_000, 0, 5_000]
    fetch()
    size = len(hub.repositories[NAME][WEIGHTS])
    assert [entry[1:] for entry in hub.sent if entry[0] == WEIGHTS] == [
        ("", 10_000),
        ("bytes=10000-", 0),
        ("bytes=10000-", 5_000),
        ("bytes=15000-", size - 15_000),
    ]


def test_a_hub_that_is_busy_is_asked_again_when_it_says(hub: HubServer, folder: Path, pauses: list[float]) -> None:
    in_a_minute = formatdate(time.time() + 60, usegmt=True)
    refusals: list[tuple[int, dict[str, str]]] = [(503, {}), (429, {"Retry-After": "30"}), (502, {"Retry-After": "0"})]
    hub.refusals[WEIGHTS] = [*refusals, (429, {"Retry-After": in_a_minute}), (500, {"Retry-After": "soon"})]
    fetch()
    assert pauses[:3] + pauses[4:] == [1, 30, 4, 16]
    assert 8 < pauses[3] <= 60
    assert (folder / "Tiny-Qwen3" / WEIGHTS).read_bytes() == hub.repositories[NAME][WEIGHTS]


def test_a_hub_that_wants_to_be_left_alone_for_long_is_left_alone(
    hub: HubServer, folder: Path, pauses: list[float]
) -> None:
    hub.refusals[WEIGHTS] = [(429, {"Retry-After": "3600"})]
    assert "answered 429 when asked for tests/Tiny-Qwen3. Try again in 3600 s. 4.51 kB of 71 kB are kept" in refusal()
    assert pauses == []
    fetch()


def test_a_network_that_ends_in_the_middle_and_comes_back(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, others = hub.other_port, [1, 1]
    hub.cuts[WEIGHTS] = [10_000]

    def network_changes(seconds: float) -> None:
        hub.other_port = others.pop() if others else port

    monkeypatch.setattr(hub_download, "time", SimpleNamespace(sleep=network_changes))
    fetch()
    size = len(hub.repositories[NAME][WEIGHTS])
    weights = [entry[1:] for entry in hub.sent if entry[0] == WEIGHTS]
    assert weights == [("", 10_000), ("bytes=10000-", size - 10_000)]


def test_a_network_that_ends_in_the_middle_and_stays_away(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, hub.cuts[WEIGHTS] = hub.other_port, [10_000]
    away = SimpleNamespace(sleep=lambda seconds: setattr(hub, "other_port", 1))
    monkeypatch.setattr(hub_download, "time", away)
    sentence = refusal()
    assert "cannot be reached" in sentence
    assert "14.5 kB of 71 kB are kept: the same command goes on from there" in sentence
    hub.other_port = port
    assert "14.5 kB of it are here from before" in fetch()


def test_a_run_that_was_given_up_is_taken_up_by_the_next_one(hub: HubServer, folder: Path) -> None:
    hub.cuts[WEIGHTS] = [10_000, *[0] * hub_download.MAX_FAILURES]
    sentence = refusal()
    assert "are kept: the same command goes on from there" in sentence
    assert not (folder / "Tiny-Qwen3").exists()
    assert model_catalogue.installed()[0].problem  # nothing half is offered
    stdout = io.StringIO()
    call_command("models", stdout=stdout)
    assert "Tiny-Qwen3: unfinished, 14.5 kB in .fetch-Tiny-Qwen3" in stdout.getvalue()
    hub.sent.clear()
    said = fetch()
    assert "of it are here from before" in said
    size = len(hub.repositories[NAME][WEIGHTS])
    assert [entry for entry in hub.sent if entry[0] != "config.json"] == [(WEIGHTS, "bytes=10000-", size - 10_000)]
    assert (folder / "Tiny-Qwen3" / WEIGHTS).read_bytes() == hub.repositories[NAME][WEIGHTS]


def test_a_server_that_sends_only_whole_files_is_begun_anew(hub: HubServer, folder: Path) -> None:
    hub.can_resume = False
    hub.cuts[WEIGHTS] = [10_000]
    fetch()
    assert (folder / "Tiny-Qwen3" / WEIGHTS).read_bytes() == hub.repositories[NAME][WEIGHTS]


@pytest.mark.parametrize(("file", "digest"), [(WEIGHTS, "ab" * 32), ("tokenizer.json", "cd" * 20)])
def test_a_wrong_checksum_is_refused_and_not_kept(hub: HubServer, folder: Path, file: str, digest: str) -> None:
    hub.stated[file] = digest
    assert f"{file} of {NAME} has the checksum" in refusal()
    assert not (folder / "Tiny-Qwen3").exists()
    assert not list(folder.rglob(f"*{digest}*"))
    del hub.stated[file]
    fetch()


def test_who_comes_when_another_has_just_finished_fetches_nothing(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model appears between the look at the folder and the lock."""
    look = hub_download.is_there

    def and_then_it_appears(*arguments: Any) -> bool:
        found = look(*arguments)
        shutil.copytree(MODEL, folder / "Tiny-Qwen3")
        return found

    monkeypatch.setattr(hub_download, "is_there", and_then_it_appears)
    assert "Tiny-Qwen3 has just been fetched by another process." in refusal()
    assert {name for name, _, _ in hub.sent} == {"config.json"}
    assert [path.name for path in folder.iterdir()] == ["Tiny-Qwen3"]


def test_two_at_once_do_not_write_one_file(hub: HubServer, folder: Path) -> None:
    with hub_download._workshop(folder / "Tiny-Qwen3"):
        assert "is being fetched by another process" in refusal()
    fetch()


def test_a_full_disk_is_said_before_anything_is_fetched(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(folder.parent)
    monkeypatch.setattr(hub_download.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert "needs 71 kB more" in (sentence := refusal())
    assert "has 1 kB left" in sentence
    assert {name for name, _, _ in hub.sent} == {"config.json"}


def test_a_disk_that_is_full_in_the_middle_leaves_the_rest_to_the_next_run(hub: HubServer, folder: Path) -> None:
    workshop = folder / ".fetch-Tiny-Qwen3"
    workshop.mkdir(parents=True)
    part = workshop / f"{hashlib.sha256(hub.repositories[NAME][WEIGHTS]).hexdigest()}.part"
    part.symlink_to("/dev/full")
    assert "The disk is full. 4.51 kB of 71 kB are kept" in refusal()
    part.unlink()
    fetch()


def test_offline_is_said(hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert "cannot be reached" in (sentence := refusal())
    assert "Is this machine offline?" in sentence
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal()


def test_an_unknown_repository_or_revision_is_said(hub: HubServer, folder: Path) -> None:
    assert f"There is no repository tests/Other at {hub.url}" in refusal("tests/Other")
    assert f"{NAME} has no revision v2" in refusal(NAME, "--revision", "v2")
    assert "'../v2' is no revision" in refusal(NAME, "--revision", "../v2")


def test_a_gated_repository_opens_to_a_token_which_goes_no_further(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated.add(NAME)
    assert "is gated. Its authors want to know who asks" in (sentence := refusal())
    assert f"{hub.url}/{NAME}" in sentence
    assert "HF_TOKEN" in sentence
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "The account of this token has no access yet" in refusal()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fetch()
    assert hub.leaked == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (503, "answered 503"),
        (429, "answered 429 when asked for tests/Tiny-Qwen3. Try again later."),
        (403, "HF_TOKEN is missing, wrong, or may not read"),
        (401, "HF_TOKEN is missing, wrong, or may not read"),
        (404, "has no tests/Tiny-Qwen3 (404). Is the name right"),
    ],
)
def test_a_hub_that_refuses_is_quoted(hub: HubServer, folder: Path, status: int, said: str) -> None:
    hub.status = status
    assert said in refusal()


def test_a_server_that_is_no_hub_is_told(hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HubServer, "listing", lambda self, repository: {"id": repository, "sha": "main"})
    assert "does not answer as a Hugging Face hub does" in refusal()


@pytest.mark.parametrize(
    "name",
    [
        *("../secrets", "/etc/passwd", ".", "./models", "~/model", "a/..", "a/b/c", "a\\b/c", "a/b\n"),
        *("Tiny", "https://hub/a/b", "a/b.gguf"),
    ],
)
def test_a_name_that_is_a_path_is_refused_without_asking(hub: HubServer, folder: Path, name: str) -> None:
    assert "is no name of a repository" in refusal(name)
    assert hub.asked == []


def test_an_architecture_that_cannot_run_is_refused_before_it_is_fetched(hub: HubServer, folder: Path) -> None:
    config = hub.repositories[NAME]["config.json"]
    hub.repositories[NAME]["config.json"] = config.replace(b'"qwen3"', b'"mamba"')
    assert f"{NAME} cannot be run here: config.json: architecture 'mamba' is not supported; known:" in refusal()
    assert {name for name, _, _ in hub.sent} == {"config.json"}


def test_a_gguf_file_is_one_file_and_can_have_another_name(hub: HubServer, folder: Path) -> None:
    hub.repositories["tests/Tiny-GGUF"] = {"Tiny-F32.gguf": tiny.tiny_gguf().bytes(), "README.md": b""}
    fetch("tests/Tiny-GGUF")
    fetch("tests/Tiny-GGUF", "--name", "other")
    assert {path.name for path in folder.iterdir()} == {"Tiny-F32.gguf", "other.gguf"}
    assert model_catalogue.get("other").can_run
    assert "is no name for a model" in refusal("tests/Tiny-GGUF", "--name", "../other")
    hub.gguf_architecture["tests/Tiny-GGUF"] = "mamba"
    assert "architecture 'mamba' is not supported" in refusal("tests/Tiny-GGUF", "--name", "third")


def test_the_parts_of_a_split_file_lie_in_a_folder_of_their_name(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    parts = {f"F32/{path.name}": path.read_bytes() for path in split(tmp_path / "parts")}
    hub.repositories["tests/Tiny-GGUF"] = parts | {"Q8_0/tiny-Q8_0.gguf": b""}
    said = fetch("tests/Tiny-GGUF", "--file", "tiny-0*")
    assert {path.name for path in folder.iterdir()} == {"tiny"}
    assert f"RECOLLECT_MODEL={folder}/tiny/tiny-00001-of-00003.gguf" in said
    assert model_catalogue.get("tiny").can_run


def test_without_a_name_nothing_is_fetched_for_another_default(hub: HubServer, folder: Path) -> None:
    stdout = io.StringIO()
    call_command("fetch_model", stdout=stdout)
    assert "the default model is not needed" in stdout.getvalue()
    assert hub.asked == []


def test_options_of_a_repository_need_one() -> None:
    assert "belong to the NAME of a repository" in refusal("--revision", "main")


def test_equal_files_are_all_there(hub: HubServer, folder: Path) -> None:
    hub.repositories[NAME]["generation_config.json"] = b"{}"
    hub.repositories[NAME]["tokenizer_config.json"] = b"{}"
    fetch()
    target = folder / "Tiny-Qwen3"
    assert (target / "generation_config.json").read_bytes() == (target / "tokenizer_config.json").read_bytes() == b"{}"


def test_what_turns_out_not_to_run_is_said(hub: HubServer, folder: Path) -> None:
    hub.repositories[NAME][WEIGHTS] = (MODEL.with_name("llama") / WEIGHTS).read_bytes()
    assert "It cannot be run, though: Tiny-Qwen3: the tensor" in refusal()


def test_more_bytes_than_listed_are_refused(hub: HubServer, folder: Path) -> None:
    repository = Hub(NAME)
    choice = hub_download.choose(repository, "")
    hub.repositories[NAME][WEIGHTS] += b"more"
    with pytest.raises(FetchError, match="sends more of"):
        hub_download.download(repository, choice, folder / "Tiny-Qwen3", lambda what, done, total: None)
    assert not (folder / "Tiny-Qwen3").exists()
