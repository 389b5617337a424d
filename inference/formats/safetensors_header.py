"""Walk the header of a safetensors file with our own bounds; say where each tensor lies.

Source: the safetensors format (8 bytes length, JSON, data). Knows nothing about architectures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from inference.errors import ModelFileError
from inference.formats.file_bytes import FileBytes

MAX_HEADER_BYTES = 4 << 20  # some 30,000 tensors
MAX_DIMS = 8
MAX_ELEMENTS = 1 << 40
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies: offset from the start of the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


def read_header(file: FileBytes) -> dict[str, StoredTensor]:
    """Check and parse the header of a file. Raises ModelFileError naming the tensor or field at fault."""
    path = file.path
    if file.num_bytes < 8:
        raise ModelFileError(path, f"{file.num_bytes} bytes, a safetensors file has at least 8", field="header length")
    length = int.from_bytes(file.read(0, 8).tobytes(), "little")
    if length > min(file.num_bytes - 8, MAX_HEADER_BYTES):
        problem = f"header of {length} bytes in a file of {file.num_bytes}, at most {MAX_HEADER_BYTES} are allowed"
        raise ModelFileError(path, problem, field="header length")
    entries = _parse_json(path, file.read(8, length).tobytes())
    entries.pop("__metadata__", None)
    data_start = 8 + length
    tensors = {name: _stored(path, name, entry, data_start) for name, entry in entries.items()}
    _check_places(path, tensors, data_start, file.num_bytes)
    return tensors


def _parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
            raise ModelFileError(path, "the name stands there twice", field=twice)
        return found

    try:
        entries = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, f"the header is not JSON ({error})", field="header") from error
    if not isinstance(entries, dict):
        raise ModelFileError(path, "the header is not a JSON object", field="header")
    return entries


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_ELEMENTS * 8


def _stored(path: Path, name: str, entry: object, data_start: int) -> StoredTensor:
    if not isinstance(entry, dict):
        raise ModelFileError(path, "the entry is not a JSON object", field=name)
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ModelFileError(path, f"unknown dtype {str(dtype)[:40]!r}", field=name)
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(map(_is_size, shape)):
        raise ModelFileError(path, f"shape {str(shape)[:80]} is not a short list of sizes", field=name)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise ModelFileError(path, f"data_offsets {str(offsets)[:80]} are not two sizes", field=name)
    begin, end = offsets
    nbytes = prod(shape) * ITEM_BYTES[dtype]
    if end - begin != nbytes:
        raise ModelFileError(path, f"{end - begin} bytes stored, {dtype} {tuple(shape)} takes {nbytes}", field=name)
    return StoredTensor(name, tuple(shape), dtype, data_start + begin, nbytes)


def _check_places(path: Path, tensors: dict[str, StoredTensor], data_start: int, file_bytes: int) -> None:
    """The format wants the data without gaps: what begins early overlaps, what ends late is truncated."""
    end = data_start
    for stored in sorted(tensors.values(), key=lambda stored: (stored.offset, stored.nbytes)):
        if stored.offset != end:
            problem = "overlaps the one before" if stored.offset < end else "leaves a gap before it"
            raise ModelFileError(
                path, f"the tensor {problem}: begins at {stored.offset}, expected {end}", field=stored.name
            )
        end = stored.offset + stored.nbytes
        if end > file_bytes:
            problem = f"the tensor ends at byte {end}, the file has {file_bytes}: truncated"
            raise ModelFileError(path, problem, field=stored.name)
    if end != file_bytes:
        raise ModelFileError(path, f"{file_bytes - end} bytes after the last tensor", field="data")
