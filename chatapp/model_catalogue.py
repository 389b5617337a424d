"""Which models are installed: what lies in RECOLLECT_DATA/models, and RECOLLECT_MODEL wherever that lies.

Each has a short name that people and rows use. Looks at files only; knows nothing of what is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chatapp import llm


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model under its name.

    name: of the file without .gguf and part number, or of the folder; unique, and the same as long as that name is.
    is_default: the one of RECOLLECT_MODEL, which a conversation that names none is answered by.
    """

    name: str
    path: Path
    is_default: bool
    facts: llm.ModelFacts

    @property
    def can_run(self) -> bool:
        return self.facts.can_run

    @property
    def problem(self) -> str:
        """Why it cannot run, for people; "" when it can."""
        return self.facts.problem


def installed() -> tuple[InstalledModel, ...]:
    """All models that are there, the default first, then by name; those that cannot run say why.

    Never raises. Blocking: some milliseconds, up to a second for each model that is new or has changed: use a thread.
    """
    raise NotImplementedError


def get(name: str) -> InstalledModel:
    """The model of that name, whether it can run or not. Blocking. Raises NotFound with the names that there are."""
    raise NotImplementedError


def default() -> InstalledModel:
    """The model of RECOLLECT_MODEL; with a problem when there is none. Blocking."""
    raise NotImplementedError
