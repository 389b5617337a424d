"""The border to the database: what is wrong with it, said once, as StorageUnavailable; and keys in raw queries.

Services and selectors wear `translated`; nobody else looks at a driver's error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.db.models import UUIDField
from django.utils.translation import gettext_lazy as _

from chatapp.errors import StorageUnavailable

logger = logging.getLogger(__name__)

_BUSY = _("The database is busy for too long. Nothing has been stored; try again.")
_FULL = _("The disk is full. Nothing has been stored.")
_READONLY = _("The database cannot be written to. Nothing has been stored.")
_DAMAGED = _("The database file is damaged. Nothing has been stored; restore a backup.")
_MIGRATE = _("The database is not up to date: run `python manage.py migrate`.")
_UNREACHABLE = ("unreachable", _("The database cannot be reached. Nothing has been stored; try again."))
# What the drivers of SQLite and PostgreSQL say, in lower case; the first match counts.
_REASONS = (
    ("database is locked", "busy", _BUSY),
    ("database table is locked", "busy", _BUSY),
    ("due to statement timeout", "busy", _BUSY),
    ("due to lock timeout", "busy", _BUSY),
    ("couldn't get a connection", *_UNREACHABLE),  # the pool's word for a server that is away
    ("disk is full", "full", _FULL),
    ("no space left", "full", _FULL),
    ("disk i/o error", "damaged", _("The disk is full or damaged. Nothing has been stored.")),
    ("readonly database", "readonly", _READONLY),
    ("read-only", "readonly", _READONLY),
    ("unable to open database file", "readonly", _("The database file cannot be opened. Nothing has been stored.")),
    ("no such table", "migrations", _MIGRATE),
    ("no such column", "migrations", _MIGRATE),
    ("malformed", "damaged", _DAMAGED),
    ("not a database", "damaged", _DAMAGED),
)

# The same reasons for a reply that is complete, is kept in memory and is tried again.
_NOT_YET = {
    "full": _("The disk is full: this reply is not stored yet. It will be as soon as there is room."),
    "busy": _("The database is busy: this reply is not stored yet. It is tried again."),
    "unreachable": _("The database cannot be reached: this reply is not stored yet. It is tried again."),
}
_NOT_YET_UNWRITABLE = _("The database cannot be written to: this reply is not stored yet. It is tried again.")
_UUID_FIELD: UUIDField[UUID, UUID] = UUIDField()


@contextmanager
def translated() -> Iterator[None]:
    """As a decorator or a with-block: trouble with the database leaves as StorageUnavailable, its reason as detail.

    Errors that are our own fault (a broken constraint, a wrong query) pass through.
    """
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise unavailable(error) from error
    except DatabaseError as error:
        if type(error) is not DatabaseError:  # SQLite reports a damaged file with the bare class
            raise
        raise unavailable(error) from error


def unavailable(error: Exception) -> StorageUnavailable:
    """What a driver's OperationalError or InterfaceError means."""
    said = str(error).lower()
    reason, sentence = next(((reason, text) for needle, reason, text in _REASONS if needle in said), _UNREACHABLE)
    logger.error("database: %s (%s)", reason, type(error).__name__)
    return StorageUnavailable(str(sentence), reason=reason)


def not_yet(error: StorageUnavailable) -> str:
    """Why a reply that is complete is not stored yet, as a sentence for whoever reads it."""
    return str(_NOT_YET.get(error.detail.get("reason", ""), _NOT_YET_UNWRITABLE))


def key_of(value: UUID) -> UUID | str:
    """A UUID as this database stores it, for a raw query."""
    key: UUID | str = _UUID_FIELD.get_db_prep_value(value, connection)
    return key


def uuid_of(value: UUID | str) -> UUID:
    """A key of a raw query as a UUID, which not every database makes of it."""
    return value if isinstance(value, UUID) else UUID(value)
