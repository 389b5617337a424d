"""The list of conversations and the small changes to one: rename, pin, archive, another branch or window, delete.

Each change is told to the person's other tabs; it has been committed by then.
"""

from __future__ import annotations

import uuid

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from chatapp import hints, model_catalogue, selectors
from chatapp.errors import Invalid
from chatapp.forms import ArchiveForm, BranchForm, PinForm, WindowForm
from chatapp.models import ContextPolicy
from chatapp.services import conversations
from chatapp.text import joined
from chatapp.turn import switch
from chatapp.views.access import person, person_required
from chatapp.views.chat import models_for, policy_of, window_answer
from chatapp.views.sidebar import listing


@require_safe
@person_required
def index(request: HttpRequest) -> HttpResponse:
    """One page of the list as HTML rows, those with `q` in the title; `cursor` comes from the page before.

    archived: those that have been put away, instead of the others.
    """
    found = listing(
        person(request),
        query=request.GET.get("q", "")[:200],
        cursor=request.GET.get("cursor", ""),
        is_archived=bool(request.GET.get("archived")),
    )
    context = {
        "groups": found.groups,
        "next_page": found.next_cursor,
        "query": found.query,
        "is_archive": found.is_archive,
        "current_id": None,
    }
    return render(request, "chat/list.html", context)


@require_POST
@person_required
def rename(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    conversation = conversations.conversation_rename(
        user=person(request), conversation_id=conversation_id, title=request.POST.get("title", "")
    )
    hints.conversation_changed(person(request).pk, conversation_id, title=conversation.title)
    return JsonResponse({"title": conversation.title})


@require_POST
@person_required
def pin(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    form = PinForm(request.POST)
    form.is_valid()  # a missing box is an unticked one: nothing to refuse
    conversations.conversation_pin(
        user=person(request), conversation_id=conversation_id, is_pinned=form.cleaned_data["is_pinned"]
    )
    hints.conversation_changed(person(request).pk, conversation_id)
    return JsonResponse({})


@require_POST
@person_required
def archive(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    form = ArchiveForm(request.POST)
    form.is_valid()  # as above
    conversations.conversation_archive(
        user=person(request), conversation_id=conversation_id, is_archived=form.cleaned_data["is_archived"]
    )
    hints.conversation_changed(person(request).pk, conversation_id)
    return JsonResponse({})


@require_POST
@person_required
def branch(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """Show the branch through `message`, and answer with its end."""
    form = BranchForm(request.POST)
    if not form.is_valid():
        raise Invalid(_("This is not the name of a message."))
    conversations.branch_select(
        user=person(request), conversation_id=conversation_id, message_id=form.cleaned_data["message"]
    )
    hints.conversation_changed(person(request).pk, conversation_id)
    return window_answer(person(request), conversation_id)


@require_POST
@person_required
def model(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """Another model from the next turn on. Answers with what that turn will read anew; refuses a model that cannot."""
    user = person(request)
    conversation = selectors.conversation_get(user, conversation_id)
    chosen = model_catalogue.get(request.POST.get("model", ""))
    if not chosen.can_run:
        raise Invalid(chosen.problem)
    conversation.model_name = chosen.name
    sentence = switch.announce(user, conversation)
    conversations.conversation_set_model(user=user, conversation_id=conversation_id, model=chosen.name)
    hints.conversation_changed(user.pk, conversation_id)
    return JsonResponse({"model": chosen.name, "cold": sentence, "notes": chosen.notes})


@require_safe
@person_required
def cold(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """Which model answers next, and what it will have to read anew; asked for when that may have changed."""
    conversation = selectors.conversation_get(person(request), conversation_id)
    choice = models_for(conversation)
    can_answer = choice.is_loaded or not choice.is_missing
    sentences = [choice.note, switch.announce(person(request), conversation) if can_answer else ""]
    return JsonResponse({"model": choice.current, "cold": joined(sentences)})


@require_POST
@person_required
def window(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """Another policy for what no longer fits, from the next turn on. Answers with what is stored."""
    form = WindowForm(request.POST)
    if not form.is_valid():
        raise Invalid(_("The number of tokens has to be a whole number, and the policy one of those offered."))
    conversation = conversations.conversation_set_window(
        user=person(request),
        conversation_id=conversation_id,
        policy=ContextPolicy(form.cleaned_data["policy"]),
        recent_tokens=form.cleaned_data["recent_tokens"],
        has_recall=form.cleaned_data["has_recall"],
    )
    hints.conversation_changed(person(request).pk, conversation_id)
    return JsonResponse(policy_of(conversation))


@require_POST
@person_required
def delete(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    conversations.conversation_delete(user=person(request), conversation_id=conversation_id)
    hints.conversation_changed(person(request).pk, conversation_id, is_deleted=True)
    return JsonResponse({})
