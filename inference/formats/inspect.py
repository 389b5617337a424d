"""What can be said about a model file that cannot be opened: its kind, its files, what it says that it is.

Looks at names, sizes and one field; whether the rest is sound is found out by open_model_file. os.path is asked what is
a directory: unlike Path it has no exceptions for what may not be looked at.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from inference.errors import ModelFileError
from inference.formats.architectures import GGUF_ARCHITECTURES
from inference.formats.file_bytes import FileBytes
from inference.formats.gguf_header import read_header
from inference.formats.gguf_parts import PART_NAME
from inference.formats.hf_config import read_config
from inference.formats.json_files import parse_json, read_json

GGUF, SAFETENSORS = "GGUF", "safetensors"


def kind_of(path: Path) -> str:
    """GGUF or SAFETENSORS, by the name: a model of the latter kind is a directory."""
    return SAFETENSORS if os.path.isdir(path) or path.suffix == ".safetensors" else GGUF


def model_name(path: Path) -> str:
    """What the model is called once it is loaded: the directory, or the file without its ending and number."""
    if os.path.isdir(path):
        return os.path.basename(os.path.realpath(path))
    named = PART_NAME.fullmatch(path.name)
    return named["stem"] if named else path.stem


def model_files(path: Path) -> tuple[Path, ...]:
    """The regular files that make up the model, by name: all of a directory, all parts that are there of a split file.

    Raises OSError when the directory cannot be listed."""
    if os.path.isdir(path):
        return tuple(sorted(Path(entry.path) for entry in os.scandir(path) if entry.is_file()))
    named = PART_NAME.fullmatch(path.name)
    if named is None:
        return (path,) if path.is_file() else ()
    parts = path.parent.glob("*.gguf")
    alike = (part for part in parts if (other := PART_NAME.fullmatch(part.name)) and _set_of(other) == _set_of(named))
    return tuple(sorted(part for part in alike if part.is_file()))


def stated_architecture(path: Path) -> str:
    """What the file calls its architecture, known to us or not; "" when it does not say."""
    try:
        if os.path.isdir(path):
            stated: object = read_json(path / "config.json").get("model_type")
        else:
            first = next(iter(model_files(path)), path)  # of a split file, the one that holds the metadata
            stated = read_header(FileBytes(first)).metadata.get("general.architecture")
    except (ModelFileError, OSError):
        return ""
    return stated[:60] if isinstance(stated, str) else ""


def problem_of_config(text: str) -> str:
    """Why no model with this text as its config.json can be run, "" when nothing in it is against that."""
    path = Path("config.json")
    try:
        read_config(path, parse_json(path, text), {})
    except ModelFileError as error:
        return str(error)
    return ""


def problem_of_gguf(architecture: str) -> str:
    """Why no GGUF file that calls its architecture so can be run; "" otherwise."""
    if architecture in GGUF_ARCHITECTURES:
        return ""
    return f"architecture {architecture[:60]!r} is not supported; known: {', '.join(GGUF_ARCHITECTURES)}"


def _set_of(named: re.Match[str]) -> tuple[str, str]:
    return named["stem"], named["count"]
