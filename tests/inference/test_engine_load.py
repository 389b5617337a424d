"""What loading a model tells whoever runs it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from inference.config import EngineConfig
from inference.engine.model_loader import load_engine
from tests.inference import tiny_models as tiny


@pytest.mark.parametrize(("filters", "num_notes"), [("", 0), (" | trim", 1)])
def test_the_log_says_what_the_template_does_to_the_history(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, filters: str, num_notes: int
) -> None:
    made = tiny.tiny_gguf()
    source = tiny.TEMPLATE.replace("m['content']", f"(m['content']{filters})")
    made.set("tokenizer.chat_template", tiny.STRING, source)
    with caplog.at_level(logging.INFO, "inference.engine.model_loader"):
        load_engine(made.write(tmp_path / "m.gguf"), EngineConfig(pool_tokens=64))
    notes = [record.getMessage() for record in caplog.records if "template" in record.getMessage()]
    assert len(notes) == num_notes
    assert all(note.startswith("m: The template trims") for note in notes)
