"""Small files that are read whole: text, JSON objects, and what is built of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from inference.errors import ModelFileError

T = TypeVar("T")

MAX_JSON_BYTES = 4 << 20


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES) -> str:
    """The text of a small file. Raises ModelFileError when it is missing, larger than max_bytes or not UTF-8."""
    if not path.is_file():
        raise ModelFileError(path, f"there is no file {path}")
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise ModelFileError(path, f"{size} bytes, at most {max_bytes} are allowed")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(path, f"the file can not be read ({error})") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a small file. Raises ModelFileError when it is none."""
    return parse_json(path, read_text(path))


def parse_json(path: Path, text: str) -> dict[str, Any]:
    """The JSON object that a file of this text holds. Raises ModelFileError when it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelFileError(path, "not a JSON object")
    return value


def build(path: Path, kind: Callable[..., T], **fields: Any) -> T:
    """kind(**fields); a value out of range becomes a ModelFileError that names it."""
    try:
        return kind(**fields)
    except ValueError as error:
        raise ModelFileError(path, str(error), field=str(error).split(" ", 1)[0]) from error
