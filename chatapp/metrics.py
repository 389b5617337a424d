"""The numbers of the engines as Prometheus reads them: one table, read for each model that is loaded.

Numbers and names of models only; nothing of people, conversations or texts. What each one counts, of what, stands in
docs/METRICS.md. Counters begin at 0 when a model is loaded, which Prometheus takes for the restart that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from chatapp import llm

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PREFIX = "recollect_"

Value = float | Mapping[str, float] | None  # one, or one for each value of a label; None where there is nothing to tell
Family = GaugeMetricFamily | CounterMetricFamily
GAUGE, COUNTER = GaugeMetricFamily, CounterMetricFamily


@dataclass(frozen=True, slots=True)
class Number:
    """A metric of one model. Counters are shown with `_total` behind the name."""

    kind: type[Family]
    name: str
    help: str
    read: Callable[[llm.EngineStats], Value]
    label: str = ""  # beside `model`


def _of_disk(read: Callable[[llm.DiskStats], Value]) -> Callable[[llm.EngineStats], Value]:
    """Nothing of a model that keeps nothing on disk."""
    return lambda stats: None if stats.cache.disk is None else read(stats.cache.disk)


REQUESTS = (
    Number(GAUGE, "requests_running", "Requests that are being computed.", lambda s: s.num_running),
    Number(GAUGE, "requests_waiting", "Requests in the queue.", lambda s: s.num_waiting),
    Number(GAUGE, "requests_waiting_max", "Places in the queue.", lambda s: s.max_waiting),
    Number(COUNTER, "requests", "Requests that have ended.", lambda s: s.num_requests),
    Number(COUNTER, "generated_tokens", "Tokens generated.", lambda s: s.num_generated),
    Number(COUNTER, "drafted_tokens", "Tokens guessed.", lambda s: s.num_drafted),
    Number(COUNTER, "accepted_tokens", "Guessed tokens that were right.", lambda s: s.num_accepted),
    Number(COUNTER, "preemptions", "Running requests that had to give way.", lambda s: s.num_preemptions),
    Number(GAUGE, "uptime_seconds", "Time since the model was loaded.", lambda s: s.uptime_s),
)
POOL = (
    Number(
        GAUGE,
        "blocks",
        "Blocks of the pool.",
        lambda s: {"used": s.num_blocks_used, "cached": s.num_blocks_cached, "free": s.num_blocks_free},
        "state",
    ),
    Number(GAUGE, "block_tokens", "Tokens in a block.", lambda s: s.block_size),
    Number(GAUGE, "pool_bytes", "Memory of the pool.", lambda s: s.pool_bytes),
    Number(COUNTER, "evicted_blocks", "Cached blocks used for something else.", lambda s: s.cache.num_evicted_blocks),
    Number(GAUGE, "oldest_cached_seconds", "Age of the oldest cached block.", lambda s: s.cache.oldest_idle_s),
)
REUSE = (
    Number(GAUGE, "prefix_cache_enabled", "1 if the prefix cache is on.", lambda s: s.cache.is_enabled),
    Number(
        COUNTER,
        "prompt_tokens",
        "Tokens of prompts by where their KV came from.",
        lambda s: {"ram": s.num_reused_ram, "disk": s.num_reused_disk, "computed": s.num_computed},
        "source",
    ),
    Number(COUNTER, "lookups", "Requests looked up.", lambda s: s.cache.since_start.num_requests),
    Number(COUNTER, "lookups_hit", "Of these with a reused token.", lambda s: s.cache.since_start.num_requests_hit),
    Number(COUNTER, "prompt_blocks", "Full blocks of prompts.", lambda s: s.cache.since_start.num_blocks),
    Number(COUNTER, "prompt_blocks_hit", "Of these reused whole.", lambda s: s.cache.since_start.num_blocks_hit),
    Number(COUNTER, "exact_repeats", "Prompts reused whole.", lambda s: s.cache.num_exact_repeats),
    Number(COUNTER, "prefill_saved_seconds", "Prefill time saved.", lambda s: s.cache.prefill_saved_s),
    Number(COUNTER, "relookups", "Look-ups after giving way.", lambda s: s.cache.num_relookups),
    Number(COUNTER, "relookup_tokens", "Tokens looked up there.", lambda s: s.cache.num_relookup_tokens),
    Number(COUNTER, "relookup_tokens_hit", "Of these found.", lambda s: s.cache.num_relookup_tokens_hit),
    Number(COUNTER, "recomputed_tokens", "Tokens computed once more.", lambda s: s.num_recomputed),
    Number(COUNTER, "prefills_ahead", "Prompts computed ahead.", lambda s: s.cache.num_prefill_only),
    Number(COUNTER, "prefill_ahead_tokens", "Tokens computed ahead.", lambda s: s.cache.num_prefill_only_tokens),
    Number(COUNTER, "side_requests", "Titles and other side requests.", lambda s: s.cache.num_side),
    Number(COUNTER, "side_request_tokens", "Tokens computed or written by them.", lambda s: s.cache.num_side_tokens),
    Number(COUNTER, "prefill_ahead_yields", "Prefills ahead and side requests that gave way.", lambda s: s.num_yields),
    Number(COUNTER, "key_collisions", "Keys that matched without their tokens.", lambda s: s.num_collisions),
)
DISK = (
    Number(GAUGE, "disk_bytes", "Bytes of KV files.", _of_disk(lambda d: d.num_bytes)),
    Number(GAUGE, "disk_files", "KV files.", _of_disk(lambda d: d.num_files)),
    Number(GAUGE, "disk_pending_bytes", "Bytes on their way to disk.", _of_disk(lambda d: d.pending_bytes)),
    Number(GAUGE, "disk_unsaved_blocks", "Cached blocks not on disk.", _of_disk(lambda d: d.num_unsaved_blocks)),
    Number(COUNTER, "disk_lost_blocks", "Blocks evicted unsaved.", _of_disk(lambda d: d.num_lost_blocks)),
    Number(COUNTER, "disk_evicted_files", "KV files removed for room.", _of_disk(lambda d: d.num_evicted_files)),
    Number(COUNTER, "disk_restored_blocks", "Blocks read back.", _of_disk(lambda d: d.num_restored_blocks)),
    Number(COUNTER, "disk_restore_seconds", "Time spent reading them.", _of_disk(lambda d: d.restore_s)),
    Number(COUNTER, "disk_failed_restores", "KV files of no use.", _of_disk(lambda d: d.failed_restores), "cause"),
    Number(COUNTER, "disk_failed_writes", "KV files not written.", _of_disk(lambda d: d.failed_writes), "cause"),
)
NUMBERS = (*REQUESTS, *POOL, *REUSE, *DISK)


def exposition() -> bytes:
    """All metrics in Prometheus's text format. Snapshots of counters: no query, no file but /proc."""
    registry = CollectorRegistry()
    registry.register(_Engines())
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Engines(Collector):
    def collect(self) -> Iterator[Metric]:
        used, most = llm.memory()
        yield GAUGE(f"{PREFIX}models_bytes", "Memory of all loaded models, weights and pools.", used)
        yield GAUGE(f"{PREFIX}models_max_bytes", "What they may take.", most)
        found = {name: llm.status(name) for name in llm.loaded_models()}
        stats = {name: status.stats for name, status in found.items() if status.stats is not None}
        memory = GAUGE(f"{PREFIX}model_bytes", "Memory of a model, weights and pool.", labels=["model"])
        for name in stats:
            memory.add_metric([name], found[name].memory_bytes)
        yield memory
        yield from (_family(number, stats) for number in NUMBERS)
        yield _evicted_ages(stats)
        budgets = [each.cache.disk.max_bytes for each in stats.values() if each.cache.disk is not None]
        yield GAUGE(f"{PREFIX}disk_max_bytes", "What the KV files of all models may take.", max(budgets, default=0))


def _family(number: Number, stats: Mapping[str, llm.EngineStats]) -> Metric:
    labels = ["model", number.label] if number.label else ["model"]
    family = number.kind(f"{PREFIX}{number.name}", number.help, labels=labels)
    for model, each in stats.items():
        value = number.read(each)
        if isinstance(value, Mapping):
            for name, one in value.items():
                family.add_metric([model, name], one)
        elif value is not None:
            family.add_metric([model], value)
    return family


def _evicted_ages(stats: Mapping[str, llm.EngineStats]) -> Metric:
    """Histogram buckets hold all that are at most as old as their limit."""
    help = "Time from release to eviction of the evicted blocks."
    family = HistogramMetricFamily(f"{PREFIX}evicted_age_seconds", help, labels=["model"])
    limits = [*map(str, llm.EVICTED_AGE_LIMITS_S), "+Inf"]
    for model, each in stats.items():
        counts = each.cache.num_evicted_by_age
        buckets = [(limit, float(sum(counts[: i + 1]))) for i, limit in enumerate(limits)]
        family.add_metric([model], buckets, each.cache.evicted_age_s)
    return family
