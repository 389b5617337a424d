"""`manage.py bench_window`: what each context policy has read anew, over a conversation that outgrows its window.

Prompts are planned by the product, with tokenizer and template of the real model, and compared token by token: what a
prompt has in common with the one before it and its reply is reused, the rest is prefilled. No database is touched. The
last line is JSON.

naive      what most programs do: at each turn the oldest turns leave that have to, so every prompt begins elsewhere
truncate, recent, summarise    as described in README.md. recent sends half of the window. A summary is taken to be
           there when the window moves; what is prefilled for it is counted, whether somebody waits for that or not
"""

from __future__ import annotations

import json
import time
import uuid
from argparse import ArgumentParser
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from chatapp import llm, model_catalogue
from chatapp.errors import ChatError
from chatapp.models import Conversation, MessageStatus, Role, pack_ids
from chatapp.selectors import HistoryMessage, SummaryText
from chatapp.turn.context import Rules, num_leaving
from chatapp.turn.past import Past, Read, fitted, summary_tokens

POLICIES = ("naive", "truncate", "recent", "summarise")
MAX_TOKENS = 256  # of a reply
_SENTENCE = "The quick brown fox number {} jumps over the lazy dog while five boxing wizards count liquor jugs. "
_SUMMARY = _SENTENCE.format("of all") * 5


@dataclass(slots=True)
class Replay:
    """One conversation under one policy. times_s: of planning each turn."""

    rules: Rules
    has_summaries: bool = False
    rows: list[HistoryMessage] = field(default_factory=list)
    summaries: list[SummaryText] = field(default_factory=list)
    first: int = 0  # the row with which the window begins
    known: list[int] = field(default_factory=list)  # the last prompt and its reply
    num_prefilled: int = 0
    num_breaks: int = 0
    times_s: list[float] = field(default_factory=list)

    def turn(self, conversation: Conversation, question: str, reply: str) -> None:
        """Plan a turn as it is sent, count what is prefilled, and add its reply."""
        self.rows.append(_row(len(self.rows), Role.USER, question))
        begin = time.perf_counter()
        past = Past(conversation, Read(self.rows[self.first :], self.summaries))
        past, fit = fitted(past, self.rules)
        self.times_s.append(time.perf_counter() - begin)
        self.first = past.num_outside(fit.first)
        ids = fit.prompt.ids.tolist()
        num_common = next((i for i, (a, b) in enumerate(zip(ids, self.known, strict=False)) if a != b), len(self.known))
        self.num_prefilled += len(ids) - num_common
        self.num_breaks += num_common < len(self.known)
        row = _row(len(self.rows), Role.ASSISTANT, reply)
        self.rows.append(row)
        self.known = ids + list(row.ids or ())
        if self.has_summaries:
            self._summarise(past, fit.first, len(self.known))

    def _summarise(self, past: Past, first: int, num_tokens: int) -> None:
        """As turn.summaries does after a reply, with a summary of the usual length."""
        prompt, rows = past.prompt_from(first), past.rows_from(first)
        spans = prompt.spans[len(prompt.spans) - len(rows) :]
        turns = [index for index, row in enumerate(rows) if row.role == Role.USER]
        starts = [spans[index][0] for index in turns]
        trigger, target = self.rules.marks(starts[0])
        is_there = any(summary.position >= self.first for summary in self.summaries)
        if not is_there and len(turns) > 1 and 2 * num_tokens >= trigger + target:
            num_summary = summary_tokens(self.rules, num_head=starts[0], num_asked=num_tokens)
            last = rows[turns[num_leaving(starts, trigger - target + num_summary)] - 1]
            self.summaries.append(SummaryText(uuid.uuid4(), last.id, last.position, _SUMMARY))


class Command(BaseCommand):
    help = "Measure how many tokens each context policy has prefilled in a long conversation."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--windows", type=int, nargs="+", default=[1000, 8000], help="in tokens (%(default)s)")
        parser.add_argument("--turns", type=int, default=300, help="of the conversation (%(default)s)")

    def handle(self, *args: Any, windows: list[int], turns: int, **options: Any) -> None:
        worker = llm.new_worker(model_catalogue.path_of)
        llm.start(worker, default_model=model_catalogue.default().name)
        try:
            figures = {str(window): self._measure(window, turns) for window in windows}
        except ChatError as error:
            raise CommandError(error.message) from error
        finally:
            llm.shutdown()
        self.stdout.write(json.dumps({"window": figures}))

    def _measure(self, window: int, num_turns: int) -> dict[str, dict[str, int]]:
        conversation = Conversation(system_prompt="You are a helpful assistant.", created_at=timezone.now())
        self.stdout.write(f"window of {window:,} tokens, {num_turns} turns")
        figures = {}
        for policy in POLICIES:
            replay = Replay(_rules(policy, window), has_summaries=policy == "summarise")
            for number in range(num_turns):
                replay.turn(conversation, _SENTENCE.format(number), (_SENTENCE.format(f"{number} again")) * 3)
            figures[policy] = {"prefilled": replay.num_prefilled, "breaks": replay.num_breaks}
            slowest_ms = 1000 * max(replay.times_s)
            share = figures["naive"]["prefilled"] / replay.num_prefilled
            self.stdout.write(
                f"  {policy:10} prefilled {replay.num_prefilled:9,} tokens, {replay.num_breaks:3} breaks, "
                f"{share:4.1f} x less than naive; planning a turn takes {slowest_ms:.0f} ms at most"
            )
        return figures


def _rules(policy: str, window: int) -> Rules:
    rules = Rules(
        window=window,
        max_tokens=MAX_TOKENS,
        is_cut=True,
        trigger=settings.RECOLLECT_WINDOW_TRIGGER,
        target=settings.RECOLLECT_WINDOW_TARGET,
    )
    if policy == "naive":
        return replace(rules, trigger=1.0, target=1.0)
    return replace(rules, recent_tokens=window // 2) if policy == "recent" else rules


def _row(position: int, role: Role, text: str) -> HistoryMessage:
    ids = llm.encode(text) if role == Role.ASSISTANT else None
    fingerprint = llm.token_fingerprint() if ids else ""
    packed = pack_ids(ids) if ids else None
    return HistoryMessage(uuid.uuid4(), position, role.value, text, MessageStatus.DONE, packed, fingerprint, 0, 0, None)
