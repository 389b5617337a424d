"""StatsRecorder: counts what has finished and makes snapshots that any thread may read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inference.kvcache.prefix_cache import PrefixCache
from inference.types import EngineStats, RequestStats


@dataclass(slots=True)
class Totals:
    """Sums over the finished requests."""

    num_requests: int = 0
    num_requests_hit: int = 0
    num_prompt_tokens: int = 0
    num_reused_ram: int = 0
    num_reused_disk: int = 0
    num_computed: int = 0
    num_generated: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    def add(self, stats: RequestStats) -> None:
        self.num_requests += 1
        self.num_requests_hit += stats.num_reused_ram + stats.num_reused_disk > 0
        self.num_prompt_tokens += stats.num_prompt_tokens
        self.num_reused_ram += stats.num_reused_ram
        self.num_reused_disk += stats.num_reused_disk
        self.num_computed += stats.num_computed
        self.num_generated += stats.num_generated
        self.num_drafted += stats.num_drafted
        self.num_accepted += stats.num_accepted


class StatsRecorder:
    """The owner of the engine calls record() and refresh(); latest() is for everybody.

    A snapshot is one immutable value that is replaced as a whole: a reader sees numbers of one moment, without a lock.
    """

    def __init__(self, cache: PrefixCache, *, max_waiting: int, pool_bytes: int, started_at: float) -> None:
        self._cache = cache
        self._totals = Totals()
        self._started_at = started_at
        self._latest = EngineStats(
            max_waiting=max_waiting,
            num_blocks=cache.pool.num_blocks,
            block_size=cache.block_size,
            pool_bytes=pool_bytes,
        )
        self.refresh(num_running=0, num_waiting=0, num_preemptions=0)

    def record(self, stats: RequestStats) -> None:
        """Count a finished request."""
        self._totals.add(stats)

    def refresh(self, *, num_running: int, num_waiting: int, num_preemptions: int) -> None:
        """Make a new snapshot."""
        pool, totals = self._cache.pool, self._totals
        self._latest = replace(
            self._latest,
            num_running=num_running,
            num_waiting=num_waiting,
            num_blocks_used=pool.num_used,
            num_blocks_cached=pool.num_cached,
            num_blocks_free=pool.num_empty,
            num_requests=totals.num_requests,
            num_requests_hit=totals.num_requests_hit,
            num_prompt_tokens=totals.num_prompt_tokens,
            num_reused_ram=totals.num_reused_ram,
            num_reused_disk=totals.num_reused_disk,
            num_computed=totals.num_computed,
            num_generated=totals.num_generated,
            num_drafted=totals.num_drafted,
            num_accepted=totals.num_accepted,
            num_evicted_blocks=pool.num_evicted,
            num_preemptions=num_preemptions,
            num_collisions=self._cache.num_collisions,
        )

    def latest(self, now: float) -> EngineStats:
        return replace(self._latest, uptime_s=now - self._started_at)
