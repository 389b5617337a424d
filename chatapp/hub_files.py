"""Which files of a Hugging Face repository a model needs, and which of several models is meant. Pure.

A directory model is what inference.formats reads and nothing else: no pickles, no second set of the same weights. Of
GGUF files there are often many in one repository, each a whole model; split ones are several files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from chatapp.default_model import FetchError
from chatapp.logs import escaped
from chatapp.terminal import size

INDEX = "model.safetensors.index.json"
SMALL_FILES = (  # of a directory model, all but the weights; what lies in folders is the same in other forms
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    INDEX,
)
MAX_SHOWN = 40
_PART = re.compile(r"(?P<stem>.+)-[0-9]{5}-of-[0-9]{5}\.gguf", re.IGNORECASE)
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+() -]{0,199}")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")  # reading one runs whatever code its author put in
_NO_MODELS = ("mmproj", "imatrix")  # beginnings of names of GGUF files that hold no language model


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository.

    digest: hex; SHA-256 of the content, or SHA-1 of the git blob for what is not in LFS; "" if the hub does not say.
    """

    path: str  # inside the repository
    num_bytes: int
    digest: str

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be fetched: files that become a folder of that name, or one file when is_folder is false."""

    name: str
    files: tuple[HubFile, ...]
    is_folder: bool

    @property
    def is_split(self) -> bool:
        """Whether the folder holds the parts of one GGUF model."""
        return self.is_folder and all(_PART.fullmatch(file.name) for file in self.files)

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


def choose_gguf(repository: str, files: Sequence[HubFile], pattern: str) -> Choice:
    """The one GGUF model whose name or path matches; "" matches all. Called by its file, or by the stem of its parts.

    Raises FetchError when none matches, or several; then with their list.
    """
    models: dict[str, list[HubFile]] = {}
    for file in files:
        if file.name.lower().endswith(".gguf") and not file.name.lower().startswith(_NO_MODELS):
            named = _PART.fullmatch(file.path)
            models.setdefault(named["stem"] if named else file.path.removesuffix(".gguf"), []).append(file)
    if not models:
        raise FetchError(_nothing_to_choose(repository, files))
    chosen = {stem: parts for stem, parts in models.items() if not pattern or _matches(stem, parts, pattern)}
    if len(chosen) != 1:
        what = (
            f"{len(chosen)} of {len(models)} models match {escaped(pattern)!r}" if pattern else f"{len(models)} models"
        )
        raise FetchError(
            f"{repository}: {what}. Choose one with --file, for example --file '*{_ending(models)}*':\n"
            f"{_listed(chosen or models)}"
        )
    ((stem, parts),) = chosen.items()
    _check(repository, parts)
    is_split = _PART.fullmatch(parts[0].path) is not None
    name = stem.rsplit("/", 1)[-1] if is_split else parts[0].name
    return Choice(name, tuple(sorted(parts, key=lambda file: file.path)), is_folder=is_split)


def choose_directory(repository: str, files: Sequence[HubFile], index: str | None) -> Choice:
    """The directory model. index: content of the file of that name, None when there is none.

    Raises FetchError when something is missing that no model can be without.
    """
    found = {file.path: file for file in files}
    for name in ("config.json", "tokenizer.json"):
        if name not in found:
            raise FetchError(f"{repository} holds no {name}: not a model that can be run here.{_instead(files)}")
    small = [found[name] for name in SMALL_FILES if name in found]
    chosen = (*small, *_weights(repository, found, index))
    _check(repository, chosen)
    return Choice(repository.rsplit("/", 1)[-1], chosen, is_folder=True)


def has_weights(files: Iterable[HubFile]) -> bool:
    """Whether there is a directory model, as opposed to GGUF files only."""
    return any("/" not in file.path and file.path.endswith(".safetensors") for file in files)


def _weights(repository: str, found: Mapping[str, HubFile], index: str | None) -> list[HubFile]:
    """One set of shards: those of the index, or else model.safetensors, or else the only file that there is."""
    if index is not None:
        names = _indexed(repository, index)
    elif "model.safetensors" in found:
        names = ["model.safetensors"]
    else:
        names = [path for path in found if "/" not in path and path.endswith(".safetensors")]
        if len(names) != 1:
            said = f"{len(names)} *.safetensors files and no {INDEX} that says which belong together"
            raise FetchError(f"{repository} holds {said}.{_instead(found.values())}")
    for name in names:
        if name not in found or "/" in name:
            raise FetchError(f"{repository} holds no {escaped(name)}, which its {INDEX} names.")
    return [found[name] for name in names]


def _indexed(repository: str, index: str) -> list[str]:
    try:
        names = json.loads(index)["weight_map"].values()
        return sorted({name for name in names if isinstance(name, str)})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FetchError(f"{repository}: its {INDEX} is not one ({error}).") from error


def _nothing_to_choose(repository: str, files: Sequence[HubFile]) -> str:
    """Why a repository without a GGUF file is refused where one was looked for."""
    if has_weights(files):
        return f"{repository} holds no GGUF file. Leave --file away."
    if pickle := next((file.path for file in files if file.path.lower().endswith(_PICKLES)), ""):
        return (
            f"{repository} holds pickled weights only ({escaped(pickle)}). Pickles can run code and are never loaded: "
            "look for a repository with the same model as safetensors or GGUF."
        )
    return f"{repository} holds no weights that can be run here: neither *.safetensors nor GGUF."


def _instead(files: Iterable[HubFile]) -> str:
    is_gguf = any(file.path.lower().endswith(".gguf") for file in files)
    return " It holds GGUF files: choose one with --file." if is_gguf else ""


def _check(repository: str, files: Iterable[HubFile]) -> None:
    """The listing comes from a server, and files of these names are going to be written."""
    for file in files:
        if not file.digest:
            raise FetchError(f"{repository}: the hub states no checksum for {file.path[:80]!r}.")
        if not _FILE_NAME.fullmatch(file.name):
            raise FetchError(f"{repository}: {file.name[:80]!r} is no name for a file here.")


def _matches(stem: str, parts: Sequence[HubFile], pattern: str) -> bool:
    names = [stem, stem.rsplit("/", 1)[-1], *(file.path for file in parts), *(file.name for file in parts)]
    return any(fnmatch(name.lower(), pattern.lower()) for name in names)


def _ending(models: Mapping[str, object]) -> str:
    """Of the first model's name, what is likely to tell it from the others: Q4_K_M."""
    return escaped(re.split(r"[-./]", next(iter(models)))[-1])


def _listed(models: Mapping[str, Sequence[HubFile]]) -> str:
    rows = sorted((sum(file.num_bytes for file in parts), stem) for stem, parts in models.items())
    lines = [f"  {size(num_bytes):>8}  {escaped(stem)}" for num_bytes, stem in rows[:MAX_SHOWN]]
    return "\n".join(lines + ([f"  and {len(rows) - MAX_SHOWN} more"] if len(rows) > MAX_SHOWN else []))
