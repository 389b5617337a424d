"""SegmentIndex: which blocks lie in which file. Knows no file system and no thread: disk_tier holds a lock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from inference.kvcache.cached_blocks import Place, num_common
from inference.kvcache.segment import BlockRecord, Segment


@dataclass(slots=True, eq=False)
class SegmentFile:
    """A file of the folder, as its header was when it was last read or written."""

    path: Path
    segment: Segment

    @property
    def num_bytes(self) -> int:
        return self.segment.num_bytes


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block in a file."""

    file: SegmentFile
    i: int

    @property
    def record(self) -> BlockRecord:
        return self.file.segment.records[self.i]


class SegmentIndex:
    """Files in the order of their last use, full blocks by key, children by parent."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._files: OrderedDict[Path, SegmentFile] = OrderedDict()  # least recently used first
        self._block_of: dict[bytes, StoredBlock] = {}
        self._children: dict[bytes, list[StoredBlock]] = {}  # by parent

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, file: SegmentFile) -> bool:
        return file.path in self._files

    def files(self) -> list[SegmentFile]:
        return list(self._files.values())

    def find(self, key: bytes) -> StoredBlock | None:
        return self._block_of.get(key)

    def siblings(self, place: Place) -> list[StoredBlock]:
        """The blocks that hang at this place: under this parent and salt."""
        return [stored for stored in self._children.get(place.parent, ()) if stored.record.place == place]

    def add(self, file: SegmentFile) -> None:
        self._files[file.path] = file
        self.num_bytes += file.num_bytes
        for i, record in enumerate(file.segment.records):
            stored = StoredBlock(file, i)
            self._children.setdefault(record.place.parent, []).append(stored)
            if record.key:
                self._block_of[record.key] = stored

    def remove(self, file: SegmentFile) -> None:
        del self._files[file.path]
        self.num_bytes -= file.num_bytes
        for record in file.segment.records:
            parent = record.place.parent
            left = [stored for stored in self._children.pop(parent, []) if stored.file is not file]
            if left:
                self._children[parent] = left
            known = self._block_of.get(record.key)
            if known is not None and known.file is file:
                del self._block_of[record.key]

    def touch(self, file: SegmentFile) -> None:
        """Count a file as used now."""
        if file in self:
            self._files.move_to_end(file.path)

    def superseded_by(self, segment: Segment) -> list[SegmentFile]:
        """Files of one partly filled block that the segment contains whole."""
        first = segment.records[0]
        files = []
        for stored in self.siblings(first.place):
            tokens = stored.record.token_ids
            if not stored.record.key and num_common(tokens, first.token_ids) == len(tokens):
                files.append(stored.file)
        return files

    def ancestors(self, segment: Segment) -> set[SegmentFile]:
        """The files that a segment hangs on, as far as they are here without a gap."""
        files: set[SegmentFile] = set()
        while (stored := self._block_of.get(segment.records[0].place.parent)) is not None:
            files.add(stored.file)
            segment = stored.file.segment
        return files

    def oldest_leaf(self, spared: AbstractSet[SegmentFile] = frozenset()) -> SegmentFile | None:
        """The least recently used file on which no other one hangs, and that is not spared. None without any."""
        return next((file for file in self._files.values() if file not in spared and self._is_leaf(file)), None)

    def _is_leaf(self, file: SegmentFile) -> bool:
        keys = {record.key for record in file.segment.records if record.key}
        return all(child.file is file for key in keys for child in self._children.get(key, ()))

    def check_integrity(self) -> None:
        """Assert that files, keys, children and counts agree."""
        records = [record for file in self._files.values() for record in file.segment.records]
        assert sum(map(len, self._children.values())) == len(records)
        assert all(stored.file in self for stored in self._block_of.values())
        assert {record.key for record in records if record.key} == set(self._block_of)
        assert self.num_bytes == sum(file.num_bytes for file in self._files.values())
