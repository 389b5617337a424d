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
from dataclasses import dataclass, fields
from hashlib import blake2b, sha256

import numpy as np

from inference.kvcache.cached_blocks import Place
from inference.kvcache.keys import KEY_BYTES, block_key
from inference.types import I32

MAGIC = b"RCLCT-KV"
VERSION = 1
PAGE = 4096
MAX_BLOCKS = 64
MAX_TAG_BYTES = 1 << 14
MAX_BLOCK_SIZE = 1024
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
    """All that the bytes of a block depend on besides its tokens. Texts; a file holds their digests."""

    model: str
    tokenizer: str
    kv_format: str
    kernel_tier: str
    adapter: str = ""
    block_size: int = 16
    bytes_per_token: int = 0

    def digests(self) -> dict[str, bytes]:
        names = [item.name for item in fields(self) if item.type == "str"]
        return {name: blake2b(getattr(self, name).encode(), digest_size=KEY_BYTES).digest() for name in names}


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

    owner: bytes
    tags: frozenset[str]
    records: tuple[BlockRecord, ...]
    payload_start: int

    def num_bytes(self, bytes_per_token: int) -> int:
        """The size of the whole file."""
        return self.payload_start + sum(len(record.token_ids) for record in self.records) * bytes_per_token


def make_segment(blocks: Sequence[SavedBlock], identity: KVIdentity) -> Segment:
    """The segment of blocks that follow each other and have the same owner and tags. Computes the digests."""
    records = tuple(BlockRecord(b.place, b.key, b.token_ids, sha256(b.data).digest()) for b in blocks)
    segment = Segment(blocks[0].place.owner, blocks[0].tags, records, 0)
    size = len(encode_header(segment, identity))
    return Segment(segment.owner, segment.tags, records, -(-size // PAGE) * PAGE)


def encode_header(segment: Segment, identity: KVIdentity) -> bytes:
    """The header up to its digest; zeros follow until payload_start."""
    tags = b"".join(len(text).to_bytes(2, "little") + text for text in (tag.encode() for tag in sorted(segment.tags)))
    if len(tags) > MAX_TAG_BYTES:
        raise BadSegment("tags")
    parts = [
        _PREAMBLE.pack(
            MAGIC,
            VERSION,
            identity.block_size,
            identity.bytes_per_token,
            len(segment.records),
            len(tags),
            segment.payload_start,
        ),
        *identity.digests().values(),
        segment.owner.ljust(KEY_BYTES, b"\0"),
        *(
            _RECORD.pack(r.place.parent, r.place.link, r.key, len(r.token_ids), r.digest)  # "s" pads with zeros
            for r in segment.records
        ),
        *(r.token_ids.astype("<u4").tobytes() for r in segment.records),
        tags,
    ]
    header = b"".join(parts)
    return header + blake2b(header, digest_size=_DIGEST_BYTES).digest()


def read_segment(fd: int, identity: KVIdentity) -> Segment:
    """The header of an open file, checked against its size and the identity. Raises BadSegment, OSError."""
    size = os.fstat(fd).st_size
    preamble = _read(fd, _PREAMBLE.size, 0)
    magic, version, block_size, bytes_per_token, num_blocks, tag_bytes, payload_start = _PREAMBLE.unpack(preamble)
    if magic != MAGIC:
        raise BadSegment("format")
    if version != VERSION:
        raise BadSegment("version")
    if block_size != identity.block_size:
        raise BadSegment("block_size")
    if bytes_per_token != identity.bytes_per_token:
        raise BadSegment("kv_format")
    if not 1 <= num_blocks <= MAX_BLOCKS or tag_bytes > MAX_TAG_BYTES:
        raise BadSegment("format")
    digests = identity.digests()
    records_start = _PREAMBLE.size + (len(digests) + 1) * KEY_BYTES
    tokens_start = records_start + num_blocks * _RECORD.size
    longest = tokens_start + num_blocks * block_size * 4 + tag_bytes + _DIGEST_BYTES
    if payload_start % PAGE or payload_start > -(-longest // PAGE) * PAGE or payload_start > size:
        raise BadSegment("truncated" if payload_start > size else "format")
    header = _read(fd, payload_start, 0)
    for i, (name, digest) in enumerate(digests.items()):
        if header[_PREAMBLE.size + i * KEY_BYTES :][:KEY_BYTES] != digest:
            raise BadSegment(name)
    rows = [_RECORD.unpack_from(header, records_start + i * _RECORD.size)[3] for i in range(num_blocks)]
    if not all(1 <= num_rows <= block_size for num_rows in rows):
        raise BadSegment("format")
    tags_start = tokens_start + 4 * sum(rows)
    end = tags_start + tag_bytes
    if end + _DIGEST_BYTES > len(header):
        raise BadSegment("format")
    if blake2b(header[:end], digest_size=_DIGEST_BYTES).digest() != header[end : end + _DIGEST_BYTES]:
        raise BadSegment("header")
    if size != payload_start + sum(rows) * bytes_per_token:
        raise BadSegment("truncated")
    if any(header[end + _DIGEST_BYTES :]):
        raise BadSegment("header")
    owner = header[records_start - KEY_BYTES : records_start]
    owner = b"" if owner == bytes(KEY_BYTES) else owner
    token_ids = np.frombuffer(header, "<u4", sum(rows), tokens_start).astype(np.int32)
    ends = np.cumsum(rows)
    records: list[BlockRecord] = []
    for i, num_rows in enumerate(rows):
        parent, link, key, _, digest = _RECORD.unpack_from(header, records_start + i * _RECORD.size)
        tokens = token_ids[ends[i] - num_rows : ends[i]]
        is_full = num_rows == block_size
        if key != (block_key(link, tokens) if is_full else bytes(KEY_BYTES)) or (i > 0 and parent != records[-1].key):
            raise BadSegment("format")
        records.append(BlockRecord(Place(parent, link, owner), key if is_full else b"", tokens, digest))
    return Segment(owner, _decode_tags(header[tags_start:end]), tuple(records), payload_start)


def read_rows(fd: int, segment: Segment, i: int, buffer: memoryview, bytes_per_token: int) -> memoryview:
    """The bytes of block i, in the buffer, checked. Raises BadSegment, OSError."""
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
