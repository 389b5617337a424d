"""What a benchmark of the application runs in: an engine with the default model, a database of its own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management.base import CommandError
from django.db import connection

from chatapp import llm, model_catalogue


@contextmanager
def loaded(worker: llm.Worker) -> Iterator[None]:
    """The engine of this worker, ready, so that no loading is measured along; it ends with the block.

    Raises CommandError when the default model cannot be loaded.
    """
    llm.start(worker, default_model=model_catalogue.default().name)
    try:
        while llm.status().state is llm.EngineState.LOADING:
            time.sleep(0.02)
        if llm.status().state is not llm.EngineState.READY:
            raise CommandError(llm.status().message)
        yield
    finally:
        llm.shutdown()


@contextmanager
def own_database() -> Iterator[None]:
    """An empty database, removed at the end: a SQLite file, or one on the server of DATABASE_URL."""
    with tempfile.TemporaryDirectory() as folder:
        if connection.vendor == "sqlite":
            connection.settings_dict["TEST"]["NAME"] = str(Path(folder) / "bench.sqlite3")
        name = connection.settings_dict["NAME"]
        connection.creation.create_test_db(verbosity=0, serialize=False, autoclobber=True)
        try:
            yield
        finally:
            connection.creation.destroy_test_db(str(name), verbosity=0)
