"""Where the rows live: Django's DATABASES entry for the embedded SQLite file or for a PostgreSQL server.

An acknowledged message is on disk (synchronous=FULL; PostgreSQL's default), and writers wait for one another instead of
failing (IMMEDIATE and a time-out).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

# Connections in all: max_size times the number of processes. The server's max_connections (often 100) must be more.
# A pool that retries doubles its pauses: with reconnect_timeout at its default, 300 s, a server that was away for two
# minutes is missed for up to two more. One that gives up begins anew with the next query: 1.6 s instead of 15 s.
POOL = {
    "min_size": 2,
    "max_size": 10,
    "timeout": 10,
    "reconnect_timeout": 5,
    "max_lifetime": 1800,
    "max_idle": 300,
}

_SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL",  # readers do not wait for the writer
    "PRAGMA synchronous=FULL",  # NORMAL may lose acknowledged commits when the power fails; FULL costs 0.1 ms each
    "PRAGMA journal_size_limit=67108864",
    "PRAGMA foreign_keys=ON",
    "PRAGMA temp_store=MEMORY",
)
_POSTGRES_LIMITS = "-c statement_timeout=30s -c idle_in_transaction_session_timeout=60s"


def from_url(url: str, *, default: Path) -> dict[str, Any]:
    """The entry for `url`, or for the SQLite file `default` when it is empty.

    Raises ImproperlyConfigured for anything but a PostgreSQL address; never shows the password in it.
    """
    return postgres(url) if url else sqlite(default)


def sqlite(path: Path) -> dict[str, Any]:
    """The embedded database. A transaction takes the write lock as it begins: one that upgrades later fails at once."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": ";".join(_SQLITE_PRAGMAS)},
    }


def postgres(url: str) -> dict[str, Any]:
    """A server, through a pool: under ASGI a persistent connection per thread leaks. libpq itself reads the address."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise ImproperlyConfigured(
            "DATABASE_URL has another scheme; legal is postgresql://user:password@host:port/name"
        )
    try:
        parts = conninfo_to_dict(url)
    except ProgrammingError:
        raise ImproperlyConfigured("DATABASE_URL is no address that PostgreSQL's client library can read") from None
    port = str(parts.get("port", ""))  # libpq looks at it only when it connects; several hosts have several ports
    if port.strip("0123456789,"):
        raise ImproperlyConfigured(f"DATABASE_URL has the port {port!r}; legal are numbers")
    if not parts.get("dbname"):
        raise ImproperlyConfigured("DATABASE_URL names no database; legal is postgresql://user:password@host:port/name")
    entry = {
        "ENGINE": "django.db.backends.postgresql",
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,
        "NAME": parts.pop("dbname"),
        "USER": parts.pop("user", ""),
        "PASSWORD": parts.pop("password", ""),
        "HOST": parts.pop("host", ""),
        "PORT": parts.pop("port", ""),
    }
    options = (
        f"{_POSTGRES_LIMITS} {parts.pop('options', '')}".strip()
    )  # the later one wins: the address may set its own
    return {**entry, "OPTIONS": {"application_name": "recollect", **parts, "options": options, "pool": dict(POOL)}}
