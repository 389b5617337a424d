"""Segment: a run of cached blocks as one file. Its form, and reading it without trusting a byte of it.

    preamble | fingerprints | owner | block records | token ids | tags | digest of all before | zeros | payload

All numbers little endian. The preamble gives every count, and the counts give the length of the header: they are held
against the bounds below and the size of the file before anything else is read. The payload starts at a multiple of
PAGE and holds the blocks' bytes one after the other; their SHA-256 digests are in the records (processors have
instructions for it: 2 GB/s where BLAKE2b makes 1.3). Keys are computed anew from the tokens. So whatever was flipped,
cut off, swapped or written by another model or version is found out, and raises BadSegment with a word for the counter.

Knows the file only: which files there are is disk_tier's business.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256

import numpy as np
from numpy.typing import NDArray

from inference.kvcache.cached_blocks import Place
from inference.kvcache.keys import KEY_BYTES, block_key
from inference.types import I32

MAGIC = b"RCLCT-KV"
VERSION = 1
PAGE = 4096
MAX_BLOCKS = 64
MAX_TAG_BYTES = 1 << 16
MAX_BLOCK_SIZE = 1024
MAX_BYTES_PER_TOKEN = 1 << 28
IDENTITY_FIELDS = ("model", "tokenizer", "kv_format", "kernel_tier", "adapter")
_PREAMBLE = struct.Struct("<8s I I Q I I Q")  # magic, version, P, bytes per token, num blocks, tag bytes, payload start
_RECORD = struct.Struct(f"<{KEY_BYTES}s {KEY_BYTES}s {KEY_BYTES}s I 32s")  # parent, link, key, rows, digest
_DIGEST_BYTES = 32


class BadSegment(Exception):
    """The file cannot be used; cause is one word."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(cause)


@dataclass(frozen=True, slots=True)
class KVIdentity:
    """All that the bytes of a block depend on besides its tokens: digests, named by IDENTITY_FIELDS, and sizes."""

    digests: tuple[bytes, ...]
    block_size: int
    bytes_per_token: int

    @classmethod
    def of(
        cls,
        *,
        model: str,
        tokenizer: str,
        kv_format: str,
        kernel_tier: str,
        adapter: str = "",
        block_size: int,
        bytes_per_token: int,
    ) -> KVIdentity:
        texts = (model, tokenizer, kv_format, kernel_tier, adapter)
        digests = tuple(blake2b(text.encode(), digest_size=KEY_BYTES).digest() for text in texts)
        return cls(digests, block_size, bytes_per_token)

    @property
    def name(self) -> str:
        """Hex, for a folder."""
        sizes = self.block_size.to_bytes(8, "little") + self.bytes_per_token.to_bytes(8, "little")
        return blake2b(b"".join(self.digests) + sizes, digest_size=KEY_BYTES).hexdigest()

    def check(self, found: KVIdentity) -> None:
        """Raise BadSegment, naming the first field that differs."""
        for name, own, other in zip(IDENTITY_FIELDS, self.digests, found.digests, strict=True):
            if own != other:
                raise BadSegment(name)
        if self.block_size != found.block_size:
            raise BadSegment("block_size")
        if self.bytes_per_token != found.bytes_per_token:
            raise BadSegment("kv_format")


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """One block: key is b"" when it is partly filled; digest is that of its bytes."""

    place: Place
    key: bytes
    token_ids: I32  # (up to P,)
    digest: bytes


@dataclass(frozen=True, slots=True)
class SavedBlock:
    """A copy of a cached block, made to be written. data: its rows, as BlockStorage reads and writes them."""

    place: Place
    key: bytes
    token_ids: I32
    tags: frozenset[str]
    data: memoryview


@dataclass(frozen=True, slots=True)
class Segment:
    """What the header of a file says. tags is empty for public blocks, owner likewise."""

    identity: KVIdentity
    owner: bytes
    tags: frozenset[str]
    records: tuple[BlockRecord, ...]
    payload_start: int

    @property
    def num_bytes(self) -> int:
        """The size of the whole file."""
        num_rows = sum(len(record.token_ids) for record in self.records)
        return self.payload_start + num_rows * self.identity.bytes_per_token

    def header(self) -> bytes:
        """All bytes before the payload. Raises BadSegment when there are too many tags."""
        identity = self.identity
        tags = b"".join(len(text).to_bytes(2, "little") + text for text in map(str.encode, sorted(self.tags)))
        if len(tags) > MAX_TAG_BYTES:
            raise BadSegment("tags")
        num_records = len(self.records)
        preamble = (VERSION, identity.block_size, identity.bytes_per_token, num_records, len(tags), self.payload_start)
        parts = [_PREAMBLE.pack(MAGIC, *preamble), *identity.digests, self.owner.ljust(KEY_BYTES, b"\0")]
        for record in self.records:  # "s" pads an empty key with zeros
            place, num_rows = record.place, len(record.token_ids)
            parts.append(_RECORD.pack(place.parent, place.link, record.key, num_rows, record.digest))
        parts += [record.token_ids.astype("<u4").tobytes() for record in self.records]
        header = b"".join([*parts, tags])
        header += blake2b(header, digest_size=_DIGEST_BYTES).digest()
        return header.ljust(self.payload_start, b"\0")


