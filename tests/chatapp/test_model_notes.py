"""What is noted about a model: one sentence a code in each language, the English ones in the engine's words."""

from __future__ import annotations

import re

import pytest
from django.utils import translation

from chatapp import llm
from chatapp.model_notes import sentence
from inference.notes import SENTENCES

VALUES: dict[str, str | int] = {"num": 27, "names": "vision.*", "mark": "<think>", "total": 20, "reread": 12}


def note(code: llm.NoteCode) -> llm.Note:
    """With just the values that its sentence has a place for."""
    return llm.Note(code, {name: VALUES[name] for name in re.findall(r"{(\w+)}", SENTENCES[code])})


@pytest.mark.parametrize("code", llm.NoteCode)
def test_a_note_is_said_in_the_language_of_its_reader(code: llm.NoteCode) -> None:
    with translation.override("en"):
        assert sentence(note(code)) == str(note(code))
    with translation.override("zh-hans"):
        said = sentence(note(code))
    assert re.search("[\u4e00-\u9fff]", said)
    assert all(str(value) in said for value in note(code).values.values())
