"""Walk a GGUF header with our own bounds, before anything else believes a number in it.

Yields the metadata and where each tensor lies; every count, length and offset has been compared with the file size.
Knows nothing about architectures. Source: the GGUF specification (ggml, docs/gguf.md), versions 2 and 3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.file_bytes import FileBytes

# A header that needs more than this is not a model of ours but an attack or an accident.
VERSIONS = (2, 3)
MAX_TENSORS = 1 << 16
MAX_KEYS = 1 << 12
MAX_KEY_BYTES = 1 << 10
MAX_NAME_BYTES = 256
MAX_STRING_BYTES = 8 << 20
MAX_ARRAY_ITEMS = 1 << 22  # over the whole file: vocabulary, merges, scores and types of the largest vocabularies fit
MAX_ARRAY_DEPTH = 4
MAX_DIMS = 4
MAX_ELEMENTS = 1 << 40
MIN_ALIGNMENT, MAX_ALIGNMENT = 8, 1 << 20
DEFAULT_ALIGNMENT = 32

WINDOW_BYTES = 1 << 20  # of the header, read at a time

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}

Value: TypeAlias = "str | int | float | bool | list[Value]"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. shape is in NumPy's order (rows first); nbytes includes no padding."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int  # from the start of the file
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The checked header. Every tensor lies inside the file, aligned, and overlaps no other."""

    version: int
    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


class _Cursor:
    """Reads forward through the file; never past its end."""

    def __init__(self, file: FileBytes) -> None:
        self.path = file.path
        self.file = file
        self.position = 0
        self.num_items_left = MAX_ARRAY_ITEMS
        self._window, self._window_start = b"", 0

    @property
    def num_left(self) -> int:
        return self.file.num_bytes - self.position

    def window(self, position: int, num_bytes: int) -> tuple[bytes, int, int]:
        """A stretch of the file with so many bytes from there on, which the file has: content, beginning and end."""
        start, end = self._window_start, self._window_start + len(self._window)
        if not start <= position <= position + num_bytes <= end:
            start, end = position, min(position + max(num_bytes, WINDOW_BYTES), self.file.num_bytes)
            self._window, self._window_start = self.file.read(start, end - start).tobytes(), start
        return self._window, start, end

    def fail(self, problem: str, field: str) -> ModelFileError:
        return ModelFileError(self.path, f"{problem}, at byte {self.position}", field=field)

    def take(self, num_bytes: int, field: str) -> bytes:
        if num_bytes > self.num_left:
            raise self.fail(f"the file ends too early: {num_bytes} bytes wanted, {self.num_left} left", field)
        window, start, _ = self.window(self.position, num_bytes)
        first = self.position - start
        self.position += num_bytes
        return window[first : first + num_bytes]

    def u32(self, field: str) -> int:
        return int.from_bytes(self.take(4, field), "little")

    def u64(self, field: str) -> int:
        return int.from_bytes(self.take(8, field), "little")

    def string(self, limit: int, field: str) -> str:
        length = self.u64(field)
        if length > limit:
            raise self.fail(f"a string of {length} bytes, at most {limit} are allowed", field)
        raw = self.take(length, field)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"a string that is not UTF-8 ({error.reason})", field) from error

    def value(self, kind: int, field: str, depth: int = 0) -> Value:
        if kind == STRING:
            return self.string(MAX_STRING_BYTES, field)
        if kind == ARRAY:
            return self.array(field, depth + 1)
        if kind not in SCALARS:
            raise self.fail(f"unknown value type {kind}", field)
        dtype = np.dtype(SCALARS[kind])
        scalar = np.frombuffer(self.take(dtype.itemsize, field), dtype)[0].item()
        return bool(scalar) if kind == BOOL else scalar

    def array(self, field: str, depth: int) -> list[Value]:
        if depth > MAX_ARRAY_DEPTH:
            raise self.fail(f"arrays nested deeper than {MAX_ARRAY_DEPTH}", field)
        kind = self.u32(field)
        count = self.u64(field)
        # Each item takes at least so many bytes: a count that the file cannot hold is refused before a list is made.
        item_bytes = 8 if kind == STRING else 12 if kind == ARRAY else np.dtype(SCALARS.get(kind, "<u1")).itemsize
        if count > self.num_items_left or count * item_bytes > self.num_left:
            raise self.fail(
                f"an array of {count} items, {self.num_left} bytes and {self.num_items_left} items are left", field
            )
        self.num_items_left -= count
        if kind in SCALARS:
            dtype = np.dtype(SCALARS[kind])
            items = np.frombuffer(self.take(count * dtype.itemsize, field), dtype)
            return list((items != 0).tolist() if kind == BOOL else items.tolist())
        if kind == STRING:
            return self.strings(count, field)
        return [self.value(kind, field, depth) for _ in range(count)]

    def strings(self, count: int, field: str) -> list[Value]:
        """The same as string() for each, without its three calls a string: a vocabulary has some hundred thousand."""
        end, position = self.file.num_bytes, self.position
        window, window_start, window_end = self.window(position, 0)
        unpack = struct.Struct("<Q").unpack_from
        found: list[Value] = []
        for _ in range(count):
            if position + 8 > end:
                self.position = position
                raise self.fail(f"the file ends after {len(found)} of {count} strings", field)
            if position + 8 > window_end:
                window, window_start, window_end = self.window(position, 8)
            (length,) = unpack(window, position - window_start)
            start, position = position + 8, position + 8 + length
            if length > MAX_STRING_BYTES or position > end:
                self.position = start
                raise self.fail(f"string {len(found)} has {length} bytes, {end - start} are left", field)
            if position > window_end:
                window, window_start, window_end = self.window(start, length)
            try:
                found.append(window[start - window_start : position - window_start].decode("utf-8"))
            except UnicodeDecodeError as error:
                self.position = start
                raise self.fail(f"string {len(found)} is not UTF-8 ({error.reason})", field) from error
        self.position = position
        return found


