"""`manage.py fetch_model`: put the default model into the data folder, or see that it is there."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from chatapp.default_model import DEFAULT_MODEL, FetchError, fetch, sha256_of


class Command(BaseCommand):
    help = "Download the default model, if it is not there yet. Does nothing when RECOLLECT_MODEL names another one."
    requires_system_checks: list[str] = []  # the model is one of the things that they look for

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--verify", action="store_true", help="read the whole file and compare its checksum")

    def handle(self, *args: Any, **options: Any) -> None:
        wanted = Path(settings.RECOLLECT_MODEL)
        folder = Path(settings.RECOLLECT_DATA) / "models"
        if wanted != folder / DEFAULT_MODEL.filename:
            self.stdout.write(f"RECOLLECT_MODEL is {wanted}: the default model is not needed.")
            return
        try:
            if not wanted.is_file():
                self.stdout.write(
                    f"Fetching {DEFAULT_MODEL.filename} (98 MB, {DEFAULT_MODEL.license}) into {folder} ..."
                )
                fetch(DEFAULT_MODEL, folder, self._show)
                self.stdout.write(f"{DEFAULT_MODEL.filename} is there, its checksum is right.")
            elif options["verify"]:
                self._verify(wanted)
        except FetchError as error:
            raise CommandError(str(error)) from error

    def _verify(self, path: Path) -> None:
        digest = sha256_of(path, self._show)
        if digest != DEFAULT_MODEL.sha256:
            raise CommandError(
                f"{path} has the SHA-256 {digest}, expected {DEFAULT_MODEL.sha256}. "
                "Remove the file and run this command again."
            )
        self.stdout.write(f"{path.name}: its checksum is right.")

    def _show(self, what: str, done: int, total: int) -> None:
        """One line that rewrites itself on a terminal; in a log, only the end."""
        if self.stdout.isatty():
            self.stdout.write(f"\r{what} {100 * done // max(total, 1):3d} %", ending="" if done < total else "\n")
        elif done >= total:
            self.stdout.write(f"{what} 100 %")
