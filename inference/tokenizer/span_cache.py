"""The most recently used encodings of texts, bounded by the characters they hold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class SpanCache(Generic[Key, Value]):
    """Every turn encodes its whole history again; all but the newest message is found here. Thread-safe."""

    def __init__(self, max_chars: int, num_chars: Callable[[Key], int]) -> None:
        self.max_chars = max_chars
        self.held_chars = 0
        self._num_chars = num_chars
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = Lock()

    def get_all(self, keys: Sequence[Key], compute: Callable[[list[Key]], list[Value]]) -> list[Value]:
        """The values of the keys; those that are missing are computed in one call, outside the lock."""
        with self._lock:
            found = [self._touch(key) for key in keys]
        if all(value is not None for value in found):
            return [value for value in found if value is not None]
        missing = list(dict.fromkeys(key for key, value in zip(keys, found, strict=True) if value is None))
        computed = dict(zip(missing, compute(missing), strict=True))
        with self._lock:
            for key, value in computed.items():
                self._keep(key, value)
        return [computed[key] if value is None else value for key, value in zip(keys, found, strict=True)]

    def _touch(self, key: Key) -> Value | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def _keep(self, key: Key, value: Value) -> None:
        size = self._num_chars(key) + 1
        if size > self.max_chars or key in self._values:
            return
        self._values[key] = value
        self.held_chars += size
        while self.held_chars > self.max_chars:
            oldest, _ = self._values.popitem(last=False)
            self.held_chars -= self._num_chars(oldest) + 1
