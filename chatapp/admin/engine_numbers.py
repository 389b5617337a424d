"""The numbers of a model's engine for a person: what stands on the engine page, card by card.

docs/METRICS.md says of every label what is counted, of what, since when; a test holds the two to the same set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.contrib.humanize.templatetags.humanize import intcomma
from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _

from chatapp import llm, machine

NOTHING = "–"
SOON_S = 600.0  # one of llm.EVICTED_AGE_LIMITS_S: evicted sooner, a block has been there for nothing


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a bar. `kind` is its style class, `percent` a number that CSS can read."""

    kind: str
    label: str
    num: int
    percent: str


@dataclass(frozen=True, slots=True)
class Figure:
    label: str
    value: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """A hit ratio since the model was loaded, and of the last requests."""

    label: str
    since_start: str
    recent: str


@dataclass(frozen=True, slots=True)
class Card:
    """A part of the page. notes are sentences, a problem is one that somebody should do something about."""

    title: str
    figures: tuple[Figure, ...] = ()
    bar: tuple[Share, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def labels(self) -> list[str]:
        return [part.label for parts in (self.bar, self.ratios, self.figures) for part in parts]


def cards(stats: llm.EngineStats) -> list[Card]:
    return [_requests(stats), _pool(stats), _reuse(stats), _disk(stats.cache)]


def _requests(stats: llm.EngineStats) -> Card:
    return Card(
        _("Requests"),
        figures=(
            Figure(_("Running"), intcomma(stats.num_running)),
            Figure(_("Queued"), f"{intcomma(stats.num_waiting)} / {intcomma(stats.max_waiting)}"),
            Figure(_("Finished"), intcomma(stats.num_requests)),
            Figure(_("Generated tokens"), intcomma(stats.num_generated)),
            Figure(_("Guessed tokens"), intcomma(stats.num_drafted)),
            Figure(_("of these right"), part_of(stats.num_accepted, stats.num_drafted)),
            Figure(_("Preempted"), intcomma(stats.num_preemptions)),
            Figure(_("Up for"), duration(stats.uptime_s)),
        ),
    )


def _pool(stats: llm.EngineStats) -> Card:
    cache = stats.cache
    num_evicted = cache.num_evicted_blocks
    num_soon = sum(cache.num_evicted_by_age[: llm.EVICTED_AGE_LIMITS_S.index(SOON_S) + 1])
    return Card(
        _("Block pool"),
        bar=(
            _share("used", _("In use"), stats.num_blocks_used, stats.num_blocks),
            _share("cached", _("Cached"), stats.num_blocks_cached, stats.num_blocks),
            _share("free", _("Free"), stats.num_blocks_free, stats.num_blocks),
        ),
        notes=(
            _("In use: replies that are being written refer to these blocks."),
            _("Cached: their replies have let them go; they are found again until others need the room."),
            _("The memory of all of them goes back to the system when the model is unloaded, and not before."),
        ),
        figures=(
            Figure(_("Blocks"), intcomma(stats.num_blocks)),
            Figure(_("Tokens in a block"), intcomma(stats.block_size)),
            Figure(_("Memory of the pool"), filesizeformat(stats.pool_bytes)),
            Figure(_("Memory of the process"), _size_or_nothing(machine.resident_bytes())),
            Figure(_("Oldest cached block"), duration(cache.oldest_idle_s) if stats.num_blocks_cached else NOTHING),
            Figure(_("Evicted blocks"), intcomma(num_evicted)),
            Figure(_("Mean age at eviction"), duration(cache.mean_evicted_age_s) if num_evicted else NOTHING),
            Figure(_("Evicted within 10 minutes"), part_of(num_soon, num_evicted)),
        ),
    )


def _reuse(stats: llm.EngineStats) -> Card:
    cache = stats.cache
    start, recent = cache.since_start, cache.recent
    off = _("The prefix cache is switched off (RECOLLECT_PREFIX_CACHE): every prompt is computed anew.")
    return Card(
        _("Prefix cache"),
        problem="" if cache.is_enabled else off,
        bar=(
            _share("cached", _("Reused from RAM"), stats.num_reused_ram, stats.num_prompt_tokens),
            _share("disk", _("Reused from disk"), stats.num_reused_disk, stats.num_prompt_tokens),
            _share("used", _("Computed"), stats.num_computed, stats.num_prompt_tokens),
        ),
        ratios=(
            Ratio(
                _("Prompt tokens that were reused"),
                part_of(start.num_tokens_hit, start.num_tokens),
                part_of(recent.num_tokens_hit, recent.num_tokens),
            ),
            Ratio(
                _("Requests that reused any"),
                part_of(start.num_requests_hit, start.num_requests),
                part_of(recent.num_requests_hit, recent.num_requests),
            ),
            Ratio(
                _("Full blocks that were reused whole"),
                part_of(start.num_blocks_hit, start.num_blocks),
                part_of(recent.num_blocks_hit, recent.num_blocks),
            ),
        ),
        figures=(
            Figure(_("Prefill time saved"), duration(cache.prefill_saved_s)),
            Figure(_("Prompts that came again"), intcomma(cache.num_exact_repeats)),
            Figure(_("Prompts computed ahead"), intcomma(cache.num_prefill_only)),
            Figure(_("Tokens computed ahead"), intcomma(cache.num_prefill_only_tokens)),
            Figure(_("Titles and other side requests"), intcomma(cache.num_side)),
            Figure(_("Tokens of side requests"), intcomma(cache.num_side_tokens)),
            Figure(_("Gave way to requests"), intcomma(stats.num_yields)),
            Figure(_("Second look-ups"), intcomma(cache.num_relookups)),
            Figure(_("Tokens found by these"), part_of(cache.num_relookup_tokens_hit, cache.num_relookup_tokens)),
            Figure(_("Tokens computed once more"), intcomma(stats.num_recomputed)),
            Figure(_("Key collisions, refused"), intcomma(stats.num_collisions)),
        ),
    )


def _disk(cache: llm.CacheStats) -> Card:
    disk = cache.disk
    if disk is None:
        none = _("Nothing is kept on disk: after a restart every history is computed once more.")
        return Card(_("Cache on disk"), notes=() if cache.disk_problem else (none,), problem=cache.disk_problem)
    return Card(
        _("Cache on disk"),
        figures=(
            Figure(_("On disk"), f"{filesizeformat(disk.num_bytes)} / {filesizeformat(disk.max_bytes)}"),
            Figure(_("Files"), intcomma(disk.num_files)),
            Figure(_("Blocks not saved yet"), intcomma(disk.num_unsaved_blocks)),
            Figure(_("On the way to disk"), filesizeformat(disk.pending_bytes)),
            Figure(_("Restored blocks"), intcomma(disk.num_restored_blocks)),
            Figure(_("Time spent restoring"), duration(disk.restore_s)),
            Figure(_("Failed restores"), by_cause(disk.failed_restores)),
            Figure(_("Failed writes"), by_cause(disk.failed_writes)),
            Figure(_("Evicted files"), intcomma(disk.num_evicted_files)),
            Figure(_("Blocks lost before they were saved"), intcomma(disk.num_lost_blocks)),
        ),
    )


def _share(kind: str, label: str, num: int, total: int) -> Share:
    return Share(kind, label, num, f"{100 * num / total:.2f}" if total else "0")


def _size_or_nothing(num_bytes: int) -> str:
    return filesizeformat(num_bytes) if num_bytes else NOTHING


def ratio(num: int, total: int) -> str:
    """A percentage for a person; a dash where there is nothing to divide by."""
    return f"{100 * num / total:.1f}\N{NO-BREAK SPACE}%" if total else NOTHING


def part_of(num: int, total: int) -> str:
    """A percentage with the two numbers that it comes from."""
    if not total:
        return NOTHING
    return _("%(percent)s (%(num)s of %(total)s)") % {
        "percent": ratio(num, total),
        "num": intcomma(num),
        "total": intcomma(total),
    }


def by_cause(counts: Mapping[str, int]) -> str:
    """The sum, and what it is made of."""
    total = intcomma(sum(counts.values()))
    causes = ", ".join(f"{cause} {intcomma(num)}" for cause, num in sorted(counts.items()))
    return f"{total} ({causes})" if causes else total


def duration(seconds: float) -> str:
    """The two largest units: "0.8 s", "3 min 20 s", "2 d 4 h"."""
    if seconds < 10:
        return _("%(num)s s") % {"num": f"{seconds:.1f}"}
    left = round(seconds)
    parts: list[str] = []
    for size, unit in ((86_400, _("%(num)s d")), (3600, _("%(num)s h")), (60, _("%(num)s min")), (1, _("%(num)s s"))):
        num, left = divmod(left, size)
        if num or parts:
            parts.append(unit % {"num": num})
    return " ".join(parts[:2])
