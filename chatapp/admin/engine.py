"""The page about the engine: which models are there, how a block pool is filled, what its cache has saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from chatapp import llm, model_catalogue, model_notes
from chatapp.admin.engine_numbers import cards
from chatapp.errors import ChatError
from chatapp.model_catalogue import InstalledModel


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model as the page shows it: installed, or in memory only, when its files are gone."""

    name: str
    status: llm.EngineStatus
    is_shown: bool  # its numbers are on the page
    can_run: bool = False
    is_default: bool = False
    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return _state_label(self.status.state) if self.can_run or self.can_unload else _("Cannot run")

    @property
    def can_load(self) -> bool:
        states = (llm.EngineState.UNLOADED, llm.EngineState.FAILED)
        return self.can_run and self.status.state in states

    @property
    def can_unload(self) -> bool:
        return self.status.state is llm.EngineState.READY

    @property
    def loaded_percent(self) -> str:
        return f"{100 * self.status.progress:.0f}"


def engine_page(request: HttpRequest) -> HttpResponse:
    """For staff: the admin site wraps it. Cheap: snapshots of counters and a look at the models folder, no query."""
    shown = request.GET.get("model") or llm.default_model()
    status = llm.status(shown)
    return TemplateResponse(
        request,
        "admin/engine.html",
        {
            **admin.site.each_context(request),
            "title": _("Engine"),
            "status": status,
            "state_label": _state_label(status.state),
            "loaded_percent": f"{100 * status.progress:.0f}",
            "shown": shown,
            "rows": _rows(shown),
            "memory": _memory(),
            "encoder": llm.encoder_status(),
            "cards": cards(status.stats) if status.stats else [],
            "num_recent": llm.NUM_RECENT,
        },
    )


@require_POST
def model_load(request: HttpRequest) -> HttpResponse:
    """Have a model loaded; the page shows how far it is."""
    return _ask(request, llm.load, among=[])


@require_POST
def model_unload(request: HttpRequest) -> HttpResponse:
    """Give a model's memory back, unless replies need it; also that of one whose files are gone."""
    return _ask(request, llm.unload, among=llm.loaded_models())


def _ask(request: HttpRequest, action: Callable[[str], None], *, among: list[str]) -> HttpResponse:
    """among: names that are known besides those of installed models."""
    name = request.POST.get("model", "")
    try:
        action(name if name in among else model_catalogue.get(name).name)
    except ChatError as error:
        messages.error(request, error.message)
    return redirect("admin:engine")


def _rows(shown: str) -> list[ModelRow]:
    rows = [_row(model, shown) for model in model_catalogue.installed()]
    gone = sorted(set(llm.loaded_models()) - {row.name for row in rows})
    return rows + [
        ModelRow(name, llm.status(name), name == shown, problem=model_notes.loaded_only(name)) for name in gone
    ]


def _row(model: InstalledModel, shown: str) -> ModelRow:
    return ModelRow(
        model.name,
        llm.status(model.name),
        model.name == shown,
        can_run=model.can_run,
        is_default=model.is_default,
        problem=model.problem,
        notes=model.notes,
    )


def _memory() -> dict[str, Any]:
    used, most = llm.memory()
    return {"used": used, "max": most, "percent": f"{100 * used / most:.2f}" if most else "0"}


def _state_label(state: llm.EngineState) -> str:
    return {
        llm.EngineState.OFF: _("Not started"),
        llm.EngineState.UNLOADED: _("Not loaded"),
        llm.EngineState.LOADING: _("Loading"),
        llm.EngineState.READY: _("Ready"),
        llm.EngineState.FAILED: _("Failed"),
        llm.EngineState.DRAINING: _("About to stop"),
        llm.EngineState.STOPPED: _("Stopped"),
    }[state]
