"""`manage.py ask`: one turn from the terminal, through the pipeline of the browser, with an engine of its own.

Needs no running server and works beside one: the database is shared, the cached KV of another process is not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from chatapp import checks, executors, llm, locks, model_catalogue, selectors, wire, wire_parsing
from chatapp.errors import ChatError, NotFound
from chatapp.interrupts import EXIT_INTERRUPTED
from chatapp.models import Conversation, MessageStatus, PrefixBreak, User
from chatapp.services import accounts, conversations
from chatapp.thinking import thought_of
from chatapp.turn import run, switch
from chatapp.turn.live import Live, LiveTurn
from chatapp.turn.parts import parts_of
from chatapp.turn.past import rules_of
from chatapp.turn.prompt import Plan


class Command(BaseCommand):
    """The reply goes to stdout as it comes; everything else to stderr. Ctrl-C stops the reply and keeps its text."""

    help = "Ask the model one thing. Continues a conversation, or begins one."
    requires_system_checks: list[str] = []  # their warnings are the server's business
    _has_begun = False  # to store anything

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("text", help="the message; - reads it from standard input")
        parser.add_argument("--conversation", type=UUID, metavar="ID", help="continue this one")
        parser.add_argument("--model", metavar="NAME", help="who answers, from now on (see the command `models`)")
        parser.add_argument("--user", metavar="NAME", help="whose conversation it is (the owner's)")
        parser.add_argument("--title", help="title of a new conversation (its first words)")
        parser.add_argument(
            "--thinking", action="store_true", help="print what the model thinks before it answers, too"
        )
        parser.add_argument("--json", action="store_true", help="print ids and numbers as a last line of JSON")

    def handle(self, *args: Any, text: str, **options: Any) -> None:
        if options["title"] and options["conversation"]:
            raise CommandError("--title names a new conversation; an old one is renamed in the browser.")
        if text == "-":
            text = sys.stdin.read()
        try:
            frame = wire.TurnSend(uuid4(), uuid4(), wire_parsing.checked_text(text))
            pending = checks.pending_migrations()
            if pending:
                raise CommandError(f"{len(pending)} migrations are pending: run `python manage.py migrate`.")
            user = _user(options["user"])
            frame, model = _addressed(user, frame, options["conversation"], options["model"])
            with (
                locks.beside_server(settings.RECOLLECT_DATA),
                locks.turns_allowed(settings.RECOLLECT_DATA),
                _without_lines_of_a_server(),
            ):
                turn, window = asyncio.run(self._ask(user, frame, model, options["thinking"]))
            if options["title"]:
                conversations.conversation_rename(user=user, conversation_id=frame.conversation, title=options["title"])
        except ChatError as error:
            raise CommandError(error.message) from error
        except KeyboardInterrupt as error:
            kept = "What was saved of the reply is kept" if self._has_begun else "Nothing has been stored"
            raise CommandError(f"Interrupted. {kept}.", returncode=EXIT_INTERRUPTED) from error
        self._report(user, turn, window if options["json"] else None)

    async def _ask(
        self, user: User, frame: wire.TurnSend, model: str, has_thinking: bool
    ) -> tuple[LiveTurn, dict[str, Any]]:
        """The turn, ended, and what its window held."""
        live, plans = Live(), list[Plan]()
        async with _engine(model):
            cold = "" if frame.is_new else await executors.database(switch.cold_start, user, frame.conversation)
            if cold:
                self.stderr.write(cold)
            is_pressed = _ctrl_c()  # from here on it ends the reply, which is about to be stored
            self._has_begun = True
            turn = await run.start(live, user, frame, on_text=self._printer(has_thinking), on_plan=plans.append)
            assert turn is not None, "a new client id is no duplicate"
            assert turn.task is not None, "a started turn has its task"
            stopping = asyncio.create_task(_stop(live, user, turn, is_pressed))
            window = await executors.render(_window, plans[0])
            await turn.task
            stopping.cancel()
            return turn, window

    def _printer(self, has_thinking: bool) -> run.OnText:
        """Prints the answer, and the thinking in front of it if it is wanted."""
        thought_before = False

        def told(thought: str, answer: str) -> None:
            nonlocal thought_before
            if has_thinking and thought:
                thought_before = True
                self._print(thought)
            if answer and thought_before:
                thought_before = False
                self._print("\n\n")
            if answer:
                self._print(answer)

        return told

    def _print(self, text: str) -> None:
        try:
            self.stdout.write(text, ending="")
            self.stdout.flush()
        except BrokenPipeError:  # `ask ... | head`: nobody reads on
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            signal.raise_signal(signal.SIGINT)

    def _report(self, user: User, turn: LiveTurn, window: dict[str, Any] | None) -> None:
        """What remains to be said; window: with ids and numbers as JSON."""
        self.stdout.write("")
        end = turn.end
        assert end is not None, "the turn has been waited for"
        if window is not None:
            message = selectors.message_get(user, turn.conversation_id, turn.message_id)
            stats = end.stats
            line = {
                "conversation": str(turn.conversation_id),
                "message": str(turn.message_id),
                "prompt_tokens": stats.prompt_tokens if stats else 0,
                "reused_ram": stats.reused_ram if stats else 0,
                "reused_disk": stats.reused_disk if stats else 0,
                "computed": stats.computed if stats else 0,
                "generated": stats.generated if stats else 0,
                "ttft_ms": stats.ttft_ms if stats else 0.0,
                "decode_tok_s": stats.decode_tok_s if stats else 0.0,
                "finish_reason": stats.finish_reason if stats else "error",
                "window": window,
                "cache": _cache(stats),
                "text": message.answer,
                "thinking": thought_of(message.text, message.thinking_chars),
            }
            self.stdout.write(json.dumps(line, ensure_ascii=False))
        else:
            self.stderr.write(f"conversation {turn.conversation_id}")
        if end.status == MessageStatus.FAILED:
            raise CommandError(end.error)
        if end.status != MessageStatus.DONE:
            sys.exit(EXIT_INTERRUPTED)


def _window(plan: Plan) -> dict[str, Any]:
    """The parts of the prompt in tokens, as the gauge in the browser shows them, and what of the conversation is in it.

    Blocking. Raises EngineUnavailable.
    """
    parts, rules, window = parts_of(plan), rules_of(plan.conversation), plan.window
    return {
        "tokens": rules.window,
        **asdict(parts),
        "reserve": rules.reserve,
        "free": max(0, rules.room - parts.total),
        "policy": plan.conversation.context_policy,
        "recall": plan.conversation.has_recall,
        "start": str(window.start) if window.start else None,
        "outside": window.num_outside,
        "left": window.num_left,
        "unsummarised": window.num_unsummarised,
        "summary_id": str(window.summary) if window.summary else None,
        "recalled_messages": [str(source) for source in plan.recalled.sources] if plan.recalled else [],
    }


def _cache(stats: wire.TurnStats | None) -> dict[str, Any]:
    """Why no more of the prompt was reused, and from which message on it was read again; "" and None: nothing was, or
    the beginning."""
    if stats is None:
        return {"known": 0, "cause": "", "why": "", "message": None, "position": None}
    return {
        "known": stats.known,
        "cause": stats.cause,
        "why": str(PrefixBreak(stats.cause).label) if stats.cause else "",
        "message": stats.cause_message or None,
        "position": stats.cause_position,
    }


def _ctrl_c() -> asyncio.Event:
    """Set by a Ctrl-C or SIGTERM from now on. A second one ends the command: whoever sends it does not want to wait."""
    is_pressed = asyncio.Event()

    def press() -> None:
        if is_pressed.is_set():
            raise KeyboardInterrupt
        is_pressed.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, press)
    return is_pressed


async def _stop(live: Live, user: User, turn: LiveTurn, is_pressed: asyncio.Event) -> None:
    await is_pressed.wait()
    await run.stop(live, user, wire.TurnStop(turn.conversation_id, turn.message_id))


def _user(name: str | None) -> User:
    if name is None:
        return accounts.owner_for_terminal()
    user = User.objects.filter(username=name, is_active=True).first()
    if user is None:
        raise CommandError(f"There is no active user named {name!r}.")
    return user


def _addressed(
    user: User, frame: wire.TurnSend, conversation_id: UUID | None, model: str | None
) -> tuple[wire.TurnSend, str]:
    """The frame for the end of a conversation, or for a new one; and the name of the model that answers."""
    name = model_catalogue.get(model).name if model else ""
    if conversation_id is None:
        new = wire.TurnSend(frame.conversation, frame.client_id, frame.text, is_new=True, model=name or None)
        return new, name or model_catalogue.default().name
    try:
        conversation: Conversation = selectors.conversation_get(user, conversation_id)
    except NotFound as error:
        raise CommandError(f"{user.username} has no conversation {conversation_id}.") from error
    if name:
        conversations.conversation_set_model(user=user, conversation_id=conversation_id, model=name)
    known = wire.TurnSend(conversation.id, frame.client_id, frame.text, parent=conversation.active_leaf_id)
    return known, name or conversation.model_name or model_catalogue.default().name


@contextmanager
def _without_lines_of_a_server() -> Iterator[None]:
    """The line that a server logs about each turn would stand in the middle of the reply; --json shows its numbers."""
    root = logging.getLogger()
    level = root.level
    if level == logging.INFO:
        root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(level)


@asynccontextmanager
async def _engine(model: str) -> AsyncIterator[None]:
    """The engine with this model, ready; it ends with the block. Raises CommandError when it cannot be loaded."""
    llm.start(llm.new_worker(model_catalogue.path_of), default_model=model)
    try:
        while llm.status().state is llm.EngineState.LOADING:
            await asyncio.sleep(0.02)
        if llm.status().state is not llm.EngineState.READY:
            raise CommandError(llm.status().message)
        yield
    finally:
        await executors.render(llm.shutdown)
