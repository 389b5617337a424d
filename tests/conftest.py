"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_MODEL = ROOT / "var" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model, which `make setup` fetches. Missing is a failure, not a skip."""
    path = Path(os.environ.get("RECOLLECT_TEST_MODEL") or DEFAULT_MODEL)
    if not path.is_file():
        pytest.fail(f"{path} is missing: run `make setup`")
    return path
