"""Which models are installed: what lies in RECOLLECT_DATA/models, and RECOLLECT_MODEL wherever that lies.

Each has a short name that people and rows use. Looks at files only; knows nothing of what is loaded.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.utils.translation import gettext as _

from chatapp import llm, model_notes
from chatapp.errors import NotFound

MAX_NAME_CHARS = 96  # fits a column, and what is put before it in a log line
_MAX_DEPTH = 2  # folders below models/: owner/name, as on a hub
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MODEL_FILES = ("config.json", "*.safetensors", "tokenizer.json")

Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model under its name.

    name: of the file without .gguf and part number, or of the folder; letters, digits, ".", "_" and "-". Unique, and
    the same as long as the file is called so.
    is_default: the one of RECOLLECT_MODEL, which answers where no other was chosen.
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

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know who choose it, in their language."""
        return tuple(model_notes.sentence(note) for note in self.facts.notes)


def installed() -> tuple[InstalledModel, ...]:
    """All models that are there, the default first, then by name; those that cannot run say why.

    Never raises for what lies there. Blocking: a few milliseconds, and up to a second for each model that is new or has
    changed since the last call: use a thread.
    """
    names = _names(models_folder())
    chosen = _chosen(names, settings.RECOLLECT_MODEL)
    kernels: str = settings.RECOLLECT_KERNELS
    found = [
        InstalledModel(name, path, is_default=name == chosen, facts=_facts(path, _stamp(path), kernels))
        for name, path in names.items()
    ]
    return tuple(sorted(found, key=lambda model: (not model.is_default, model.name.lower(), model.name)))


def get(name: str) -> InstalledModel:
    """The model of that name, whether it can run or not. Blocking. Raises NotFound with the names that there are."""
    models = {model.name: model for model in installed()}
    if name not in models:
        raise NotFound(
            _("There is no model named %(name)s; there are %(known)s.") % {"name": name, "known": ", ".join(models)},
            known=tuple(models),
        )
    return models[name]


def path_of(name: str) -> Path:
    """Where the model of that name lies. Blocking. Raises NotFound with the names that there are."""
    return get(name).path


def default() -> InstalledModel:
    """The model of RECOLLECT_MODEL; with a problem when there is none. Blocking."""
    return installed()[0]


def models_folder() -> Path:
    return Path(settings.RECOLLECT_DATA) / "models"


def _names(folder: Path) -> dict[str, Path]:
    """Name -> path of every model in the folder.

    A name depends on nothing but the place in the folder; x/x.gguf is called x, as parts in a folder of their own are.
    Only where two would be called the same (a/b and a--b, x/ and x.gguf) the later one gets the beginning of a digest
    of its place.
    """
    found: dict[str, Path] = {}
    for path in _models_in(folder, 0):
        place = path.relative_to(folder)
        called = place.with_name(_called(path))
        name = _plain((called.parent if called.parent.name == called.name else called).as_posix())
        found[name if name not in found else _with_digest(name, str(place))] = path
    return found


def _chosen(names: dict[str, Path], path: Path) -> str:
    """The name of the model at this path, which is added to the names if it lies elsewhere or nowhere."""
    same = [name for name, found in names.items() if _is_same(found, path)]
    if same:
        return next((name for name in same if names[name] == path), same[0])
    name = _plain(_called(path))
    name = name if name not in names else _with_digest(name, str(path))
    names[name] = path
    return name


def _models_in(folder: Path, depth: int) -> Iterator[Path]:
    """Files and folders that are models or want to be, files first. Of a split file, the first part that is there."""
    try:
        entries = sorted(folder.iterdir(), key=lambda path: (os.path.isdir(path), path.name))
    except OSError:  # none yet; one that cannot be listed is found by its parent
        return
    seen: set[str] = set()
    for path in entries:
        if path.name.startswith("."):
            continue
        if os.path.isdir(path):
            inside = [] if _is_model_folder(path) or depth == _MAX_DEPTH else list(_models_in(path, depth + 1))
            yield from inside or ([path] if depth == 0 or _is_model_folder(path) else [])
        elif path.suffix in (".gguf", ".safetensors") and (name := llm.model_name(path)) not in seen:
            seen.add(name)
            yield path


def _is_model_folder(folder: Path) -> bool:
    try:
        return any(next(folder.glob(pattern), None) for pattern in _MODEL_FILES)
    except OSError:
        return True  # what is wrong with it is found out by looking at it


def _plain(place: str) -> str:
    """A name that needs no quoting anywhere. What is changed or cut is told apart by a digest."""
    name = place.replace("/", "--")
    if _PLAIN_NAME.fullmatch(name) and len(name) <= MAX_NAME_CHARS:
        return name
    return _with_digest(re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "model", place)


def _with_digest(name: str, place: str) -> str:
    digest = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:6]
    return f"{name[: MAX_NAME_CHARS - 7]}-{digest}"


def _called(path: Path) -> str:
    """What a folder is called here, wherever it leads to; a file without its ending and number."""
    return path.name if os.path.isdir(path) else llm.model_name(path)


def _is_same(path: Path, chosen: Path) -> bool:
    """Whether both are one model; any part stands for a split one."""
    if os.path.realpath(path) == os.path.realpath(chosen):
        return True
    is_split = all(not os.path.isdir(file) and llm.model_name(file) != file.stem for file in (path, chosen))
    in_one_folder = os.path.realpath(path.parent) == os.path.realpath(chosen.parent)
    return is_split and in_one_folder and llm.model_name(path) == llm.model_name(chosen)


def _stamp(path: Path) -> Stamp:
    """Changes whenever the files of the model do; () when there are none."""
    try:
        facts = [(file.name, file.stat()) for file in llm.model_files(path)]
    except OSError:  # inspect_model says what is the matter
        return ()
    return tuple((name, fact.st_size, fact.st_mtime_ns) for name, fact in facts)


@lru_cache(maxsize=256)
def _facts(path: Path, stamp: Stamp, kernels: str) -> llm.ModelFacts:
    """stamp: that of the files now, so that they are looked at anew when they have changed."""
    return llm.inspect_model(path, kernels=kernels)
