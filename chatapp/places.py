"""Places in the queue: who holds how many, and who runs first."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Self


class Ticket:
    """A place in the queue. Held from before the first work for a turn until its end; `with ticket:` gives it back.

    The more places a person holds already, the later the new one runs: fifty sends of one do not delay another's first.
    """

    def __init__(self, places: Counter[int], user_id: int) -> None:
        self.user_id = user_id
        self.priority = places[user_id]
        self._places: Counter[int] | None = places
        places[user_id] += 1

    def release(self) -> None:
        """Give the place back; a second call does nothing."""
        if self._places is not None:
            self._places[self.user_id] -= 1
            self._places += Counter()  # drops the entries at zero
            self._places = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
