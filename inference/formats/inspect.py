"""What can be said about a model file that cannot be opened: its kind, its files, what it says that it is.

Looks at names, sizes and one field; whether the rest is sound is found out by open_model_file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from inference.errors import ModelFileError
from inference.formats.gguf_header import read_header
from inference.formats.gguf_parts import PART_NAME
from inference.formats.hf_config import read_config
from inference.formats.mapping import map_file, read_json

GGUF, SAFETENSORS = "GGUF", "safetensors"


def kind_of(path: Path) -> str:
    """GGUF or SAFETENSORS, by the name: a model of the latter kind is a directory."""
    return SAFETENSORS if path.is_dir() or path.suffix == ".safetensors" else GGUF


def name_of(path: Path) -> str:
    """What the model is called once it is loaded: the directory, or the file without its ending and number."""
    if path.is_dir():
        return path.resolve().name
    named = PART_NAME.fullmatch(path.name)
    return named["stem"] if named else path.stem


def files_of(path: Path) -> tuple[Path, ...]:
    """The regular files that make up the model, by name: all of a directory, all parts that are there of a split file.

    Raises OSError when the directory cannot be listed."""
    if path.is_dir():
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
        if path.is_dir():
            stated: object = read_json(path / "config.json").get("model_type")
        else:
            first = next(iter(files_of(path)), path)  # of a split file, the one that holds the metadata
            stated = read_header(first, map_file(first)).metadata.get("general.architecture")
    except (ModelFileError, OSError):
        return ""
    return stated[:60] if isinstance(stated, str) else ""


def check_config(path: Path) -> None:
    """Whether a model of this config.json can be run, as far as that alone tells: before gigabytes are fetched.

    Raises ModelFileError, UnsupportedModelError.
    """
    read_config(path, read_json(path), {})


def _set_of(named: re.Match[str]) -> tuple[str, str]:
    return named["stem"], named["count"]
