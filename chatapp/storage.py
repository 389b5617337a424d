"""The border to the database: what is wrong with it, said once, as StorageUnavailable.

Services and selectors wear `translated`; nobody else looks at a driver's error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DatabaseError, InterfaceError, OperationalError

from chatapp.errors import StorageUnavailable

logger = logging.getLogger(__name__)

# What drivers say, lower case -> (reason, sentence). SQLite and PostgreSQL; the first match counts.
_REASONS = (
    ("database is locked", "locked", "The database is busy for too long. Nothing has been stored; try again."),
    ("timeout", "locked", "The database is busy for too long. Nothing has been stored; try again."),
    ("full", "full", "The disk is full. Nothing has been stored."),  # "database or disk is full"
    ("no space left", "full", "The disk is full. Nothing has been stored."),
    ("disk i/o error", "full", "The disk is full or damaged. Nothing has been stored."),
    ("readonly", "readonly", "The database cannot be written to. Nothing has been stored."),
    ("read-only", "readonly", "The database cannot be written to. Nothing has been stored."),
    ("no such table", "migrations", "The database is not set up: run `python manage.py migrate`."),
    ("no such column", "migrations", "The database is not up to date: run `python manage.py migrate`."),
    ("malformed", "damaged", "The database file is damaged. Nothing has been stored; restore a backup."),
    ("not a database", "damaged", "The database file is damaged. Nothing has been stored; restore a backup."),
)
_UNREACHABLE = ("unreachable", "The database cannot be reached. Nothing has been stored; try again.")


@contextmanager
def translated() -> Iterator[None]:
    """As a decorator or a with-block: trouble with the database leaves as StorageUnavailable, its reason as detail.

    Errors that are our own fault (a broken constraint, a wrong query) pass through.
    """
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise _unavailable(error) from error
    except DatabaseError as error:
        if type(error) is not DatabaseError:  # SQLite reports a damaged file with the bare class
            raise
        raise _unavailable(error) from error


def _unavailable(error: Exception) -> StorageUnavailable:
    said = str(error).lower()
    reason, sentence = next(((reason, text) for needle, reason, text in _REASONS if needle in said), _UNREACHABLE)
    logger.error("database: %s (%s)", reason, type(error).__name__)
    return StorageUnavailable(sentence, reason=reason)
