"""The chat page: an empty conversation, a stored one, and the parts of it that the page fetches later."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from chatapp import llm, model_catalogue, model_notes, selectors, window_rows, wire
from chatapp.errors import Invalid
from chatapp.markdown import render_many
from chatapp.models import Conversation, Generation, Message, MessageStatus, Role, User
from chatapp.services import summaries
from chatapp.thinking import thought_of
from chatapp.turn.numbers import turn_stats
from chatapp.views import engine
from chatapp.views.access import person, person_required
from chatapp.views.sidebar import Row, listing

NO_ID = uuid.UUID(int=0)  # stands in addresses for an id that a script puts in


@dataclass(frozen=True, slots=True)
class Item:
    """One message as its template needs it. `revision` changes with everything that the template shows."""

    id: uuid.UUID
    role: str
    status: str
    error: str
    is_open: bool
    blocks: tuple[str, ...]
    stats_json: str
    thought: tuple[str, ...] = ()
    thinking_ms: int = 0
    recalled_json: str = ""
    version: int = 1
    num_versions: int = 1
    previous_id: uuid.UUID | None = None
    next_id: uuid.UUID | None = None
    revision: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a conversation, top to bottom; `older` is what to ask for next, None at the top."""

    items: list[Item]
    older: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The models that can be chosen, and the one that answers.

    is_missing: its files are gone or cannot be run. is_loaded: it answers nevertheless, until it leaves the memory.
    """

    names: tuple[str, ...]
    current: str
    is_missing: bool
    is_loaded: bool = False

    @property
    def is_offered(self) -> bool:
        return len(self.names) > 1 or (self.is_missing and bool(self.names))

    @property
    def note(self) -> str:
        """What is to be said before anything is sent; "" when all is well."""
        if not self.is_missing:
            return ""
        if self.is_loaded:
            return model_notes.loaded_only(self.current)
        if not self.is_offered:
            return ""
        return _("The model %(name)s is not installed any more. Choose another one to go on.") % {"name": self.current}


@require_safe
@person_required
def conversation_new(request: HttpRequest) -> HttpResponse:
    """An empty chat page. The conversation comes into being with its first message, under an id that the page chose."""
    return _page(request, None, Window([], None))


@require_safe
@person_required
def conversation_show(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """A stored conversation: the end of its active branch."""
    conversation = selectors.conversation_get(person(request), conversation_id)
    return _page(request, conversation, window_of(person(request), conversation_id))


@require_safe
@person_required
def message_window(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """The end of the active branch again, or what lies above message `before`."""
    before = request.GET.get("before", "")
    return window_answer(person(request), conversation_id, before=_uuid(before) if before else None)


@require_safe
@person_required
def message_text(request: HttpRequest, conversation_id: uuid.UUID, message_id: uuid.UUID) -> HttpResponse:
    """The text of one message exactly as stored, for Copy and Edit; of a reply the answer, without its thinking."""
    message = selectors.message_get(person(request), conversation_id, message_id)
    return HttpResponse(message.answer, content_type="text/plain; charset=utf-8")


def window_answer(user: User, conversation_id: uuid.UUID, *, before: uuid.UUID | None = None) -> JsonResponse:
    """A window as a script takes it in: HTML of the messages, and where to go on above them."""
    window = window_of(user, conversation_id, before=before)
    return JsonResponse({"html": render_to_string("chat/messages.html", {"window": window}), "older": window.older})


def window_of(user: User, conversation_id: uuid.UUID, *, before: uuid.UUID | None = None) -> Window:
    """Messages with their Markdown rendered, in one call to the renderer. Raises NotFound."""
    transcript = selectors.transcript(user, conversation_id, before=before)
    messages = [entry.message for entry in transcript.messages]
    thoughts = [thought_of(message.text, message.thinking_chars) for message in messages]
    rendered = render_many([*(message.answer for message in messages), *thoughts])
    recalled = window_rows.recalled_for([message.id for message in messages if message.role == Role.USER])
    rows = zip(transcript.messages, rendered[: len(messages)], rendered[len(messages) :], strict=True)
    items = [_item(entry, blocks, thought, recalled.get(entry.message.id)) for entry, blocks, thought in rows]
    return Window(items, transcript.older_cursor)


def _item(
    entry: selectors.TranscriptMessage,
    blocks: tuple[str, ...],
    thought: tuple[str, ...],
    recalled: wire.Recalled | None,
) -> Item:
    message, generation = entry.message, entry.generation
    return Item(
        id=message.id,
        role=message.role,
        status=message.status,
        error=message.error,
        is_open=message.is_open,
        blocks=blocks,
        thought=thought,
        thinking_ms=round(1000 * generation.thinking_s) if generation else 0,
        stats_json=_stats_json(generation),
        recalled_json=json.dumps(asdict(recalled), default=str) if recalled else "",
        version=entry.version,
        num_versions=len(entry.sibling_ids),
        previous_id=entry.previous_id,
        next_id=entry.next_id,
        revision=_revision(message, generation, entry),
    )


def _stats_json(generation: Generation | None) -> str:
    return "" if generation is None else json.dumps(asdict(turn_stats(generation)))


def _revision(message: Message, generation: Generation | None, entry: selectors.TranscriptMessage) -> str:
    if message.is_open:
        return ""  # changes all the time
    attempt = generation.id if generation else ""
    return f"{message.status}/{attempt}/{entry.version}/{len(entry.sibling_ids)}"


def _page(request: HttpRequest, conversation: Conversation | None, window: Window) -> HttpResponse:
    user = person(request)
    choice = models_for(conversation)
    engine_state = engine.describe(llm.status(choice.current), choice.current, engine.notes_of(choice.current))
    blank = Item(NO_ID, Role.USER, MessageStatus.DONE, "", False, (), "")
    found = listing(user)
    context = {
        "conversation": conversation,
        "current_id": conversation.id if conversation else None,
        "window": window,
        "groups": found.groups,
        "next_page": found.next_cursor,
        "engine": engine_state,
        "models": choice,
        "presets": selectors.public_presets() if conversation is None else [],
        "starters": _starters(),
        "theme": user.preferences.get("theme", "system"),
        "page": _data(request, conversation, window, engine_state, choice),
        "blank_user": blank,
        "blank_assistant": Item(NO_ID, Role.ASSISTANT, MessageStatus.QUEUED, "", False, (), ""),
        "blank_row": Row(NO_ID, "", False, False),
    }
    return render(request, "chat/page.html", context)


def _data(
    request: HttpRequest,
    conversation: Conversation | None,
    window: Window,
    engine_state: dict[str, Any],
    choice: ModelChoice,
) -> dict[str, Any]:
    """What the scripts of the page need to know."""
    user = person(request)
    of_conversation = {
        name: reverse(route, args=[NO_ID])
        for name, route in (
            ("conversation", "conversation"),
            ("window", "message_window"),
            ("branch", "conversation_branch"),
            ("model", "conversation_model"),
            ("cold", "conversation_cold"),
            ("policy", "conversation_window"),
            ("rename", "conversation_rename"),
            ("pin", "conversation_pin"),
            ("archive", "conversation_archive"),
            ("delete", "conversation_delete"),
        )
    }
    of_summary = {
        name: reverse(route, args=[NO_ID, NO_ID])
        for name, route in (("summary", "summary"), ("editSummary", "summary_edit"))
    }
    return {
        "person": str(user.pk),
        "conversation": conversation.id if conversation else None,
        "title": conversation.title if conversation else "",
        "older": window.older,
        "csrf": get_token(request),
        "noId": NO_ID,
        "urls": of_conversation
        | of_summary
        | {
            "text": reverse("message_text", args=[NO_ID, NO_ID]),
            "home": reverse("conversation_new"),
            "conversations": reverse("conversations"),
            "engine": reverse("engine"),
            "login": reverse("login"),
            "socket": f"{reverse('conversation_new')}ws/",
        },
        "limits": {
            "frameBytes": wire.MAX_FRAME_BYTES,
            "messageChars": wire.MAX_MESSAGE_CHARS,
            "summaryChars": summaries.MAX_CHARS,
        },
        "engine": engine_state,
        "model": choice.current,
        "hasShortcuts": user.preferences.get("shortcuts", True),
        "readsDrafts": user.preferences.get("drafts", True),
        "policy": policy_of(conversation) if conversation else None,
        "isArchived": conversation is not None and conversation.is_archived,
    }


def models_for(conversation: Conversation | None) -> ModelChoice:
    """What can answer in a conversation, or in a new one."""
    names = tuple(model.name for model in model_catalogue.installed() if model.can_run)
    current = conversation.model_name if conversation is not None else ""
    current = current or llm.default_model() or model_catalogue.default().name
    return ModelChoice(names, current, is_missing=current not in names, is_loaded=current in llm.loaded_models())


def policy_of(conversation: Conversation) -> dict[str, Any]:
    """What becomes of what no longer fits the window, as the scripts and the form say it."""
    return {
        "policy": conversation.context_policy,
        "recent_tokens": conversation.recent_tokens,
        "has_recall": conversation.has_recall,
    }


def _starters() -> list[tuple[str, str, str]]:
    """Ideas for a first message, in two parts: what is asked, and about what; then both as one sentence."""
    ideas = [
        (_("Explain photosynthesis"), _("to a curious ten-year-old")),
        (_("Write a short story"), _("about a lighthouse keeper and a lost letter")),
        (_("Give me five ideas"), _("for a rainy Sunday afternoon")),
        (_("Show me a Python function"), _("that finds the longest word in a sentence")),
    ]
    # Translators: how the two parts of an idea for a first message are joined.
    joined = _("%(what)s %(about)s")
    return [(what, about, joined % {"what": what, "about": about}) for what, about in ideas]


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise Invalid(_("This is not the name of a message.")) from None
