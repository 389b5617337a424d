"""StatsRecorder: counts what has finished and makes snapshots that any thread may read."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from inference.kvcache.prefix_cache import PrefixCache
from inference.types import CacheStats, EngineStats, HitCounts, Rank, RequestStats

NUM_RECENT = 1000  # requests of the window over which recent hit ratios are taken

# Fields of RequestStats whose sums over the finished requests are fields of EngineStats.
SUMMED = (
    "num_prompt_tokens",
    "num_reused_ram",
    "num_reused_disk",
    "num_computed",
    "num_recomputed",
    "num_generated",
    "num_drafted",
    "num_accepted",
)


class HitRecorder:
    """Adds up what finished requests have looked up: since the start, and in the last ones."""

    def __init__(self, block_size: int, num_recent: int = NUM_RECENT) -> None:
        self._block_size = block_size
        self._recent: deque[tuple[int, ...]] = deque(maxlen=num_recent)
        self._sums: tuple[int, ...] = (0,) * 6
        self._recent_sums: tuple[int, ...] = (0,) * 6

    def record(self, stats: RequestStats) -> None:
        num_tokens, num_hit = stats.num_prompt_tokens, stats.num_reused_ram + stats.num_reused_disk
        if num_tokens == 0:  # never looked up
            return
        P = self._block_size
        counts = (1, int(num_hit > 0), num_tokens, num_hit, num_tokens // P, num_hit // P)
        oldest = self._recent[0] if len(self._recent) == self._recent.maxlen else (0,) * 6
        self._recent.append(counts)
        self._sums = tuple(a + b for a, b in zip(self._sums, counts, strict=True))
        self._recent_sums = tuple(a + b - c for a, b, c in zip(self._recent_sums, counts, oldest, strict=True))

    @property
    def since_start(self) -> HitCounts:
        return HitCounts(*self._sums)

    @property
    def recent(self) -> HitCounts:
        return HitCounts(*self._recent_sums)


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
        self._totals: dict[str, Any] = dict.fromkeys(("num_requests", *SUMMED), 0)  # replaced, never changed
        self._hits = HitRecorder(cache.block_size)
        self._prefill_tokens, self._prefill_s = 0, 0.0
        # The counts of CacheStats that come from here.
        names = ("exact_repeats", "side", "side_tokens", "prefill_only", "prefill_only_tokens")
        self._cache_counts = {f"num_{name}": 0 for name in names}
        self._prefill_saved_s = 0.0
        self.refresh_cache(num_relookups=0, num_relookup_tokens=0, num_relookup_tokens_hit=0)
        self.refresh(num_running=0, num_waiting=0, num_preemptions=0, num_yields=0)

    def record_prefill(self, num_tokens: int, seconds: float) -> None:
        """Count a step that has done nothing but read so many tokens of prompts."""
        self._prefill_tokens += num_tokens
        self._prefill_s += seconds

    def record(self, stats: RequestStats, rank: Rank = Rank.TURN) -> None:
        """Count a finished request. Those that are no turns are counted apart: their hits would flatter the ratios."""
        counts = self._cache_counts
        if rank != Rank.TURN:
            kind = "side" if rank == Rank.SIDE else "prefill_only"
            counts[f"num_{kind}"] += 1
            counts[f"num_{kind}_tokens"] += stats.num_computed + stats.num_generated
            return
        num_reused = stats.num_reused_ram + stats.num_reused_disk
        counts["num_exact_repeats"] += num_reused > 0 and stats.num_computed == 0
        self._hits.record(stats)
        if self._prefill_tokens:
            self._prefill_saved_s += num_reused * self._prefill_s / self._prefill_tokens
        totals = self._totals
        self._totals = {
            "num_requests": totals["num_requests"] + 1,
            **{name: totals[name] + getattr(stats, name) for name in SUMMED},
        }

    def refresh_cache(self, *, num_relookups: int, num_relookup_tokens: int, num_relookup_tokens_hit: int) -> None:
        """Look at the cache anew; refresh() is to follow."""
        pool = self._cache.pool
        self._oldest_release = pool.oldest_release
        self._cache_stats = CacheStats(
            is_enabled=self._cache.is_enabled,
            since_start=self._hits.since_start,
            recent=self._hits.recent,
            **self._cache_counts,
            num_relookups=num_relookups,
            num_relookup_tokens=num_relookup_tokens,
            num_relookup_tokens_hit=num_relookup_tokens_hit,
            num_evicted_blocks=pool.num_evicted,
            evicted_age_s=pool.evicted_age_s,
            num_evicted_by_age=tuple(pool.num_evicted_by_age),
            prefill_saved_s=self._prefill_saved_s,
            disk=self._cache.disk_stats(),
            disk_problem=self._cache.disk_problem,
        )

    def refresh(self, *, num_running: int, num_waiting: int, num_preemptions: int, num_yields: int) -> None:
        """Note the numbers of this moment."""
        pool = self._cache.pool
        live: dict[str, Any] = {
            "num_running": num_running,
            "num_waiting": num_waiting,
            "num_blocks_used": pool.num_used,
            "num_blocks_cached": pool.num_cached,
            "num_blocks_free": pool.num_empty,
            "num_preemptions": num_preemptions,
            "num_yields": num_yields,
            "num_collisions": self._cache.num_collisions,
        }
        self._moment = live, self._totals, self._cache_stats, self._oldest_release

    def latest(self, now: float) -> EngineStats:
        live, totals, cache, oldest_release = self._moment
        if oldest_release is not None:
            cache = replace(cache, oldest_idle_s=now - oldest_release)
        return EngineStats(**self._fixed, **live, **totals, cache=cache, uptime_s=now - self._started_at)
