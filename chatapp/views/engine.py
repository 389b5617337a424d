"""The model chip: which model runs here and whether it is ready, in words and numbers for a person."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from chatapp import llm
from chatapp.views.access import person_required


@require_safe
@person_required
def show(request: HttpRequest) -> JsonResponse:
    """Asked again and again by a page while the model is being loaded."""
    return JsonResponse(describe(llm.status()))


def describe(status: llm.EngineStatus) -> dict[str, Any]:
    """What the chip and its card show; sentences are in the person's language."""
    name = settings.RECOLLECT_MODEL.name.removesuffix(".gguf")  # what the operator calls it; the file's own name is odd
    label = {
        llm.EngineState.READY: name,
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
            (_("Replies running, waiting"), f"{stats.num_running}, {stats.num_waiting}"),
        ]
    return facts


def _whole(number: int) -> str:
    return number_format(number, force_grouping=True)
