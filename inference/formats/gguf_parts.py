"""The files of one GGUF model: one, or name-00001-of-0000N.gguf and its like, opened by any of them.

Knows nothing about architectures. Source: llama.cpp's gguf-split: the first part holds all metadata, and each one its
number (split.no, from 0), how many there are (split.count) and the tensors of all (split.tensors.count).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from inference.errors import ModelFileError
from inference.formats.file_bytes import FileBytes
from inference.formats.gguf_header import GgufHeader, TensorInfo, Value, read_header

PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
MAX_PARTS = 1024


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor and the file in which it lies."""

    info: TensorInfo
    file: FileBytes


@dataclass(frozen=True, slots=True)
class GgufParts:
    """All files of one model as if they were one. stem: the file name without the number of the part."""

    files: tuple[FileBytes, ...]
    stem: str
    metadata: dict[str, Value]
    tensors: dict[str, PlacedTensor]


def read_parts(path: Path) -> GgufParts:
    """Check and parse the headers of the file, or of all the parts that it is one of.

    Raises ModelFileError naming the part that is missing or belongs to another model.
    """
    named = PART_NAME.fullmatch(path.name)
    if named is None:
        file = FileBytes(path)
        header = read_header(file)
        if header.metadata.get("split.count", 1) not in (0, 1):
            problem = "a part of a split file: keep the names that end in -00001-of-0000N.gguf, to find the others by"
            raise ModelFileError(path, problem, field="split.count")
        return GgufParts((file,), path.stem, header.metadata, _placed(header, file))
    stem, count = named["stem"], int(named["count"])
    if not 1 <= count <= MAX_PARTS:
        raise ModelFileError(path, f"{count} parts by its name, at most {MAX_PARTS} are allowed", field="split.count")
    paths = tuple(path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1))
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        problem = f"{len(missing)} of {count} parts are missing, the first is {missing[0]}"
        raise ModelFileError(paths[0].with_name(missing[0]), problem, field="split.count")
    return _joined(paths, stem)


def _joined(paths: tuple[Path, ...], stem: str) -> GgufParts:
    metadata: dict[str, Value] = {}
    tensors: dict[str, PlacedTensor] = {}
    files = tuple(map(FileBytes, paths))
    for number, (part, file) in enumerate(zip(paths, files, strict=True)):
        header = read_header(file)
        _check_number(part, header, number, len(paths))
        metadata = metadata or header.metadata
        for name, placed in _placed(header, file).items():
            if name in tensors:
                raise ModelFileError(part, "the tensor is also in a part before", field=name)
            tensors[name] = placed
    stated = metadata.get("split.tensors.count", len(tensors))
    if stated != len(tensors):
        problem = f"{stated} tensors are stated, the parts hold {len(tensors)}"
        raise ModelFileError(paths[0], problem, field="split.tensors.count")
    return GgufParts(files, stem, metadata, tensors)


def _check_number(part: Path, header: GgufHeader, number: int, count: int) -> None:
    for key, expected in (("split.no", number), ("split.count", count)):
        stated = header.metadata.get(key, expected if count == 1 else None)
        if stated != expected:
            problem = f"{str(stated)[:40]} is stated, the file name says {expected}"
            raise ModelFileError(part, problem, field=key)


def _placed(header: GgufHeader, file: FileBytes) -> dict[str, PlacedTensor]:
    return {name: PlacedTensor(info, file) for name, info in header.tensors.items()}
