"""System checks, and the two probes that `serve` and /healthz/ready ask. Everything found has an id and a command that mends it."""

from __future__ import annotations

from django.core.checks import CheckMessage

TAG = "recollect"


def pending_migrations() -> list[str]:
    """Names of migrations that the database lacks. Raises StorageUnavailable when it cannot be asked."""
    raise NotImplementedError


def storage_ok() -> bool:
    """Whether the database answers and is up to date; for /healthz/ready."""
    raise NotImplementedError


ALL: tuple = ()
_ = CheckMessage
