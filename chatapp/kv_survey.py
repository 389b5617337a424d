"""What is cached on disk: by model, by conversation and by person. Reads the headers of all files, and one table."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.conf import settings

from chatapp import llm, selectors


@dataclass(frozen=True, slots=True)
class Model:
    """The files of a model with one template, kernel tier and block size."""

    label: str  # "" when nobody has said
    fingerprint: str
    files: int
    bytes: int
    is_in_use: bool
    used_at: str  # ISO 8601, "" without files


@dataclass(frozen=True, slots=True)
class Person:
    user: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """user: "" when it has been deleted."""

    conversation: str
    user: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Survey:
    """What several conversations share counts for each of them. The largest come first."""

    folder: str
    files: int
    bytes: int
    max_bytes: int
    public_bytes: int  # of public system prompts
    unusable_files: int
    models: tuple[Model, ...]
    users: tuple[Person, ...]
    conversations: tuple[Conversation, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def survey() -> Survey:
    """Blocking. Raises OSError, StorageUnavailable."""
    num_files: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    public_bytes = num_unusable = 0
    for file in llm.kv_files():
        num_unusable += bool(file.problem)
        public_bytes += 0 if file.tags or file.problem else file.num_bytes
        for tag in file.tags:
            num_files[tag] += 1
            num_bytes[tag] += file.num_bytes
    owners = {str(key): name for key, name in selectors.conversation_owners(_ids(num_files)).items()}
    conversations = tuple(
        Conversation(tag, owners.get(tag, ""), num_files[tag], total) for tag, total in num_bytes.most_common()
    )
    folders = [folder for folder in llm.kv_folders() if folder.num_files or folder.is_in_use]
    return Survey(
        folder=str(llm.kv_root()),
        files=sum(folder.num_files for folder in folders),
        bytes=sum(folder.num_bytes for folder in folders),
        max_bytes=settings.RECOLLECT_KV_DISK_BYTES,
        public_bytes=public_bytes,
        unusable_files=num_unusable,
        models=tuple(map(_model, folders)),
        users=_people(conversations),
        conversations=conversations,
    )


def _model(folder: llm.FolderSummary) -> Model:
    used_at = datetime.fromtimestamp(folder.used_at, UTC).isoformat(timespec="seconds") if folder.used_at else ""
    return Model(folder.label, folder.name, folder.num_files, folder.num_bytes, folder.is_in_use, used_at)


def _people(conversations: tuple[Conversation, ...]) -> tuple[Person, ...]:
    num_files: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    for each in conversations:
        if each.user:
            num_files[each.user] += each.files
            num_bytes[each.user] += each.bytes
    return tuple(Person(name, num_files[name], total) for name, total in num_bytes.most_common())


def _ids(tags: Counter[str]) -> list[UUID]:
    """Of the tags, those that can be a conversation's."""
    found = []
    for tag in tags:
        try:
            found.append(UUID(tag))
        except ValueError:
            continue
    return found
