"""A hub with one small repository, and `manage.py fetch_model` called on it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from huggingface_hub import constants

from tests.chatapp.hub_server import HubServer, running
from tests.conftest import ROOT

MODEL = ROOT / "tests" / "data" / "models" / "qwen3"
NAME = "tests/Tiny-Qwen3"
WEIGHTS = "model.safetensors"


@contextmanager
def tiny_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Its repository also holds what nobody wants."""
    files = {path.name: path.read_bytes() for path in MODEL.iterdir() if path.name != "expected.npz"}
    unwanted = ("pytorch_model.bin", "original/model.safetensors", "onnx/model.onnx", "README.md", "training_args.pt")
    server = HubServer({NAME: files | dict.fromkeys(unwanted, b"not wanted")})
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    with running(server):
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield server


def models_folder(data: Path, settings: Any) -> Path:
    """Where the model will be, which is to become the default one."""
    settings.RECOLLECT_DATA = data
    settings.RECOLLECT_MODEL = data / "models" / "Tiny-Qwen3"
    return data / "models"


def fetch(*arguments: str) -> str:
    stdout = io.StringIO()
    call_command("fetch_model", *(arguments or (NAME,)), stdout=stdout)
    return stdout.getvalue()


def refusal(*arguments: str) -> str:
    with pytest.raises(CommandError) as caught:
        fetch(*arguments)
    return str(caught.value)
