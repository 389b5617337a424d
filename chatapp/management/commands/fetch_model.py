"""`manage.py fetch_model`: put a model into the data folder: the default one, or one of a Hugging Face repository."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from chatapp import hub_download, llm
from chatapp.default_model import DEFAULT_MODEL, FetchError, fetch, sha256_of
from chatapp.hub import Hub
from chatapp.hub_files import Choice
from chatapp.interrupts import EXIT_INTERRUPTED
from chatapp.logs import escaped
from chatapp.model_catalogue import models_folder
from chatapp.terminal import ProgressLine, size

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


class Command(BaseCommand):
    help = (
        "Fetch a model. Without NAME the default one, if it is not there yet and RECOLLECT_MODEL names no other. With "
        "NAME that of a Hugging Face repository; what an interrupted run has fetched is not fetched again. HF_TOKEN "
        "opens gated and private repositories, HF_ENDPOINT names another hub."
    )
    requires_system_checks: list[str] = []  # the model is one of the things that they look for

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("repository", nargs="?", metavar="NAME", help="OWNER/NAME, such as Qwen/Qwen3-0.6B")
        parser.add_argument("--revision", help="a branch, a tag or a commit of it (its main branch)")
        parser.add_argument("--file", default="", metavar="PATTERN", help="which GGUF file of it, such as '*Q4_K_M*'")
        parser.add_argument("--name", help="what it is called here (as there)")
        parser.add_argument("--verify", action="store_true", help="read the whole default model, compare its checksum")

    def handle(self, *args: Any, **options: Any) -> None:
        self._progress = ProgressLine(self.stdout)  # type: ignore[arg-type]  # OutputWrapper passes on what it lacks
        try:
            if options["repository"] is None:
                if options["revision"] or options["file"] or options["name"]:
                    raise CommandError("--revision, --file and --name belong to the NAME of a repository.")
                self._fetch_default(is_verified=options["verify"])
            else:
                self._fetch_from_hub(Hub(options["repository"], options["revision"]), options["file"], options["name"])
        except FetchError as error:
            self._progress.close()
            raise CommandError(str(error)) from error
        except KeyboardInterrupt as error:
            self._progress.close()
            raise CommandError("Interrupted.", returncode=EXIT_INTERRUPTED) from error

    def _fetch_default(self, *, is_verified: bool) -> None:
        wanted = Path(settings.RECOLLECT_MODEL)
        folder = models_folder()
        if wanted != folder / DEFAULT_MODEL.filename:
            self.stdout.write(f"RECOLLECT_MODEL is {wanted}: the default model is not needed.")
        elif not wanted.is_file():
            self.stdout.write(f"Fetching {DEFAULT_MODEL.filename} (98 MB, {DEFAULT_MODEL.license}) into {folder} ...")
            fetch(DEFAULT_MODEL, folder, self._progress.show)
            self.stdout.write(f"{DEFAULT_MODEL.filename} is there, its checksum is right.")
        elif is_verified:
            digest = sha256_of(wanted, self._progress.show)
            if digest != DEFAULT_MODEL.sha256:
                raise FetchError(
                    f"{wanted} has the SHA-256 {digest}, expected {DEFAULT_MODEL.sha256}. "
                    "Remove the file and run this command again."
                )
            self.stdout.write(f"{wanted.name}: its checksum is right.")

    def _fetch_from_hub(self, hub: Hub, pattern: str, name: str | None) -> None:
        choice = hub_download.choose(hub, pattern)
        _check_that_it_would_run(hub, choice)
        target = models_folder() / _called(choice, name)
        if hub_download.is_there(choice, target, self._progress.show):
            hub_download.tidy(target)
            self.stdout.write(f"{target.name} is there already, its checksums are right.")
        else:
            kept = hub_download.num_bytes_kept(choice, target)
            rest = f", {size(kept)} of it are here from before" if kept else ""
            files = "1 file" if len(choice.files) == 1 else f"{len(choice.files)} files"
            self.stdout.write(
                f"Fetching {hub.repository} at {hub.commit[:12]}: {files}, {size(choice.num_bytes)}{rest}."
            )
            try:
                hub_download.download(hub, choice, target, self._progress.show)
            except KeyboardInterrupt as error:
                self._progress.close()
                sentence = f"Interrupted. {hub_download.what_is_kept(choice, target)}"
                raise CommandError(sentence, returncode=EXIT_INTERRUPTED) from error
            self.stdout.write(f"{target.name} is there, its checksums are right.")
        self._say_how_to_use(target / choice.files[0].name if choice.is_split else target)

    def _say_how_to_use(self, path: Path) -> None:
        facts = llm.inspect_model(path)
        if not facts.can_run:
            raise CommandError(f"It cannot be run, though: {escaped(facts.problem)}")
        for note in facts.notes:
            self.stdout.write(escaped(f"{facts.name}: {note}"))
        self.stdout.write(f"Choose it for a conversation, or make it the default: RECOLLECT_MODEL={path} make serve")


def _check_that_it_would_run(hub: Hub, choice: Choice) -> None:
    """Before gigabytes are fetched, as far as a few kilobytes tell. Raises FetchError."""
    config = next((file for file in choice.files if file.path == "config.json"), None)
    if config is not None:
        problem = llm.problem_of_config(hub.text(config))
    else:
        problem = llm.problem_of_gguf(hub.gguf_architecture) if hub.gguf_architecture else ""
    if problem:
        raise FetchError(f"{hub.repository} cannot be run here: {escaped(problem)}")


def _called(choice: Choice, name: str | None) -> str:
    if name is None:
        return choice.name
    if not _NAME.fullmatch(name):
        raise FetchError(f"{escaped(name)!r} is no name for a model; legal are letters, digits, '.', '_' and '-'.")
    return name if choice.is_folder else name.removesuffix(".gguf") + ".gguf"
