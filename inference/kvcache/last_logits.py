"""LastLogits: what the model said after the newest few prompts, so that an exact repeat computes nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from inference.types import F32

MAX_PROMPTS = 16  # of the default model 192 KiB each


class LastLogits:
    """Logits (V,) by the key of the whole prompt, which stands for its salt as well. The oldest goes first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, tuple[F32, set[str]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes) -> F32 | None:
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def put(self, key: bytes, logits: F32, tags: Collection[str]) -> None:
        """Keep a copy for the owners with these tags."""
        _, owners = self._kept.pop(key, (None, set()))
        copy = logits.copy()
        copy.flags.writeable = False
        self._kept[key] = (copy, owners | set(tags))
        if len(self._kept) > MAX_PROMPTS:
            self._kept.popitem(last=False)

    def remove(self, key: bytes) -> None:
        self._kept.pop(key, None)

    def purge(self, tag: str) -> None:
        """Forget what only this tag owns."""
        for key, (_, owners) in list(self._kept.items()):
            owners.discard(tag)
            if not owners:
                del self._kept[key]

    def clear(self) -> None:
        self._kept.clear()
