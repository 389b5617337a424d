"""`manage.py bench_overhead`: what the application adds to a send, from the frame to the engine, without the engine.

In a database of its own, thrown away at the end; with tokenizer and template of the real model. The last line is
JSON, in milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import struct
import time
import uuid
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.utils import timezone

from chatapp import llm, model_catalogue, wire, wire_parsing
from chatapp.management.bench_world import loaded, own_database
from chatapp.models import Conversation, Message, Role, User
from chatapp.turn import run
from chatapp.turn.live import Live
from inference.engine.opened_model import OpenedModel
from inference.engine.worker import Worker
from inference.types import Event, FinishedEvent, FinishReason, Request, RequestStats


class Stopwatch(Worker):
    """Takes the time of a request and answers it with nothing."""

    submitted_at = 0.0

    def open(self, name: str) -> OpenedModel:
        return replace(super().open(name), max_model_len=1 << 20)

    def submit(self, name: str, request: Request, on_event: Callable[[Event], None]) -> None:
        self.submitted_at = time.perf_counter()
        on_event(FinishedEvent(request.request_id, FinishReason.CANCELLED, RequestStats()))


class Command(BaseCommand):
    """Each message has about 50 tokens. The engine is replaced by a stopwatch, so the window holds any length."""

    help = "Measure the time from a frame to the engine in a long conversation."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--messages", type=int, default=1000, help="in the conversation (%(default)s)")
        parser.add_argument("--sends", type=int, default=20, help="to measure (%(default)s)")

    def handle(self, *args: Any, messages: int, sends: int, **options: Any) -> None:
        if connection.vendor != "sqlite":
            raise CommandError("This measures on SQLite: unset DATABASE_URL.")
        worker = llm.new_worker(model_catalogue.path_of, Stopwatch)
        assert isinstance(worker, Stopwatch), "that is what was asked for"
        with loaded(worker), own_database():
            conversation = _conversation(User.objects.create_user("bench"), messages)
            times_ms = asyncio.run(_measure(worker, conversation.owner, conversation, sends))
        times_ms.sort()
        figures = {
            "messages": messages,
            "sends": sends,
            "frame_to_engine_ms_min": round(times_ms[0], 2),
            "frame_to_engine_ms_median": round(statistics.median(times_ms), 2),
            "frame_to_engine_ms_max": round(times_ms[-1], 2),
        }
        self.stdout.write(json.dumps(figures))


def _conversation(user: User, num_messages: int) -> Conversation:
    conversation = Conversation.objects.create(owner=user, title="Long", updated_at=timezone.now())
    messages: list[Message] = []
    for position in range(num_messages):
        text = f"Message number {position}: " + "the quick brown fox jumps over the lazy dog, " * 4
        ids = llm.encode(text) if position % 2 else []
        messages.append(
            Message(
                conversation=conversation,
                parent=messages[-1] if messages else None,
                role=Role.ASSISTANT if position % 2 else Role.USER,
                text=text,
                token_ids=struct.pack(f"<{len(ids)}I", *ids) or None,
                token_fingerprint=llm.token_fingerprint() if ids else "",
                position=position,
            )
        )
    Message.objects.bulk_create(messages)
    conversation.active_leaf = messages[-1]
    conversation.save()
    return conversation


async def _measure(worker: Stopwatch, user: User, conversation: Conversation, num_sends: int) -> list[float]:
    live, parent = Live(), conversation.active_leaf_id
    times_ms = []
    for _ in range(num_sends):
        ids = {"conversation": str(conversation.id), "client_id": str(uuid.uuid4()), "parent": str(parent)}
        text = json.dumps({"type": "turn.send", **ids, "text": "And what do you make of that?"})
        begin = time.perf_counter()
        frame = wire_parsing.parse(text)
        assert isinstance(frame, wire.TurnSend), "that is what has been written"
        turn = await run.start(live, user, frame, accept=lambda frame: None)
        assert turn is not None, "a new client id is no duplicate"
        assert turn.task is not None, "a started turn has its task"
        await turn.task
        times_ms.append(1000 * (worker.submitted_at - begin))
    return times_ms
