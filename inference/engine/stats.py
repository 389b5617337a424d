"""StatsRecorder: counts what has finished and makes snapshots that any thread may read."""

from __future__ import annotations

from typing import Any

from inference.kvcache.prefix_cache import PrefixCache
from inference.types import EngineStats, RequestStats

# Fields of RequestStats whose sums over the finished requests are fields of EngineStats.
SUMMED = (
    "num_prompt_tokens",
    "num_reused_ram",
    "num_reused_disk",
    "num_computed",
    "num_generated",
    "num_drafted",
    "num_accepted",
)


class StatsRecorder:
    """The owner of the engine calls record() and refresh(); latest() is for everybody.

    What a snapshot is made of is replaced as a whole: a reader sees numbers of one moment, without a lock. It is put
    together when somebody asks, for refresh() is called several times a step.
    """

    def __init__(self, cache: PrefixCache, *, max_waiting: int, pool_bytes: int, started_at: float) -> None:
        self._cache = cache
        self._started_at = started_at
        self._fixed: dict[str, Any] = {
            "max_waiting": max_waiting,
            "num_blocks": cache.pool.num_blocks,
            "block_size": cache.block_size,
            "pool_bytes": pool_bytes,
        }
        self._totals: dict[str, Any] = dict.fromkeys(
            ("num_requests", "num_requests_hit", *SUMMED), 0
        )  # replaced, never changed
        self.refresh(num_running=0, num_waiting=0, num_preemptions=0)

    def record(self, stats: RequestStats) -> None:
        """Count a finished request."""
        totals = self._totals
        self._totals = {
            "num_requests": totals["num_requests"] + 1,
            "num_requests_hit": totals["num_requests_hit"] + (stats.num_reused_ram + stats.num_reused_disk > 0),
            **{name: totals[name] + getattr(stats, name) for name in SUMMED},
        }

    def refresh(self, *, num_running: int, num_waiting: int, num_preemptions: int) -> None:
        """Note the numbers of this moment."""
        pool = self._cache.pool
        live: dict[str, Any] = {
            "num_running": num_running,
            "num_waiting": num_waiting,
            "num_blocks_used": pool.num_used,
            "num_blocks_cached": pool.num_cached,
            "num_blocks_free": pool.num_empty,
            "num_evicted_blocks": pool.num_evicted,
            "num_preemptions": num_preemptions,
            "num_collisions": self._cache.num_collisions,
        }
        self._moment = live, self._totals

    def latest(self, now: float) -> EngineStats:
        live, totals = self._moment
        return EngineStats(**self._fixed, **live, **totals, uptime_s=now - self._started_at)
