"""The first pass of a process, which the first reply after a restart waits for, compiles nothing any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.model, pytest.mark.slow]

# Loading finds all kernels in the folder, or leaves them there.
PROGRAM = """
import sys
from numba.core import event
from inference.bench.conversation import Interview, question
from inference.config import EngineConfig
from inference.engine.model_loader import load_engine

class Compiled(event.Listener):
    names = []
    def on_start(self, found):
        self.names.append(found.data["dispatcher"].py_func.__name__)
    def on_end(self, found):
        pass

engine = load_engine(sys.argv[1], EngineConfig(pool_tokens=1024, num_threads=2, kernel_cache=sys.argv[2]))
assert engine.info.kernel_tier != "numpy"
with event.install_listener("numba:compile", Compiled()):
    Interview(engine).ask([question(1)])
print("compiled:", *Compiled.names)
"""


def test_first_pass_of_a_process_compiles_nothing(model_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(model_path), str(ROOT / "var" / "kernels")]
    ran = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1] == "compiled:"
