"""`manage.py bench_planning`: what planning a turn, and counting a draft at a keystroke, take in a long conversation.

In a database of its own, thrown away at the end: SQLite, or the PostgreSQL server of DATABASE_URL. With tokenizer,
template and window of the real model; nothing is generated. Every message has some 55 tokens, has an entry in the index
and is a hit for some of the words of each question. The last line is JSON, in milliseconds.

first      the policy has just been chosen: nobody knows where its window begins, or nothing of it is in memory
median, max, cpu    of all that follow; cpu: of the processor, whatever else the machine does
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection
from django.utils import timezone

from chatapp import llm, model_catalogue, search
from chatapp.management.bench_world import loaded, own_database
from chatapp.models import (
    ContextPolicy,
    Conversation,
    Message,
    MessageStatus,
    Role,
    SearchEntry,
    Summary,
    User,
    pack_ids,
)
from chatapp.services import turns
from chatapp.turn.gauge import Gauge
from chatapp.turn.planning import planned
from chatapp.turn.prompt import Plan
from inference.engine.opened_model import OpenedModel
from inference.engine.worker import Worker

POLICIES = (ContextPolicy.TRUNCATE, ContextPolicy.RECENT, ContextPolicy.SUMMARISE)
_SENTENCE = "Message number {}: the quick brown fox jumps over the lazy dog, while five boxing wizards count jugs. "
_QUESTION = "What did message number {} say about the fox, the wizards, the harbour and my cat Ophelia?"
_IDENTITY = llm.KvIdentity(*(bytes(8) for _ in range(4)))


@dataclass(slots=True)
class Times:
    """Of one kind of work, in milliseconds: by the clock, and of the processor."""

    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    @contextmanager
    def taken(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.thread_time()
        yield
        self.wall_ms.append(1000 * (time.perf_counter() - wall))
        self.cpu_ms.append(1000 * (time.thread_time() - cpu))

    def figures(self) -> dict[str, float]:
        first, *later = self.wall_ms
        numbers = first, statistics.median(later), max(later), statistics.median(self.cpu_ms[1:])
        return dict(zip(("first", "median", "max", "cpu"), (round(number, 1) for number in numbers), strict=True))


class Roomy(Worker):
    """As if the model had another window."""

    window = 0

    def open(self, name: str) -> OpenedModel:
        opened = super().open(name)
        return replace(opened, max_model_len=self.window) if self.window else opened


class Command(BaseCommand):
    help = "Measure planning a turn and counting a draft in a long conversation."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--messages", type=int, default=10_000, help="in the conversation (%(default)s)")
        parser.add_argument("--window", type=int, default=0, help="in tokens (that of the model)")
        parser.add_argument("--turns", type=int, default=20, help="to measure, of each policy (%(default)s)")

    def handle(self, *args: Any, messages: int, window: int, turns: int, **options: Any) -> None:
        worker = llm.new_worker(model_catalogue.path_of, Roomy)
        assert isinstance(worker, Roomy), "that is what was asked for"
        worker.window = window
        with loaded(worker), own_database():
            conversation = _conversation(User.objects.create_user("bench"), messages)
            num_window = llm.window()
            figures = {policy.value: self._measure(conversation, policy, turns) for policy in POLICIES}
        about = {"database": connection.vendor, "messages": messages, "window": num_window}
        self.stdout.write(json.dumps({**about, "planning": figures}))

    def _measure(self, conversation: Conversation, policy: ContextPolicy, num_turns: int) -> dict[str, Any]:
        """The same questions under another policy."""
        Conversation.objects.update(context_policy=policy)
        plan, key = Times(), Times()
        gauge = Gauge()
        for number in range(num_turns + 1):
            text = _QUESTION.format(41 * number)
            gauge.count(Conversation.objects.get(id=conversation.id), "")  # as a tab does when it is shown
            for end in range(len(text) - 3, len(text)):
                with key.taken():
                    gauge.count(Conversation.objects.get(id=conversation.id), text[:end])
            _turn(conversation, text, plan)
        figures = {"turn": plan.figures(), "keystroke": key.figures()}
        for what, numbers in figures.items():
            self.stdout.write(
                f"  {policy.value:10} {what:10} " + "  ".join(f"{k} {v:6.1f} ms" for k, v in numbers.items())
            )
        return figures


def _turn(conversation: Conversation, text: str, times: Times) -> None:
    plan: Plan | None = None

    def check(rows: turns.TurnRows) -> None:
        nonlocal plan
        with times.taken():
            plan = planned(rows, is_asked=True)

    conversation.refresh_from_db()
    rows = turns.send_create(
        user=conversation.owner,
        conversation_id=conversation.id,
        client_id=uuid.uuid4(),
        text=text,
        parent_id=conversation.active_leaf_id,
        check=check,
    )
    assert plan is not None, "a new client id is no duplicate"
    ids = llm.encode(_SENTENCE.format("so and so") * 2)
    numbers = turns.GenerationNumbers(
        model_name=plan.model,
        num_prompt_tokens=len(plan.prompt.ids),
        num_computed=len(plan.prompt.ids),
        window_start=plan.window.start,
        num_outside=plan.window.num_outside,
        window_limit=plan.window.limit,
        summary_id=plan.window.summary,
        sent=plan.outline.sent(_IDENTITY, ids, len(plan.prompt.ids)).pack(),
    )
    turns.turn_close(
        message_id=rows.assistant_message.id,
        status=MessageStatus.DONE,
        text=_SENTENCE.format("so and so") * 2,
        token_ids=ids,
        token_fingerprint=llm.token_fingerprint(),
        generation=numbers,
    )


def _conversation(user: User, num_messages: int) -> Conversation:
    """Questions and replies in turn, with their entries in the index, and a summary every 60 messages."""
    conversation = Conversation.objects.create(
        owner=user,
        title="Long",
        system_prompt="You are a helpful assistant.",
        has_recall=True,
        updated_at=timezone.now(),
    )
    messages: list[Message] = []
    for position in range(num_messages):
        text = _SENTENCE.format(position) * 2
        ids = llm.encode(text) if position % 2 else []
        messages.append(
            Message(
                conversation=conversation,
                parent=messages[-1] if messages else None,
                role=Role.ASSISTANT if position % 2 else Role.USER,
                text=text,
                token_ids=pack_ids(ids) if ids else None,
                token_fingerprint=llm.token_fingerprint() if ids else "",
                position=position,
            )
        )
    Message.objects.bulk_create(messages, batch_size=1000)
    entries = [
        SearchEntry(
            message=message,
            keys=search.keys_of(message.text, owner_id=user.pk, conversation_id=conversation.id),
        )
        for message in messages
    ]
    SearchEntry.objects.bulk_create(entries, batch_size=1000)
    Summary.objects.bulk_create(
        Summary(conversation=conversation, until=last, text=_SENTENCE.format("so") * 8, num_messages=last.position + 1)
        for last in messages[59:-100:60]
    )
    conversation.active_leaf = messages[-1]
    conversation.save()
    return conversation
