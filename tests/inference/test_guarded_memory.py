"""Compiled passes read and write what they were given, and nothing beside it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are fenced by mprotect"),
]


def run(side: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.inference.guarded_memory", side]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("side", ["start", "end"])
def test_a_pass_touches_nothing_outside_of_what_it_was_given(side: str) -> None:
    child = run(side)
    assert child.returncode == 0, child.stderr[-2000:]
    assert "equal" in child.stdout


def test_a_pass_that_reads_behind_its_block_table_is_caught() -> None:
    child = run("table")
    assert child.returncode == -signal.SIGSEGV, child.stderr[-2000:]
