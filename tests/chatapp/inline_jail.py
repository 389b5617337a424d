"""A jail that does the job in this process: for tests of what is rendered, where nothing may depend on time."""

from __future__ import annotations

from typing import Any

from chatapp.jail import Jail, JailError, Outcome
from chatapp.jail_worker import JOBS


class InlineJail(Jail):
    """Keeps what it is asked. `faults`: for each call to come, num. answers, and why it breaks off then."""

    def __init__(self, faults: list[tuple[int, str] | None] | None = None) -> None:
        super().__init__()
        self.payloads: list[Any] = []
        self.faults = faults or []

    def collect(self, job: str, payload: Any, *, deadline_s: float, total_s: float) -> Outcome:
        self.payloads.append(payload)
        values = tuple(JOBS[job](payload))
        fault = self.faults.pop(0) if self.faults else None
        if fault is None:
            return Outcome(values, None)
        num_values, reason = fault
        return Outcome(values[:num_values], JailError(reason, reason))
