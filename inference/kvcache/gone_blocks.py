"""GoneBlocks: why what was cached no longer is, so that a miss can say why it is one.

Remembers rows by place, not by key: a prompt may want some rows of a block that is gone, or of a partly filled one,
which never had a key. Keeps a digest of each row and those before it, under a key of its own, and no token: what was
deleted is not to be read here. Knows nothing of what is cached now.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from hashlib import blake2b

import numpy as np

from inference.kvcache.cached_blocks import num_common
from inference.types import I32, MissCause

_DIGEST_BYTES = 4  # two rows in four billion are taken for the same: the explanation is wrong then, nothing else


class GoneBlocks:
    """The newest max_blocks blocks of each cause: many evictions push out no purge."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._key = secrets.token_bytes(32)
        self._rows: dict[MissCause, OrderedDict[tuple[bytes, bytes], None]] = {}  # newest last
        self._at: dict[bytes, dict[bytes, MissCause]] = {}  # link -> digests -> cause, newest last

    def add(self, link: bytes, rows: I32, cause: MissCause) -> None:
        """A block that hung at link (Place.link) and held rows (up to P,) is no longer cached."""
        digests = self._digests(rows)
        self._remove(link, digests)
        remembered = self._rows.setdefault(cause, OrderedDict())
        remembered[link, digests] = None
        self._at.setdefault(link, {})[digests] = cause
        if len(remembered) > self._max_blocks:
            self._remove(*next(iter(remembered)))

    def discard(self, link: bytes, rows: I32) -> None:
        """These rows are cached there: what they contain is not gone any more."""
        if link not in self._at:
            return
        digests = self._digests(rows)
        for gone in [gone for gone in self._at[link] if digests.startswith(gone)]:
            self._remove(link, gone)

    def cause(self, link: bytes, rows: I32, num_found: int) -> MissCause:
        """Why no more than num_found of rows (up to P,) are cached at link. NEW: more of them never were, or long ago.

        Of several that are gone the one counts that would have given most, of equal ones the last that went.
        """
        found, most = MissCause.NEW, num_found + 1
        if link not in self._at:
            return found
        wanted = np.frombuffer(self._digests(rows), np.int32)
        for gone, cause in self._at[link].items():
            num = num_common(np.frombuffer(gone, np.int32), wanted)
            if num >= most:
                found, most = cause, num
        return found

    def _digests(self, rows: I32) -> bytes:
        """One for each row, of it and all before it in the block, end to end."""
        state = blake2b(digest_size=_DIGEST_BYTES, key=self._key)
        digests = []
        for row in rows:
            state.update(row.tobytes())
            digests.append(state.copy().digest())
        return b"".join(digests)

    def _remove(self, link: bytes, digests: bytes) -> None:
        here = self._at.get(link, {})
        if digests in here:
            del self._rows[here.pop(digests)][link, digests]
            if not here:
                del self._at[link]
