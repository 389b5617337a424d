"""`manage.py serve`: check, recover, load the model, listen."""

from __future__ import annotations

import errno
import logging
import socket
import sys
from argparse import ArgumentParser
from typing import Any

from channels.routing import get_default_application
from django.conf import settings
from django.contrib.staticfiles.storage import ManifestStaticFilesStorage, staticfiles_storage
from django.core.management.base import BaseCommand, CommandError

from chatapp import checks, kv_keeper, llm, locks, model_catalogue, selectors
from chatapp.errors import StorageUnavailable
from chatapp.server import CannotListenError, ChatServer, raise_open_files
from chatapp.services import accounts

logger = logging.getLogger(__name__)


class Command(BaseCommand):
    """Refuses to start on a database that is not up to date; starts without a model, and says so where people look."""

    help = "Run the server: the chat, its engine and the admin, in one process."

    def add_arguments(self, parser: ArgumentParser) -> None:
        # The address comes from RECOLLECT_HOST alone: the set-up link and the checks depend on it.
        parser.add_argument("--port", type=int, default=settings.RECOLLECT_PORT, help="0: any free one (%(default)s)")

    def handle(self, *args: Any, port: int, **options: Any) -> None:
        try:
            self._refuse_pending_migrations()
            self._refuse_stale_static_files()
            self._refuse_unusable_encoder()
            with (
                locks.only_server(settings.RECOLLECT_DATA),
                locks.turns_allowed(settings.RECOLLECT_DATA) as num_recovered,
            ):
                if num_recovered:
                    logger.warning("%d turns were left open by the last stop: marked as interrupted", num_recovered)
                self._serve(settings.RECOLLECT_HOST, port)
        except locks.ServerRuns as error:
            raise CommandError(f"{error}. Stop it, or set RECOLLECT_DATA to another folder.") from error
        except StorageUnavailable as error:
            raise CommandError(error.message) from error

    def _refuse_pending_migrations(self) -> None:
        pending = checks.pending_migrations()
        if pending:
            raise CommandError(
                f"The database is not up to date: {len(pending)} migrations are pending ({pending[0]}, ...). "
                "Make a backup, then run `python manage.py migrate`."
            )

    def _refuse_stale_static_files(self) -> None:
        """With a manifest that lacks a file, every page that names it would answer 500."""
        if not isinstance(staticfiles_storage, ManifestStaticFilesStorage):  # RECOLLECT_DEBUG serves the sources
            return
        stale = checks.stale_static_files(staticfiles_storage)
        if stale:
            raise CommandError(
                f"The static files are not those of this version: {len(stale)} are missing or old ({stale[0]}, ...). "
                "Run `python manage.py collectstatic --no-input`."
            )

    def _refuse_unusable_encoder(self) -> None:
        """What the system check cannot see without reading all of it. Loaded now, no turn has to wait for it."""
        status = llm.encoder_status()
        if status is not None and status.problem:
            raise CommandError(f"RECOLLECT_EMBEDDINGS cannot be used: {status.problem}. {llm.ENCODER_ADVICE}")

    def _serve(self, host: str, port: int) -> None:
        server = ChatServer(
            get_default_application(),
            host=host,
            port=port,
            max_body_bytes=settings.DATA_UPLOAD_MAX_MEMORY_SIZE,
            max_files=raise_open_files(),
        )

        def on_listening(bound_port: int) -> None:
            self.start_engine()
            self._announce(host, bound_port)

        try:
            with kv_keeper.running():
                server.run(on_listening)
        except CannotListenError as error:
            raise CommandError(_why_deaf(host, port, error.socketError)) from error
        logger.info("stopped")

    def start_engine(self) -> None:
        """Begin loading the default model; the tests of faults put an engine of their own here."""
        llm.start(llm.new_worker(model_catalogue.path_of), default_model=model_catalogue.default().name)

    def _announce(self, host: str, port: int) -> None:
        address = _address(host, port)
        lines = [
            f"Recollect runs at  {address}/",
            f"Data folder        {settings.RECOLLECT_DATA}",
            f"Model              {settings.RECOLLECT_MODEL}",
        ]
        if not settings.RECOLLECT_MODEL.exists():
            lines.append(f"                   MISSING: fetch it with `{llm.FETCH_COMMAND}`, then start again")
        if not selectors.is_set_up():
            if accounts.is_setup_token_required():
                lines.append(f"First visit        {address}/setup/?token={accounts.setup_token_create()}")
                lines.append("                   This link works once, for whoever creates the owner's account.")
            else:
                lines.append("First visit        creates the owner's account")
        lines.append("Stop with Ctrl-C.")
        self.stdout.write("\n".join(lines))
        sys.stdout.flush()


def _address(host: str, port: int) -> str:
    """Where a browser on this machine finds the server; its name elsewhere, and a proxy's, only the operator knows."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{name}:{port}{settings.RECOLLECT_ROOT_PATH}"


def _why_deaf(host: str, port: int, error: OSError) -> str:
    """What to do about an address that cannot be listened on."""
    advice = {
        errno.EADDRINUSE: "Another program uses that port: choose one with --port or RECOLLECT_PORT.",
        errno.EACCES: "This user may not have that port: choose one from 1024 on with --port or RECOLLECT_PORT.",
    }.get(error.errno or 0, "")
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        advice = "RECOLLECT_HOST must be an address of this machine, a name that leads to one, or 0.0.0.0 for all."
    return f"Cannot listen on {host}:{port}: {error.strerror}. {advice}".rstrip()
