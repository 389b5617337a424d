"""A summary as the page shows it where the window begins, and the change of its words."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_POST, require_safe

from chatapp import hints, window_rows
from chatapp.markdown import render_blocks
from chatapp.models import Summary
from chatapp.services import summaries
from chatapp.views.access import person, person_required


@require_safe
@person_required
def show(request: HttpRequest, conversation_id: uuid.UUID, summary_id: uuid.UUID) -> HttpResponse:
    """Its text, raw and rendered, and what it stands for. It never changes: an edit makes another one."""
    return _answer(window_rows.summary_get(person(request), conversation_id, summary_id))


@require_POST
@person_required
def edit(request: HttpRequest, conversation_id: uuid.UUID, summary_id: uuid.UUID) -> HttpResponse:
    """The same stretch in the words of `text`, from the next turn on. Answers with the summary that says so."""
    user = person(request)
    changed = summaries.summary_edit(
        user=user, conversation_id=conversation_id, summary_id=summary_id, text=request.POST.get("text", "")
    )
    if changed.id != summary_id:
        hints.conversation_changed(user.pk, conversation_id)
    return _answer(changed)


def _answer(summary: Summary) -> JsonResponse:
    values: dict[str, Any] = {
        "id": summary.id,
        "until": summary.until_id,
        "messages": summary.num_messages,
        "missing": summary.num_missing,
        "model": summary.model_name,
        "is_edited": summary.is_edited,
        "text": summary.text,
        "blocks": render_blocks(summary.text),
    }
    return JsonResponse(values)
