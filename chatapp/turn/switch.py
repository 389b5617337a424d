"""What the next turn will have to read when another model answers it than before: said before it is asked for."""

from __future__ import annotations

from uuid import UUID

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from chatapp import llm, selectors
from chatapp.errors import WindowFull
from chatapp.models import Conversation, Message, User
from chatapp.text import joined
from chatapp.turn.past import Past, fitted, model_of, past_of, rules_of
from chatapp.turn.prompt import has_public_head

_QUESTION = llm.ChatMessage("user", "?")  # some templates render nothing that does not end with one


def cold_start(user: User, conversation_id: UUID) -> str:
    """A sentence about the next turn of a conversation; "" when the same model goes on. Blocking.

    Raises NotFound, EngineUnavailable, Invalid.
    """
    return announce(user, selectors.conversation_get(user, conversation_id))


def announce(user: User, conversation: Conversation) -> str:
    """As cold_start, for the model that the conversation names now, stored or not."""
    if conversation.active_leaf_id is None:
        return ""
    leaf = Message.objects.get(id=conversation.active_leaf_id)
    model = model_of(conversation)
    generations = selectors.generations_of([leaf.id])
    if leaf.id not in generations or generations[leaf.id].model_name == model:
        return ""
    past = Past(conversation, past_of(conversation, leaf, generations[leaf.id]), [_QUESTION])
    try:
        past, fit = fitted(past, rules_of(conversation))
    except WindowFull as error:
        return _("The history of %(num)s tokens does not fit the window of %(model)s, which holds %(window)s.") % {
            "model": model,
            "num": _number(past.prompt_from(0).spans[-2][1]),
            "window": _number(error.detail["window"]),
        }
    prompt = fit.prompt
    num_tokens = prompt.spans[-2][1] if len(prompt.spans) > 1 else 0  # up to the end of the last reply
    names = {"model": model, "num": _number(num_tokens)}
    cached = llm.count_cached(prompt, model=model, user_id=user.pk, is_head_public=has_public_head(conversation))
    return joined(
        [
            _what_is_read(names, min(cached, num_tokens), num_tokens),
            *_what_is_encoded(past.num_reencoded),
            *_what_is_left_out(past.num_outside(fit.first)),
            *([_("It is loaded first.")] if llm.status(model).state is not llm.EngineState.READY else []),
        ]
    )


def _what_is_read(names: dict[str, str], num_cached: int, num_tokens: int) -> str:
    if num_cached == 0:
        return _("The history of %(num)s tokens will be read anew by %(model)s.") % names
    return _("Of the history of %(num)s tokens %(model)s still remembers %(cached)s; %(rest)s will be read anew.") % (
        names | {"cached": _number(num_cached), "rest": _number(num_tokens - num_cached)}
    )


def _what_is_encoded(num_replies: int) -> list[str]:
    if num_replies == 0:
        return []
    return [
        ngettext(
            "%(num)s reply of another model is encoded again.",
            "%(num)s replies of another model are encoded again.",
            num_replies,
        )
        % {"num": _number(num_replies)}
    ]


def _what_is_left_out(num_messages: int) -> list[str]:
    if num_messages == 0:
        return []
    return [
        ngettext(
            "The first %(num)s message does not fit its window and is left out.",
            "The first %(num)s messages do not fit its window and are left out.",
            num_messages,
        )
        % {"num": _number(num_messages)}
    ]


def _number(value: int) -> str:
    return number_format(value, force_grouping=True)
