"""What every test of the engine ends with: no block is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.inference import fakes


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """After a test, every engine that it made can end what is left, and then nobody holds a block."""
    fakes.made_engines.clear()
    yield
    for engine in fakes.made_engines:
        engine.cancel_all()
        while engine.has_work:
            engine.step()
        engine.check_integrity()
        stats = engine.stats()
        assert stats.num_blocks_used == stats.num_running == stats.num_waiting == 0
        assert stats.num_blocks_cached + stats.num_blocks_free == stats.num_blocks
        engine.close(0.0)
    fakes.made_engines.clear()
