"""What the model chip says in each state of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from chatapp.llm import EngineState, EngineStats, EngineStatus, ModelInfo
from chatapp.models import User
from chatapp.views.engine import describe

MODEL = ModelInfo("Tiny-Chat", "/models/tiny.gguf", "llama", 134_515_008, 30, 49_152, 2048, "numpy", "ab", "cd", 23_040)


def test_a_ready_model_is_named_as_its_file_with_its_numbers(settings: Any) -> None:
    settings.RECOLLECT_MODEL = Path("/models/Tiny-1.5B.Q4_1.gguf")
    stats = EngineStats(num_blocks=100, num_blocks_cached=75, block_size=16, num_running=1, num_waiting=2)
    told = describe(EngineStatus(EngineState.READY, 1.0, "", MODEL, stats))
    assert (told["state"], told["label"], told["command"]) == ("ready", "Tiny-1.5B.Q4_1", "")
    assert dict(told["facts"]) == {
        "Parameters": "135 million",
        "Window": "2,048 tokens",
        "Kernels": "numpy",
        "Remembered now": "1,200 tokens",
        "Requests running, waiting": "1, 2",
    }


def test_a_loading_model_tells_how_far_it_is(settings: Any) -> None:
    told = describe(EngineStatus(EngineState.LOADING, 0.376, "The model is being loaded.", None, None))
    assert (told["state"], told["label"]) == ("loading", "Loading model, 38 %")
    assert told["name"] == settings.RECOLLECT_MODEL.stem


@pytest.mark.parametrize(("exists", "command"), [(False, "python manage.py fetch_model"), (True, "")])
def test_a_model_that_is_missing_can_be_fetched(settings: Any, tmp_path: Path, exists: bool, command: str) -> None:
    settings.RECOLLECT_MODEL = tmp_path / "model.gguf"
    if exists:
        settings.RECOLLECT_MODEL.write_bytes(b"not a model")
    told = describe(EngineStatus(EngineState.FAILED, 0.0, "The model could not be loaded: x.", None, None))
    assert told["message"] == "The model could not be loaded: x."
    assert (told["label"], told["command"]) == ("Model failed to load", command)


def test_the_page_can_ask_again(client: Client, alice: User) -> None:
    client.force_login(alice)
    assert client.get(reverse("engine")).json()["state"] == "off"
    assert client.get(reverse("engine")).headers["Cache-Control"] == "private, no-store"
