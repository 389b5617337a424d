"""Files as memory: mapped read-only, digested, or read whole when they are small."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from inference.errors import ModelFileError

T = TypeVar("T")

MAX_JSON_BYTES = 4 << 20


def map_file(path: Path) -> mmap.mmap:
    """The file as read-only memory, without a copy. Raises ModelFileError when it is no regular, readable file."""
    if not path.is_file():  # also keeps us from opening a pipe or a device
        raise ModelFileError(path, f"there is no file {path}")
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file can not be mapped
        raise ModelFileError(path, f"the file can not be mapped ({error})") from error


def release_pages(data: mmap.mmap, offset: int, nbytes: int) -> None:
    """Give the memory of a stretch back to the system; whoever still looks at it has it read from the file again.

    Pages of a mapped file count as memory of the process once they were read. Without this, a model whose weights are
    converted would be there twice when it is loaded. Does nothing on systems that have no such call.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        data.madvise(mmap.MADV_DONTNEED, start, offset + nbytes - start)


def digest_file(path: Path) -> str:
    """SHA-256 of the content, hex. Reads the whole file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(path, f"the file can not be read ({error})") from error


def digest_files(paths: Iterable[Path]) -> str:
    """One digest over names and contents of several files, hex."""
    total = hashlib.sha256()
    for path in paths:
        total.update(f"{path.name}\0{digest_file(path)}\0".encode())
    return total.hexdigest()


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
