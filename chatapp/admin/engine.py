"""The page about the engine: which model runs, how the block pool is filled, what the prefix cache has saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from chatapp import llm


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a bar. `kind` is its style class, `percent` a number that CSS can read."""

    kind: str
    label: str
    num: int
    percent: str


def engine_page(request: HttpRequest) -> HttpResponse:
    """For staff: the admin site wraps it. Cheap: a snapshot of counters, no query."""
    status = llm.status()
    return TemplateResponse(
        request,
        "admin/engine.html",
        {
            **admin.site.each_context(request),
            "title": _("Engine"),
            "status": status,
            "state_label": _state_label(status.state),
            "loaded_percent": f"{100 * status.progress:.0f}",
            **(_numbers(status.stats) if status.stats else {}),
        },
    )


def _state_label(state: llm.EngineState) -> str:
    return {
        llm.EngineState.OFF: _("Not started"),
        llm.EngineState.LOADING: _("Loading"),
        llm.EngineState.READY: _("Ready"),
        llm.EngineState.FAILED: _("Failed"),
        llm.EngineState.DRAINING: _("About to stop"),
        llm.EngineState.STOPPED: _("Stopped"),
    }[state]


def _numbers(stats: llm.EngineStats) -> dict[str, Any]:
    num_reused = stats.num_reused_ram + stats.num_reused_disk
    return {
        "pool": [
            _share("used", _("In use"), stats.num_blocks_used, stats.num_blocks),
            _share("cached", _("Cached"), stats.num_blocks_cached, stats.num_blocks),
            _share("free", _("Free"), stats.num_blocks_free, stats.num_blocks),
        ],
        "prompt": [
            _share("cached", _("Reused from RAM"), stats.num_reused_ram, stats.num_prompt_tokens),
            _share("disk", _("Reused from disk"), stats.num_reused_disk, stats.num_prompt_tokens),
            _share("used", _("Computed"), stats.num_computed, stats.num_prompt_tokens),
        ],
        "token_hit_ratio": ratio(num_reused, stats.num_prompt_tokens),
        "request_hit_ratio": ratio(stats.num_requests_hit, stats.num_requests),
        "num_reused": num_reused,
    }


def _share(kind: str, label: str, num: int, total: int) -> Share:
    return Share(kind, label, num, f"{100 * num / total:.2f}" if total else "0")


def ratio(num: int, total: int) -> str:
    """A percentage for a person; a dash where there is nothing to divide by."""
    return f"{100 * num / total:.1f}\N{NO-BREAK SPACE}%" if total else "–"
