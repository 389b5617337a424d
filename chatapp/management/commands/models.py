"""`manage.py models`: which models are installed, what each one costs, and which cannot run and why."""

from __future__ import annotations

import argparse
import json
from typing import Any

from django.core.management.base import BaseCommand

from chatapp import hub_download, model_catalogue
from chatapp.logs import escaped
from chatapp.model_catalogue import InstalledModel
from chatapp.terminal import columns, count, size

HEADINGS = ("  NAME", "SIZE", "ARCHITECTURE", "PARAMETERS", "WINDOW", "IN MEMORY", "POOL PER 1,000", "STORED AS")
RIGHT = {"SIZE", "PARAMETERS", "WINDOW", "IN MEMORY", "POOL PER 1,000"}  # numbers


class Command(BaseCommand):
    help = "List the installed models: size, architecture, window, and what 1,000 tokens take of the pool."
    requires_system_checks: list[str] = []  # a missing model is one of the things that they look for

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")

    def handle(self, *args: Any, **options: Any) -> None:
        models = model_catalogue.installed()
        if options["json"]:
            for model in models:
                self.stdout.write(json.dumps(as_json(model)))
            return
        for line in columns([HEADINGS, *map(row, models)], right=RIGHT):
            self.stdout.write(line)
        for model in models:
            remarks = [f"cannot run: {model.problem}"] if model.problem else []
            for remark in (*remarks, *map(str, model.facts.notes)):
                self.stdout.write(escaped(f"{model.name}: {remark}"))
        folder = escaped(str(model_catalogue.models_folder()))
        for name, num_bytes in hub_download.unfinished(model_catalogue.models_folder()).items():
            place = f"{hub_download.WORKSHOP_PREFIX}{name}"
            remark = f"unfinished, {size(num_bytes)} in {place}: fetch_model goes on there, or remove that folder"
            self.stdout.write(escaped(f"{name}: {remark}"))
        self.stdout.write(f"* answers where no other model is chosen (RECOLLECT_MODEL). Folder: {folder}")


def as_json(model: InstalledModel) -> dict[str, Any]:
    """Plain numbers: bytes, tokens."""
    facts = model.facts
    return {
        "name": model.name,
        "path": str(model.path),
        "is_default": model.is_default,
        "can_run": model.can_run,
        "problem": model.problem,
        "kind": facts.kind,
        "bytes": facts.num_bytes,
        "architecture": facts.architecture,
        "parameters": facts.num_parameters,
        "window": facts.window,
        "weight_bytes": facts.weight_bytes,
        "kv_bytes_per_1000_tokens": 1000 * facts.kv_bytes_per_token,
        "quantisations": list(facts.quantisations),
        "has_chat_template": facts.has_chat_template,
        "notes": [str(note) for note in facts.notes],
    }


def row(model: InstalledModel) -> tuple[str, ...]:
    facts = model.facts
    return (
        f"{'*' if model.is_default else ' '} {model.name}",
        size(facts.num_bytes) if facts.num_bytes else "-",
        escaped(facts.architecture) or "-",
        count(facts.num_parameters) if facts.num_parameters else "-",
        f"{facts.window:,}" if facts.window else "-",
        size(facts.weight_bytes) if facts.weight_bytes else "-",
        size(1000 * facts.kv_bytes_per_token) if facts.kv_bytes_per_token else "-",
        f"{facts.kind} {', '.join(facts.quantisations)}".strip(),
    )
