"""Ctrl-C at the worst moments: none is lost, and it ends a command with one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chatapp.interrupts import EXIT_INTERRUPTED, heard
from tests.conftest import ROOT
from tests.patience import PATIENCE_S

BLOCKING = """
    lambda: os.read(os.pipe()[0], 1),
    lambda: end.recv(1),  # with a timeout: another way to wait
    lambda: threading.Event().wait(),
    lambda: asyncio.Runner(loop_factory=lambda: loop).run(asyncio.sleep(3600)),  # a loop half made would complain
    lambda: subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL).wait(),
"""
_WAITS = """
import asyncio, os, signal, socket, subprocess, sys, threading
from chatapp.interrupts import heard
from tests.chatapp.unlucky import interrupt_soon, raise_in_vain

end, other = socket.socketpair()
end.settimeout(3600)
loop = asyncio.new_event_loop()
for wait in ({blocking}):
    try:
        with heard():
            {how}()
            wait()
    except KeyboardInterrupt:
        print("heard")
"""


@pytest.mark.parametrize("how", ["interrupt_soon", "raise_in_vain"])
def test_whatever_the_main_thread_waits_for_a_ctrl_c_at_the_worst_moment_is_heard(how: str) -> None:
    program = _WAITS.format(blocking=BLOCKING, how=how)
    command = [sys.executable, "-W", "ignore", "-c", program]  # the coroutine may not have begun
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("heard\n" * 5, "")


def test_where_it_is_ignored_it_stays_so() -> None:
    """As for `command &` in a script: the Ctrl-C is for what runs in front."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with heard():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, former)


def test_afterwards_all_is_as_it_was() -> None:
    def state() -> tuple[object, ...]:
        file_descriptor = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(file_descriptor)
        threads = {thread.name for thread in threading.enumerate()}
        return sys.unraisablehook, signal.getsignal(signal.SIGURG), file_descriptor, threads

    before = state()
    with heard():
        assert state() != before
    assert state() == before


@pytest.mark.parametrize("module", ["django", "settings"])
def test_a_command_that_is_interrupted_while_it_begins_says_so_in_one_line(tmp_path: Path, module: str) -> None:
    """Before a command is there that could: Ctrl-C comes exactly when `module` is imported."""
    place = tmp_path / "django" / "__init__.py" if module == "django" else tmp_path / "interrupted_settings.py"
    place.parent.mkdir(exist_ok=True)
    place.write_text("import signal; signal.raise_signal(signal.SIGINT)")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "DJANGO_SETTINGS_MODULE": "interrupted_settings"}
    done = subprocess.run(
        [sys.executable, "manage.py", "models"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_INTERRUPTED, "", "Interrupted.\n")


def test_what_the_tests_start_can_be_interrupted() -> None:
    """Also in the background of a script, where Ctrl-C is ignored, which children inherit."""
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    ignoring = "import signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); import tests.conftest; "
    run = f"print(subprocess.run([sys.executable, '-c', {program!r}], capture_output=True, text=True).stdout)"
    done = subprocess.run([sys.executable, "-c", ignoring + run], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