def read_header(file: FileBytes) -> GgufHeader:
    """Check and parse the header of a GGUF file. Cost: linear in the header, never in a number that it states.

    Raises ModelFileError naming the metadata key, the tensor or the header field at fault.
    """
    cursor, path = _Cursor(file), file.path
    magic = cursor.take(4, "magic")
    if magic != b"GGUF":
        raise ModelFileError(path, f"not a GGUF file: it begins with {magic!r}", field="magic")
    version = cursor.u32("version")
    if version not in VERSIONS:
        if version & 0xFFFF == 0:
            raise UnsupportedModelError(path, "a big-endian file, only little-endian ones are read", field="version")
        raise ModelFileError(path, f"GGUF version {version}, known are 2 and 3", field="version")
    num_tensors = cursor.u64("tensor_count")
    if num_tensors > MAX_TENSORS:
        raise cursor.fail(f"{num_tensors} tensors, at most {MAX_TENSORS} are allowed", "tensor_count")
    num_keys = cursor.u64("kv_count")
    if num_keys > MAX_KEYS:
        raise cursor.fail(f"{num_keys} metadata keys, at most {MAX_KEYS} are allowed", "kv_count")
    metadata: dict[str, Value] = {}
    for index in range(num_keys):
        key = cursor.string(MAX_KEY_BYTES, f"metadata key {index}")
        if key in metadata:
            raise cursor.fail("the key stands there twice", key)
        metadata[key] = cursor.value(cursor.u32(key), key)
    alignment = _alignment(cursor, metadata)
    found = [_tensor_info(cursor, index) for index in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    return GgufHeader(version, metadata, _place(cursor, found, data_start, alignment))


def _alignment(cursor: _Cursor, metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if (
        not isinstance(alignment, int)
        or not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT
        or alignment & (alignment - 1) != 0
    ):
        raise cursor.fail(
            f"alignment {alignment}, legal are powers of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}",
            "general.alignment",
        )
    return int(alignment)


def _tensor_info(cursor: _Cursor, index: int) -> TensorInfo:
    """One entry of the tensor table; its offset is still relative to the data section."""
    name = cursor.string(MAX_NAME_BYTES, f"name of tensor {index}")
    num_dims = cursor.u32(name)
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.fail(f"{num_dims} dimensions, legal are 1 to {MAX_DIMS}", name)
    dims = tuple(cursor.u64(name) for _ in range(num_dims))  # fastest first
    if min(dims) < 1 or prod(dims) > MAX_ELEMENTS:
        raise cursor.fail(f"dimensions {dims}: a zero, or more than {MAX_ELEMENTS} elements", name)
    type_number = cursor.u32(name)
    try:
        kind = GGMLQuantizationType(type_number)
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise cursor.fail(f"unknown tensor type {type_number}", name) from error
    if dims[0] % block_size:
        raise cursor.fail(f"rows of {dims[0]} values, {kind.name} needs a multiple of {block_size}", name)
    offset = cursor.u64(name)
    return TensorInfo(name, dims[::-1], kind, offset, prod(dims) // block_size * block_bytes)


def _place(cursor: _Cursor, found: list[TensorInfo], data_start: int, alignment: int) -> dict[str, TensorInfo]:
    """Turn offsets into places in the file; refuse what is unaligned, outside or overlapping."""
    tensors: dict[str, TensorInfo] = {}
    for info in found:
        if info.name in tensors:
            raise cursor.fail("the tensor stands there twice", info.name)
        if info.offset % alignment:
            raise cursor.fail(f"offset {info.offset} is no multiple of the alignment {alignment}", info.name)
        start = data_start + info.offset
        if start + info.nbytes > cursor.file.num_bytes:
            raise cursor.fail(
                f"the tensor ends at byte {start + info.nbytes}, the file has {cursor.file.num_bytes}: truncated",
                info.name,
            )
        tensors[info.name] = TensorInfo(info.name, info.shape, info.type, start, info.nbytes)
    end, previous = 0, ""
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset < end:
            raise cursor.fail(f"the tensor overlaps {previous!r}", info.name)
        end, previous = info.offset + info.nbytes, info.name
    return tensors
