"""What a turn has cost and why: what it is compared with when it is planned, and the numbers when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from chatapp import llm, turn_rows, wire
from chatapp.models import Generation, Message
from chatapp.services import turns
from chatapp.turn.causes import Earlier, Explanation, Relation, explain
from chatapp.turn.prompt import Plan
from chatapp.turn.sent import NOWHERE, Sent, common_lengths, identities_of, is_readable
from chatapp.turn.stream import Reply
from chatapp.turn_rows import SentBefore


def compared(plan: Plan, question: Message, near: Sequence[SentBefore]) -> Plan:
    """The plan with what earlier generations have sent beside it. near: turn_rows.sent_near().

    Mostly that is enough: what this model was sent for the reply before is what the prompt begins with. Where it does
    not, what was sent further up tells how far it goes: one query more.
    """
    rows = [row for row in near if row.num_prompt]
    earlier = _beside(plan, rows, question)
    is_known = any(
        row.model_name == plan.model and each.num_common >= plan.outline.history_end and each.has_read_all
        for row, each in zip(rows, earlier, strict=True)
    )
    if not is_known and question.parent_id is not None:
        earlier += _beside(plan, _telling(plan, turn_rows.sent_above(question)), question)
    return replace(plan, earlier=tuple(earlier))


def _beside(plan: Plan, rows: Sequence[SentBefore], question: Message) -> list[Earlier]:
    """The rows beside the prompt of a plan, in their order."""
    earlier = []
    for row in rows:
        sent = Sent.unpack(row.sent)
        num_common = int(common_lengths(plan.outline, [row.sent])[0][0]) if sent else 0
        relation = _relation(plan, row, question)
        earlier.append(
            Earlier(relation, row.position, row.created_at, sent, num_common, row.window_start, row.summary_id)
        )
    return earlier


def _telling(plan: Plan, rows: Sequence[SentBefore]) -> list[SentBefore]:
    """Of many rows those that can make a difference: the deepest of the branch, and of each memory that KV was left in
    the two that go furthest, as sent and as left.
    """
    nearest = next((row for row in rows if _is_on_path(plan, row)), None)
    found = [] if nearest is None else [nearest]
    readable = [row for row in rows if is_readable(row.sent)]
    packed = [row.sent for row in readable]
    for lengths in common_lengths(plan.outline, packed):
        furthest: dict[bytes, int] = {}
        for i, identity in enumerate(identities_of(packed)):
            if identity not in furthest or lengths[i] > lengths[furthest[identity]]:
                furthest[identity] = i
        found += [readable[i] for i in furthest.values()]
    return list(dict.fromkeys(found))


def _relation(plan: Plan, row: SentBefore, question: Message) -> Relation:
    if row.question_id == question.id:
        return Relation.OWN
    if row.message_id == question.parent_id:
        return Relation.BEFORE
    if _is_on_path(plan, row):
        return Relation.PATH
    # Versions of a question stand under the same reply, and those of the first one at the top.
    is_version = row.position == question.position + 1 and row.before_id == question.parent_id
    return Relation.VERSION if is_version else Relation.ELSEWHERE


def _is_on_path(plan: Plan, row: SentBefore) -> bool:
    path = plan.outline.rows
    index = row.position - path[0].position
    return 0 <= index < len(path) and path[index].id == row.message_id


def numbers_of(plan: Plan, reply: Reply, finished: llm.FinishedEvent, *, user_id: int) -> turns.GenerationNumbers:
    """All that is stored about an attempt to answer that has just ended."""
    info, stats = llm.model_info(plan.model), finished.stats
    identity = llm.kv_identity(model=plan.model, user_id=user_id) if stats.num_prompt_tokens else None
    found = Explanation()
    if identity is not None:
        found = explain(
            plan.outline,
            plan.earlier,
            identity,
            num_prompt=stats.num_prompt_tokens,
            num_reused=stats.num_reused_ram + stats.num_reused_disk,
            miss=stats.miss_cause,
        )
        if stats.miss_cause == llm.MissCause.DISABLED:
            identity = replace(identity, load=NOWHERE)
    return turns.GenerationNumbers(
        model_name=plan.model,
        model_fingerprint=info.fingerprint if info else "",
        kernel_tier=info.kernel_tier if info else "",
        sampling=asdict(plan.sampling),
        seed=plan.sampling.seed,
        finish_reason=finished.finish_reason.value,
        num_prompt_tokens=stats.num_prompt_tokens,
        num_reused_ram=stats.num_reused_ram,
        num_reused_disk=stats.num_reused_disk,
        num_computed=stats.num_computed,
        num_generated=stats.num_generated,
        num_reencoded=plan.num_reencoded,
        queue_s=stats.queue_s,
        ttft_s=stats.ttft_s,
        prefill_s=stats.prefill_s,
        decode_s=stats.decode_s,
        thinking_s=reply.thinking_s,
        window_start=plan.window.start,
        num_outside=plan.window.num_outside,
        num_left=plan.window.num_left,
        num_unsummarised=plan.window.num_unsummarised,
        window_limit=plan.window.limit,
        is_cut_by_window=plan.is_clipped and finished.finish_reason is llm.FinishReason.LENGTH,
        summary_id=plan.window.summary,
        num_known=found.num_known,
        prefix_break=found.cause,
        break_message_id=found.message,
        break_position=found.position,
        sent=plan.outline.sent(identity, reply.token_ids, stats.num_kept).pack() if identity else None,
    )


def turn_stats(numbers: turns.GenerationNumbers | Generation) -> wire.TurnStats:
    """The numbers under a reply, as it ends and as it is stored."""
    num_later = numbers.num_generated - 1
    return wire.TurnStats(
        prompt_tokens=numbers.num_prompt_tokens,
        reused_ram=numbers.num_reused_ram,
        reused_disk=numbers.num_reused_disk,
        computed=numbers.num_computed,
        generated=numbers.num_generated,
        ttft_ms=round(1000 * numbers.ttft_s, 1),
        decode_tok_s=round(num_later / numbers.decode_s, 1) if num_later > 0 and numbers.decode_s > 0 else 0.0,
        finish_reason=numbers.finish_reason,
        model=numbers.model_name,
        reencoded=numbers.num_reencoded,
        known=numbers.num_known,
        cause=numbers.prefix_break,
        cause_message=str(numbers.break_message_id or ""),
        cause_position=numbers.break_position,
        outside=numbers.num_outside,
        left=numbers.num_left,
        unsummarised=numbers.num_unsummarised,
        has_summary=numbers.summary_id is not None,
        is_cut_by_window=numbers.is_cut_by_window,
    )
