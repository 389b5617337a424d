"""What every test may ask for."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.examples import register_profiles
from tests.shared_kernels import share_default_kernels

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_MODEL = ROOT / "var" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"

# In the background of a script Ctrl-C is ignored, and what is started there inherits that: no test could interrupt it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
share_default_kernels()
register_profiles()


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model, which `make setup` fetches. Missing is a failure, not a skip."""
    path = Path(os.environ.get("RECOLLECT_TEST_MODEL") or DEFAULT_MODEL)
    if not path.is_file():
        pytest.fail(f"{path} is missing: run `make setup`")
    return path


class _ByFile(LoadFileScheduling):
    """Which worker runs what (`pytest -n 2`): files stay whole, since they share what they load, and so do all browser
    tests, which share one server and one Chromium. In the order of collection: those wait the most, and so begin."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "tests/browser" if file.startswith("tests/browser/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile:
    config.option.loadscopereorder = False
    return _ByFile(config, log)
