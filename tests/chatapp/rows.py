"""Rows for tests, made the way the product makes them; long conversations in bulk."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

from django.db import connections
from django.utils import timezone

from chatapp.models import Conversation, Generation, Message, MessageStatus, Role, User
from chatapp.services import turns
from chatapp.services.turns import GenerationNumbers, TurnRows

NUMBERS = GenerationNumbers(
    model_name="tiny", finish_reason="stop", num_prompt_tokens=30, num_reused_ram=20, num_computed=10, num_generated=5
)

Result = TypeVar("Result")


def send(user: User, text: str = "Hello", **changes: Any) -> TurnRows:
    """A turn that has been begun; in a new conversation unless `conversation` says which."""
    conversation: Conversation | None = changes.pop("conversation", None)
    values: dict[str, Any] = {
        "conversation_id": conversation.id if conversation else uuid.uuid4(),
        "client_id": uuid.uuid4(),
        "is_new": conversation is None,
        "text": text,
    }
    return turns.send_create(user=user, **(values | changes))


def close(rows: TurnRows, text: str = "Hi!", **changes: Any) -> bool:
    values: dict[str, Any] = {
        "status": MessageStatus.DONE,
        "text": text,
        "token_ids": [1, 2, 3],
        "token_fingerprint": "f",
        "generation": NUMBERS,
    }
    return turns.turn_close(message_id=rows.assistant_message.id, **(values | changes))


def turn(user: User, text: str = "Hello", reply: str = "Hi!", **changes: Any) -> TurnRows:
    """A turn from its question to its end."""
    rows = send(user, text, **changes)
    assert close(rows, reply)
    return rows


def long_conversation(user: User, num_messages: int) -> Conversation:
    """One branch of `num_messages` finished messages, question and reply in turn, a generation for each reply."""
    conversation = Conversation.objects.create(owner=user, title="Long", updated_at=timezone.now())
    messages: list[Message] = []
    for position in range(num_messages):
        messages.append(
            Message(
                conversation=conversation,
                parent=messages[-1] if messages else None,
                role=Role.ASSISTANT if position % 2 else Role.USER,
                text=f"message {position} " * 20,
                token_ids=b"\x01\x00\x00\x00" * 50,
                position=position,
            )
        )
    Message.objects.bulk_create(messages)
    Generation.objects.bulk_create(
        Generation(message=message, model_name="tiny") for message in messages if message.role == Role.ASSISTANT
    )
    conversation.active_leaf = messages[-1]
    conversation.save()
    return conversation


def many_conversations(user: User, num: int) -> list[Conversation]:
    """Empty ones, the newest first."""
    now = timezone.now()
    return Conversation.objects.bulk_create(
        Conversation(owner=user, title=f"Title {i}", updated_at=now - timedelta(seconds=i)) for i in range(num)
    )


def at_once(jobs: Sequence[Callable[[], Result]]) -> list[Result | Exception]:
    """What each job returned or raised, all of them released at the same moment, a thread and a connection each."""
    barrier = threading.Barrier(len(jobs))

    def run(job: Callable[[], Result]) -> Result | Exception:
        barrier.wait()
        try:
            return job()
        except Exception as error:  # noqa: BLE001 -- handed to the test
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))
