"""What tests grant to what they run: far more than it takes, so that a busy machine decides nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 60.0  # for what has to come
MAX_CPU_S = 10.0  # for what would otherwise compute for minutes, or for ever


@contextmanager
def soon_done() -> Iterator[None]:
    """Fails when the body computes for MAX_CPU_S: this thread alone, whatever else the machine does."""
    began = time.thread_time()
    yield
    assert time.thread_time() - began < MAX_CPU_S
