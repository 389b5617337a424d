"""What is wrong with a database reaches a person as one sentence, from the real errors of the real drivers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import IntegrityError, connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionHandler

from chatapp import databases
from chatapp.errors import NotFound, StorageUnavailable
from chatapp.storage import translated

pytestmark = pytest.mark.django_db


def _open(entry: dict[str, object]) -> BaseDatabaseWrapper:
    return ConnectionHandler({"default": entry})["default"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.sqlite3"


@pytest.fixture
def database(path: Path) -> Iterator[BaseDatabaseWrapper]:
    """An SQLite database of its own, with a table of one row."""
    entry = databases.sqlite(path)
    entry["OPTIONS"]["timeout"] = 0.05
    opened = _open(entry)
    with opened.cursor() as cursor:
        cursor.execute("CREATE TABLE room (id INTEGER PRIMARY KEY, text TEXT)")
        cursor.execute("INSERT INTO room VALUES (1, 'kept')")
    yield opened
    opened.close()


def _reason(database: BaseDatabaseWrapper, statement: str) -> str:
    with pytest.raises(StorageUnavailable) as caught, translated(), database.cursor() as cursor:
        cursor.execute(statement)
    assert caught.value.message.endswith(".")
    return str(caught.value.detail["reason"])


def test_locked_database_is_busy(database: BaseDatabaseWrapper, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert _reason(database, "INSERT INTO room VALUES (2, 'x')") == "busy"
    finally:
        other.close()


def test_full_disk_is_full_and_keeps_what_was_stored(database: BaseDatabaseWrapper) -> None:
    with database.cursor() as cursor:
        cursor.execute("PRAGMA max_page_count = 3")
    assert _reason(database, "INSERT INTO room VALUES (2, hex(zeroblob(100000)))") == "full"
    with database.cursor() as cursor:
        cursor.execute("SELECT text FROM room")
        assert cursor.fetchall() == [("kept",)]


def test_readonly_database_is_readonly(database: BaseDatabaseWrapper) -> None:
    with database.cursor() as cursor:
        cursor.execute("PRAGMA query_only = ON")
    assert _reason(database, "INSERT INTO room VALUES (2, 'x')") == "readonly"


def test_missing_table_asks_for_migrations(database: BaseDatabaseWrapper) -> None:
    assert _reason(database, "SELECT * FROM attic") == "migrations"


def test_file_that_is_no_database_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"not a database at all" * 100)
    assert _reason(_open(databases.sqlite(tmp_path / "x")), "SELECT 1") == "damaged"


def test_missing_folder_cannot_be_opened(tmp_path: Path) -> None:
    assert _reason(_open(databases.sqlite(tmp_path / "gone" / "x")), "SELECT 1") == "readonly"


def test_server_that_is_down_is_unreachable() -> None:
    entry = databases.postgres("postgresql://me@127.0.0.1:1/chat")
    del entry["OPTIONS"]["pool"]
    assert _reason(_open(entry), "SELECT 1") == "unreachable"


def test_server_that_is_down_is_unreachable_through_the_pool() -> None:
    entry = databases.postgres("postgresql://me@127.0.0.1:1/chat")
    entry["OPTIONS"]["pool"] |= {"timeout": 0.2, "min_size": 1}
    opened = _open(entry)
    try:
        assert _reason(opened, "SELECT 1") == "unreachable"
    finally:
        opened.close_pool()  # type: ignore[attr-defined]  # of PostgreSQL's wrapper


def test_statement_that_takes_too_long_is_busy() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no time limit for a statement")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '10ms'")
    assert _reason(connection, "SELECT pg_sleep(5)") == "busy"


def test_our_own_mistakes_pass_through(database: BaseDatabaseWrapper) -> None:
    with pytest.raises(IntegrityError), translated(), database.cursor() as cursor:
        cursor.execute("INSERT INTO room VALUES (1, 'twice')")


def test_errors_for_people_pass_through() -> None:
    with pytest.raises(NotFound), translated():
        raise NotFound("gone")
