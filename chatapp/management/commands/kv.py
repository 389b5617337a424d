"""`manage.py kv`: what is cached on disk, whether it is sound, and away with it. Works beside a server and without."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from chatapp import llm
from chatapp.errors import StorageUnavailable
from chatapp.kv_survey import survey
from chatapp.logs import escaped
from chatapp.models import User
from chatapp.terminal import columns, size

NUM_LARGEST = 10  # conversations in the table; --json has all
ANSWER_S = 15.0  # for a running server
FOLDER_HINT = "Give the data folder to the user that runs the server (chown)"


class Command(BaseCommand):
    help = "Cached KV on disk: status, verify, purge. All of it is safe to lose: what is gone is computed again."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="status | verify | purge")
        status = actions.add_parser("status", help="files and bytes, by model, user and conversation")
        status.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
        actions.add_parser("verify", help="read every file; exit code 1 when one is damaged")
        purge = actions.add_parser("purge", help="remove what is cached, also in the memory of a running server")
        what = purge.add_mutually_exclusive_group(required=True)
        what.add_argument("--conversation", type=UUID, metavar="ID", help="of this one, deleted or not")
        what.add_argument("--user", metavar="NAME", help="of all conversations of a user")
        what.add_argument("--all", action="store_true", help="of everybody and all models")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        try:
            match action:
                case "status":
                    self._status(is_json=options["json"])
                case "verify":
                    self._verify()
                case "purge":
                    self._purge(self._chosen(options))
        except StorageUnavailable as error:
            raise CommandError(error.message) from error
        except OSError as error:
            place = escaped(str(error.filename or llm.kv_root()))
            raise CommandError(f"{place}: {error.strerror}. {FOLDER_HINT}.") from error

    # --- status -------------------------------------------------------------------------------------------------------

    def _status(self, *, is_json: bool) -> None:
        found = survey()
        if is_json:
            self.stdout.write(json.dumps(found.as_json()))
            return
        budget = size(found.max_bytes) if found.max_bytes else "0, nothing more is written"
        self.stdout.write(f"{size(found.bytes)} in {found.files} files; budget (RECOLLECT_KV_DISK_BYTES): {budget}")
        self.stdout.write(f"Folder: {escaped(found.folder)}")
        self._table(
            ("MODEL", "FILES", "SIZE", "LAST USED, UTC", "IN USE", "FINGERPRINT"),
            [
                (
                    *(model.label or "-", f"{model.files:,}", size(model.bytes)),
                    *(model.used_at[:16].replace("T", " "), "yes" if model.is_in_use else "no", model.fingerprint),
                )
                for model in found.models
            ],
        )
        people = [(person.user, f"{person.files:,}", size(person.bytes)) for person in found.users]
        self._table(("USER", "FILES", "SIZE"), people)
        largest = [
            (each.conversation, each.user or "(deleted)", f"{each.files:,}", size(each.bytes))
            for each in found.conversations[:NUM_LARGEST]
        ]
        self._table(("CONVERSATION", "USER", "FILES", "SIZE"), largest)
        if num_more := len(found.conversations) - len(largest):
            self.stdout.write(f"and {num_more} smaller ones (--json has all)")
        if found.public_bytes:
            self.stdout.write(f"\nPublic system prompts: {size(found.public_bytes)}")
        if found.unusable_files:
            self.stdout.write(f"\nFiles that cannot be used: {found.unusable_files}. See `manage.py kv verify`")

    def _table(self, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
        if rows:
            self.stdout.write("")
            for line in columns([headings, *rows], right={"FILES", "SIZE"}):
                self.stdout.write(escaped(line))

    # --- verify -------------------------------------------------------------------------------------------------------

    def _verify(self) -> None:
        num_files = num_bytes = 0
        problems: Counter[str] = Counter()
        for file in llm.kv_files(is_whole=True):
            num_files += 1
            num_bytes += file.num_bytes
            if file.problem:
                problems[file.problem] += 1
                self.stdout.write(escaped(f"{file.path}: {file.problem}"))
        if problems:
            causes = ", ".join(f"{num} {cause}" for cause, num in problems.most_common())
            raise CommandError(
                f"{problems.total()} of {num_files} files cannot be used ({causes}). They do no harm: a server takes "
                "each for a miss and removes it. `manage.py kv purge --all` removes everything now."
            )
        self.stdout.write(f"All {num_files} files are sound ({size(num_bytes)}).")

    # --- purge --------------------------------------------------------------------------------------------------------

    def _chosen(self, options: dict[str, Any]) -> set[str] | None:
        if options["all"]:
            return None
        if options["conversation"]:
            return {str(options["conversation"])}
        user = User.objects.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(
                f"There is no user named {options['user']!r}. What a deleted account has left behind goes when a "
                "server starts, or with `manage.py kv purge --all`."
            )
        return {str(conversation_id) for conversation_id in user.conversations.values_list("id", flat=True)}

    def _purge(self, conversation_ids: set[str] | None) -> None:
        num_removed, is_server_asked = llm.purge_now(conversation_ids)
        num = len(conversation_ids or ())
        what = "all models" if conversation_ids is None else f"{num} conversation{'s' * (num != 1)}"
        self.stdout.write(f"Removed {num_removed} files of {what}.")
        if not is_server_asked:
            self.stdout.write("No server runs on this data folder: nothing is left in memory.")
        elif llm.wait_for_server(ANSWER_S):
            self.stdout.write("The running server has forgotten it, too.")
        else:
            raise CommandError(
                f"The running server has not answered for {ANSWER_S:.0f} s. It forgets its part as soon as it can, at "
                "the latest when it is started again."
            )
