"""The model chip: which model runs here and whether it is ready, in words and numbers for a person."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from chatapp import llm, model_catalogue
from chatapp.errors import NotFound
from chatapp.views.access import person_required


@require_safe
@person_required
def show(request: HttpRequest) -> JsonResponse:
    """`model`, or the default one. Asked again and again by a page while it is being loaded."""
    name = request.GET.get("model", "")[:200]
    return JsonResponse(describe(llm.status(name), name, notes_of(name)))


def notes_of(model: str) -> tuple[str, ...]:
    """What a person should know who chooses this model; nothing about one that is not there."""
    with suppress(NotFound):
        return (model_catalogue.get(model) if model else model_catalogue.default()).notes
    return ()


def describe(status: llm.EngineStatus, name: str = "", notes: Sequence[str] = ()) -> dict[str, Any]:
    """What the chip and its card show; sentences are in the person's language."""
    name = name or settings.RECOLLECT_MODEL.name.removesuffix(".gguf")  # as the operator calls it; the file's is odd
    label = {
        llm.EngineState.READY: name,
        llm.EngineState.UNLOADED: name,
        llm.EngineState.LOADING: _("Loading model, %(share)s %%") % {"share": round(100 * status.progress)},
        llm.EngineState.FAILED: _("Model failed to load"),
    }.get(status.state, _("No model"))
    return {
        "state": status.state.value,
        "name": name,
        "label": label,
        "message": status.message,
        "command": _command(status),
        "facts": _facts(status),
        "notes": notes,
    }


def _command(status: llm.EngineStatus) -> str:
    """What mends a failed start: the default model can be fetched; any other file is the operator's own."""
    is_missing = not settings.RECOLLECT_MODEL.exists()
    return llm.FETCH_COMMAND if status.state is llm.EngineState.FAILED and is_missing else ""


def _facts(status: llm.EngineStatus) -> list[tuple[str, str]]:
    model, stats = status.model, status.stats
    facts: list[tuple[str, str]] = []
    if model is not None:
        facts += [
            (_("Parameters"), _("%(n)s million") % {"n": _whole(round(model.num_parameters / 1e6))}),
            (_("Window"), _("%(n)s tokens") % {"n": _whole(model.max_position_embeddings)}),
            (_("Kernels"), model.kernel_tier),
        ]
    if stats is not None and stats.num_blocks:
        num_cached = stats.num_blocks_cached * stats.block_size
        facts += [
            (_("Remembered now"), _("%(n)s tokens") % {"n": _whole(num_cached)}),
            (_("Requests running, waiting"), f"{stats.num_running}, {stats.num_waiting}"),
        ]
    return facts


def _whole(number: int) -> str:
    return number_format(number, force_grouping=True)
