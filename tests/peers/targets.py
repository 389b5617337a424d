"""What is compared, and what is aimed at. Pure: figures in, ratios and verdicts out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, float]  # "decode_512" -> tok/s; those of "warm_ttft" in ms

RATIOS = {  # to the best peer, above 1 is better for us
    "prefill_512": 1.5,
    "prefill_2048": 2.0,
    "decode_64": 1.5,
    "decode_512": 2.0,
    "decode_2048": 2.5,
    "parallel_4": 3.0,
    "warm_ttft_2048": 2.0,
}
BANDWIDTH_SHARE = 0.6
START_S = {"first_s": 60.0, "cached_s": 4.0}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure beside its target. is_upper: the target is a limit, not a floor."""

    name: str
    value: float
    target: float
    is_upper: bool = False

    @property
    def holds(self) -> bool:
        return self.value <= self.target if self.is_upper else self.value >= self.target

    def __str__(self) -> str:
        aim = f"{'at most' if self.is_upper else 'at least'} {self.target:.3g}"
        short = abs(self.value / self.target - 1)
        return f"{self.name:28} {self.value:10.4g}   {aim:18} {'holds' if self.holds else f'missed by {short:.0%}'}"


def named(figures: Mapping[str, Any]) -> dict[str, float]:
    """One run's JSON as {"prefill_512": .., "decode_512": .., "warm_ttft_512": .., .., "parallel_4": ..}"""
    rows = figures["contexts"].items()
    prefill = {f"prefill_{size}": row["prefill_tok_s"] for size, row in rows}
    decode = {f"decode_{size}": row["decode_tok_s"] for size, row in rows}
    warm = {f"warm_ttft_{size}": row["warm_ttft_ms"] for size, row in rows}
    return {**prefill, **decode, "parallel_4": figures["parallel"]["decode_tok_s"], **warm}


def medians(runs: Sequence[Figures]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def ratio(name: str, ours: Figures, peers: Mapping[str, Figures]) -> float:
    """Ours to the best peer."""
    values = [peer[name] for peer in peers.values()]
    return min(values) / ours[name] if name.startswith("warm_ttft") else ours[name] / max(values)


def verdicts(ratios: Figures, quality: Figures) -> list[Verdict]:
    """quality: kl, bandwidth_share, the start times; kl_llamacpp if it was measured."""
    found = [Verdict(name, ratios[name], target) for name, target in RATIOS.items()]
    found.append(Verdict("bandwidth_share", quality["bandwidth_share"], BANDWIDTH_SHARE))
    if "kl_llamacpp" in quality:
        found.append(Verdict("kl, beside llama.cpp's", quality["kl"], quality["kl_llamacpp"], is_upper=True))
    found += [Verdict(f"start, {name}", quality[name], limit, is_upper=True) for name, limit in START_S.items()]
    return found
