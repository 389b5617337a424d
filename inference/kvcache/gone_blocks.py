"""GoneBlocks: why what was cached no longer is, so that a miss can say why it is one.

Remembers tokens by place, not by key: a prompt may want some rows of a block that is gone, or of a partly filled one,
which never had a key. Knows nothing of what is cached now.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from inference.kvcache.cached_blocks import num_common
from inference.types import I32, MissCause


class GoneBlocks:
    """The newest max_blocks blocks of each cause: many evictions push out no purge."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._tokens: dict[MissCause, OrderedDict[tuple[bytes, bytes], None]] = {}  # newest last
        self._at: dict[bytes, dict[bytes, MissCause]] = {}  # link -> tokens -> cause, newest last

    def add(self, link: bytes, rows: I32, cause: MissCause) -> None:
        """A block that hung at link (Place.link) and held rows (up to P,) is no longer cached."""
        tokens = rows.tobytes()
        self._remove(link, tokens)
        remembered = self._tokens.setdefault(cause, OrderedDict())
        remembered[link, tokens] = None
        self._at.setdefault(link, {})[tokens] = cause
        if len(remembered) > self._max_blocks:
            self._remove(*next(iter(remembered)))

    def discard(self, link: bytes, rows: I32) -> None:
        """These rows are cached there: what they contain is not gone any more."""
        tokens = rows.tobytes()
        for gone in [gone for gone in self._at.get(link, ()) if tokens.startswith(gone)]:
            self._remove(link, gone)

    def cause(self, link: bytes, rows: I32, num_found: int) -> MissCause:
        """Why no more than num_found of rows (up to P,) are cached at link. NEW: more of them never were, or long ago.

        Of several that are gone the one counts that would have given most, of equal ones the last that went.
        """
        found, most = MissCause.NEW, num_found + 1
        for gone, cause in self._at.get(link, {}).items():
            num = num_common(np.frombuffer(gone, np.int32), rows)
            if num >= most:
                found, most = cause, num
        return found

    def _remove(self, link: bytes, tokens: bytes) -> None:
        here = self._at.get(link, {})
        if tokens in here:
            del self._tokens[here.pop(tokens)][link, tokens]
            if not here:
                del self._at[link]
