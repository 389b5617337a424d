"""Kernels are compiled in a process of their own, which leaves them in a folder and tells how far it is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inference.kernels.jit import compile_ahead as room
from inference.kernels.jit.compile_ahead import CompilingFailed, compile_ahead, is_compiled
from inference.kernels.jit.kernel_cache import UNUSED_S, entry, folder_of
from inference.kernels.quantized import FloatForm, IntegerForm
from tests.conftest import ROOT

SAY_ENTRIES = "from inference.kernels.jit.kernel_cache import source_times; print(source_times())"
FORMS = (FloatForm("f16"), IntegerForm("u4", 32, "f16", has_minimum=True))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder that claims to hold the pass, so that only products are left to compile."""
    mark = room._mark(tmp_path)
    mark.parent.mkdir(parents=True)
    mark.touch()
    return tmp_path


def test_the_child_leaves_products_in_the_folder(root: Path) -> None:
    assert not is_compiled(root, "generic", FORMS[:1])
    seen: list[float] = []
    compile_ahead(root, "generic", FORMS[:1], seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert is_compiled(root, "generic", FORMS[:1])
    assert not is_compiled(root, "generic", FORMS), "a form that was not asked for"
    assert len(list(folder_of(root).glob("linear-*.o"))) == 2  # of the form, and of activations
    room._mark(root).unlink()
    assert not is_compiled(root, "generic", FORMS[:1]), "the pass was never finished"


def test_the_child_compiles_all_that_an_engine_calls() -> None:
    """Entries of a file that it does not import would be missing, and every load would start a child in vain."""
    imports = "inference.kernels.jit.compile_ahead", "inference.model.compiled"
    known = [
        subprocess.run(
            [sys.executable, "-c", f"import {name}; {SAY_ENTRIES}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in imports
    ]
    assert known[0] == known[1]
    assert "storage.py" in known[0]


def test_a_child_that_fails_says_why(root: Path) -> None:
    with pytest.raises(CompilingFailed, match=r"status 1: .*'no such tier'"):
        compile_ahead(root, "no such tier", FORMS[:1], lambda fraction: None)


@pytest.mark.parametrize("program", ["/bin/false", "/bin/true"])
def test_a_child_that_reads_nothing_is_no_surprise(root: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """/bin/true reports success without having done anything: what is missing is compiled where it is needed."""
    monkeypatch.setattr(sys, "executable", program)
    if program == "/bin/true":
        compile_ahead(root, "generic", FORMS[:1], lambda fraction: None)
    else:
        with pytest.raises(CompilingFailed, match="status 1: it said nothing"):
            compile_ahead(root, "generic", FORMS[:1], lambda fraction: None)


def test_folders_of_other_versions_go_when_nobody_has_used_them_for_a_week(root: Path) -> None:
    """Two versions may run side by side: neither takes away what the other is compiling."""
    for name, age_s in (("running", 0), ("left", UNUSED_S + 60)):
        (root / name).mkdir()
        os.utime(root / name, (time.time() - age_s,) * 2)
    os.utime(folder_of(root), (0, 0))
    compile_ahead(root, "generic", (), lambda fraction: None)
    assert {path.name for path in root.iterdir()} == {"running", folder_of(root).name}
    assert time.time() - folder_of(root).stat().st_mtime < UNUSED_S


def test_whoever_gives_up_leaves_no_child_behind(root: Path) -> None:
    def give_up(fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_ahead(root, "generic", FORMS, give_up)  # waits for the child, which it has killed
    assert not is_compiled(root, "generic", FORMS)


def program(folder: Path, text: str) -> str:
    """The path of one that takes the child's place."""
    path = folder / "child"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_whoever_gives_up_does_not_wait_for_a_word_of_the_child(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of it takes seconds."""
    monkeypatch.setattr(sys, "executable", program(root, "import signal; signal.pause()"))

    def give_up(fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_ahead(root, "generic", FORMS, give_up)


def test_a_ctrl_c_in_the_terminal_is_not_for_the_child(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended by it, it would seem to have failed, and what it should have compiled would be compiled here."""
    text = "import os, sys; sys.exit(f'in group {os.getpgid(0) - os.getpid()} from itself')"
    monkeypatch.setattr(sys, "executable", program(root, text))
    with pytest.raises(CompilingFailed, match="in group 0 from itself"):
        compile_ahead(root, "generic", FORMS, lambda fraction: None)


def test_an_entry_of_another_room_is_refused() -> None:
    """The mark of what is compiled names the files of all entries: one that only a test imports, and every load in that
    process would take nothing for compiled, start a child and wait for it."""

    def here(value: int) -> None:
        """Compiled nowhere."""

    with pytest.raises(AssertionError, match="of another room"):
        entry(here)