def make_segment(blocks: Sequence[SavedBlock], identity: KVIdentity) -> Segment:
    """The segment of blocks that follow each other and have the same owner and tags. Computes the digests."""
    records = tuple(BlockRecord(b.place, b.key, b.token_ids, sha256(b.data).digest()) for b in blocks)
    segment = Segment(identity, blocks[0].place.owner, blocks[0].tags, records, 0)
    return replace(segment, payload_start=-(-len(segment.header()) // PAGE) * PAGE)


def read_segment(fd: int) -> Segment:
    """The header of an open file, checked against its size and its own digest. Raises BadSegment, OSError."""
    size = os.fstat(fd).st_size
    magic, version, *numbers = _PREAMBLE.unpack(_read(fd, _PREAMBLE.size, 0))
    block_size, bytes_per_token, num_blocks, tag_bytes, payload_start = numbers
    if magic != MAGIC:
        raise BadSegment("format")
    if version != VERSION:
        raise BadSegment("version")
    records_start = _PREAMBLE.size + (len(IDENTITY_FIELDS) + 1) * KEY_BYTES
    tokens_start = records_start + num_blocks * _RECORD.size
    longest = tokens_start + num_blocks * block_size * 4 + tag_bytes + _DIGEST_BYTES
    if not (
        1 <= block_size <= MAX_BLOCK_SIZE
        and 1 <= bytes_per_token <= MAX_BYTES_PER_TOKEN
        and 1 <= num_blocks <= MAX_BLOCKS
        and tag_bytes <= MAX_TAG_BYTES
        and payload_start % PAGE == 0
        and payload_start < longest + PAGE
    ):
        raise BadSegment("format")
    header = _read(fd, payload_start, 0)
    records = [_RECORD.unpack_from(header, start) for start in range(records_start, tokens_start, _RECORD.size)]
    rows = [num_rows for _, _, _, num_rows, _ in records]
    if not all(1 <= num_rows <= block_size for num_rows in rows):
        raise BadSegment("format")
    tags_start = tokens_start + 4 * sum(rows)
    end = tags_start + tag_bytes
    if header[end:] != blake2b(header[:end], digest_size=_DIGEST_BYTES).digest().ljust(payload_start - end, b"\0"):
        raise BadSegment("header")
    if size != payload_start + sum(rows) * bytes_per_token:
        raise BadSegment("truncated")
    digests = [header[start : start + KEY_BYTES] for start in range(_PREAMBLE.size, records_start, KEY_BYTES)]
    owner = digests.pop()
    return Segment(
        identity=KVIdentity(tuple(digests), block_size, bytes_per_token),
        owner=owner if any(owner) else b"",
        tags=_decode_tags(header[tags_start:end]),
        records=_decode_records(records, np.frombuffer(header, "<u4", sum(rows), tokens_start), owner, block_size),
        payload_start=payload_start,
    )


def read_rows(fd: int, segment: Segment, i: int, buffer: memoryview) -> memoryview:
    """The bytes of block i, in the buffer, checked. Raises BadSegment, OSError."""
    bytes_per_token = segment.identity.bytes_per_token
    before = sum(len(record.token_ids) for record in segment.records[:i])
    data = buffer[: len(segment.records[i].token_ids) * bytes_per_token]
    if os.preadv(fd, [data], segment.payload_start + before * bytes_per_token) != len(data):
        raise BadSegment("truncated")
    if sha256(data).digest() != segment.records[i].digest:
        raise BadSegment("checksum")
    return data


def _read(fd: int, num_bytes: int, start: int) -> bytes:
    data = os.pread(fd, num_bytes, start)
    if len(data) != num_bytes:
        raise BadSegment("truncated")
    return data


def _decode_records(
    fields: Sequence[tuple[bytes, bytes, bytes, int, bytes]], token_ids: NDArray[np.uint32], owner: bytes, P: int
) -> tuple[BlockRecord, ...]:
    """Records of blocks that follow each other, under keys that their tokens give."""
    records: list[BlockRecord] = []
    end = 0
    for parent, link, key, num_rows, digest in fields:
        tokens = token_ids[end : end + num_rows].astype(np.int32)
        end += num_rows
        if num_rows < P and key == bytes(KEY_BYTES):
            key = b""
        elif num_rows < P or key != block_key(link, tokens):
            raise BadSegment("format")
        if records and parent != records[-1].key:
            raise BadSegment("format")
        records.append(BlockRecord(Place(parent, link, owner if any(owner) else b""), key, tokens, digest))
    return tuple(records)


def _decode_tags(data: bytes) -> frozenset[str]:
    tags = []
    while data:
        end = 2 + int.from_bytes(data[:2], "little")
        try:
            tags.append(data[2:end].decode())
        except UnicodeDecodeError as error:
            raise BadSegment("format") from error
        data = data[end:]
    return frozenset(tags)
