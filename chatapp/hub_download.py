"""Files of a hub on their way into the models folder: resumed, compared with their checksums, put in place when whole.

What has come lies in a hidden folder beside the place where the model will appear: .fetch-NAME/CHECKSUM when a file is
whole, CHECKSUM.part before. So the next run goes on from there, whatever ended this one. Knows no Django.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chatapp.default_model import CHUNK_BYTES, FetchError, Progress
from chatapp.hub import Broken, Hub
from chatapp.hub_files import INDEX, Choice, HubFile, choose_directory, choose_gguf, has_weights
from chatapp.terminal import size

MAX_FAILURES = 5  # in a row, without a byte in between
FIRST_PAUSE_S = 1.0  # before a connection is taken up again; twice as long each time
MAX_PAUSE_S = 120.0  # a hub that wants a longer one is left to the next run
WORKSHOP_PREFIX = ".fetch-"  # a catalogue passes over names that begin with a dot
_WHOLE = "whole"  # in the workshop: the files of a folder under their names, about to be put in place
_SHA1_CHARS = 40

Show = Callable[[int], None]  # bytes so far


def choose(hub: Hub, pattern: str) -> Choice:
    """What is to be fetched: the directory model if there is one and no GGUF file was asked for. Raises FetchError."""
    if pattern or not has_weights(hub.files):
        return choose_gguf(hub.repository, hub.files, pattern)
    index = next((hub.text(file) for file in hub.files if file.path == INDEX), None)
    return choose_directory(hub.repository, hub.files, index)


def is_there(choice: Choice, target: Path, progress: Progress) -> bool:
    """Whether `target` is what was chosen, every checksum compared. Raises FetchError when something else is there."""
    if not os.path.lexists(target):
        return False
    done = 0
    for file in choice.files:
        path = target / file.name if choice.is_folder else target
        is_alike = path.is_file() and path.stat().st_size == file.num_bytes
        if not is_alike or _digest(path, file, _shown(progress, "Checking", done, choice)) != file.digest:
            raise FetchError(
                f"{target} is there already and differs from the hub's ({file.name}). Move it away, or fetch under "
                "another name with --name."
            )
        done += file.num_bytes
    return True


def num_bytes_kept(choice: Choice, target: Path) -> int:
    """How much of it an earlier run has left."""
    workshop, num_bytes = _workshop_of(target), 0
    for file in choice.files:
        places = (workshop / file.digest, workshop / _WHOLE / file.name, _part(workshop, file))
        num_bytes += next((place.stat().st_size for place in places if place.is_file()), 0)
    return num_bytes


def unfinished(folder: Path) -> dict[str, int]:
    """Downloads in the models folder that wait for another run: name -> how many bytes lie there."""
    return {
        workshop.name.removeprefix(WORKSHOP_PREFIX): sum(file.stat().st_size for file in workshop.iterdir())
        for workshop in sorted(folder.glob(f"{WORKSHOP_PREFIX}*"))
        if workshop.is_dir()
    }


def what_is_kept(choice: Choice, target: Path) -> str:
    """A sentence for whoever has not got all of it, or just has."""
    if os.path.lexists(target):
        return f"{target.name} is there: nothing is left to be fetched."
    num_bytes = num_bytes_kept(choice, target)
    return f"{size(num_bytes)} of {size(choice.num_bytes)} are kept: the same command goes on from there."


def tidy(target: Path) -> None:
    """Away with what is left of a run that was ended when `target` was in place, and not all else was done."""
    if _workshop_of(target).is_dir():
        with suppress(FetchError), _workshop(target):  # which removes it, or is another process's
            pass


def download(hub: Hub, choice: Choice, target: Path, progress: Progress) -> None:
    """Fetch what has not come yet and let the model appear as `target`, in one step. Raises FetchError.

    A connection that breaks is taken up again, with pauses; after MAX_FAILURES attempts without a byte it is given up.
    """
    try:
        with _workshop(target) as workshop:
            _take_back(choice, workshop)
            _check_room(choice, target)
            done = 0
            for file in choice.files:
                if not (workshop / file.digest).is_file():
                    _receive(hub, file, workshop, _shown(progress, "Fetching", done, choice))
                    _check(hub, file, workshop, _shown(progress, "Checking", done, choice))
                done += file.num_bytes
            _put_in_place(choice, workshop, target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError(f"The disk is full. {what_is_kept(choice, target)}") from error
        if error.errno == errno.EFBIG:
            sentence = (
                f"{target.parent} takes no file as large as {size(max(file.num_bytes for file in choice.files))}: "
            )
            advice = "see `ulimit -f`, or set RECOLLECT_DATA to a folder on another disk."
            raise FetchError(f"{sentence}{advice} {what_is_kept(choice, target)}") from error
        raise FetchError(f"{target.name} cannot be written to {target.parent}: {error.strerror or error}") from error
    except Broken as error:
        raise FetchError(f"{error} {what_is_kept(choice, target)}") from error


def _receive(hub: Hub, file: HubFile, workshop: Path, show: Show) -> None:
    """All bytes of a file into its part, over as many connections as it takes."""
    part = _part(workshop, file)
    num_failures = 0
    part.touch()
    while (num_before := part.stat().st_size) < file.num_bytes:
        try:
            _append(hub, file, part, show)
        except Broken as error:
            num_failures = 1 if part.stat().st_size > num_before else num_failures + 1
            if num_failures > MAX_FAILURES or error.wait_s > MAX_PAUSE_S:
                raise
            time.sleep(max(error.wait_s, FIRST_PAUSE_S * 2 ** (num_failures - 1)))


def _append(hub: Hub, file: HubFile, part: Path, show: Show) -> None:
    """What one connection brings of the rest."""
    with hub.stream(file, part.stat().st_size) as (done, chunks), part.open("ab" if done else "wb") as sink:
        for chunk in chunks:
            done += len(chunk)
            if done > file.num_bytes:
                raise FetchError(f"{hub.endpoint} sends more of {file.path} than the {file.num_bytes} bytes it listed.")
            sink.write(chunk)
            sink.flush()  # what has come is kept, however this process ends
            show(done)
    if done < file.num_bytes:
        raise Broken(f"{hub.endpoint} ended {file.path} after {done} of {file.num_bytes} bytes.")


def _check(hub: Hub, file: HubFile, workshop: Path, show: Show) -> None:
    """What lies on the disk is what the hub listed: then the part is called whole. Else it is no use to anybody."""
    part = _part(workshop, file)
    found = _digest(part, file, show)
    if found != file.digest:
        part.unlink()
        raise FetchError(
            f"{file.path} of {hub.repository} has the checksum {found}, expected {file.digest}. "
            "Nothing was installed: the download is damaged, or not what it claims to be. Try again."
        )
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(workshop / file.digest)


def _digest(path: Path, file: HubFile, show: Show) -> str:
    """As the listing has it: SHA-256 of the content, or what git calls a blob outside LFS."""
    is_git = len(file.digest) == _SHA1_CHARS
    digest = hashlib.sha1(f"blob {file.num_bytes}\0".encode(), usedforsecurity=False) if is_git else hashlib.sha256()
    done = 0
    with path.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            show(done)
    return digest.hexdigest()


def _take_back(choice: Choice, workshop: Path) -> None:
    """The files that a run had moved when it was ended in the middle of _put_in_place(). The last of equal ones comes
    first: the others are copies, which nobody has synced."""
    for file in reversed(choice.files):
        moved = workshop / _WHOLE / file.name
        if moved.is_file() and not (workshop / file.digest).is_file():
            moved.replace(workshop / file.digest)


def _put_in_place(choice: Choice, workshop: Path, target: Path) -> None:
    if os.path.lexists(target):
        raise FetchError(f"{target} has appeared meanwhile. Move it away, and the same command ends what it began.")
    whole = workshop / choice.files[0].digest
    if choice.is_folder:
        whole = workshop / _WHOLE
        shutil.rmtree(whole, ignore_errors=True)  # _take_back() has left nothing that is needed
        whole.mkdir()
        digests = [file.digest for file in choice.files]
        for index, file in enumerate(choice.files):
            is_needed_again = file.digest in digests[index + 1 :]  # two small files may well be equal
            (shutil.copyfile if is_needed_again else os.replace)(workshop / file.digest, whole / file.name)
        _sync(whole)
    whole.rename(target)
    _sync(target.parent)
    shutil.rmtree(workshop, ignore_errors=True)  # another process may just be opening its lock


@contextmanager
def _workshop(target: Path) -> Iterator[Path]:
    """The hidden folder, for one process at a time."""
    folder = _workshop_of(target)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FetchError(f"{target.name} is being fetched by another process.") from error
        if os.path.lexists(target):  # the other one finished since we looked
            shutil.rmtree(folder, ignore_errors=True)
            raise FetchError(f"{target.name} has just been fetched by another process.")
        if os.fstat(lock.fileno()).st_nlink == 0:  # or was taken away
            raise FetchError(f"{folder.name} was removed meanwhile. Try again.")
        yield folder


def _check_room(choice: Choice, target: Path) -> None:
    num_missing = choice.num_bytes - num_bytes_kept(choice, target)
    num_free = shutil.disk_usage(target.parent).free
    if num_missing > num_free:
        raise FetchError(
            f"{target.name} needs {size(num_missing)} more, and {target.parent} has {size(num_free)} left. "
            "Make room, or set RECOLLECT_DATA to a folder on another disk."
        )


def _shown(progress: Progress, what: str, done_before: int, choice: Choice) -> Show:
    return lambda done: progress(what, done_before + done, choice.num_bytes)


def _workshop_of(target: Path) -> Path:
    return target.with_name(f"{WORKSHOP_PREFIX}{target.name}")


def _part(workshop: Path, file: HubFile) -> Path:
    return workshop / f"{file.digest}.part"


def _sync(folder: Path) -> None:
    """New names in a folder outlast a power cut from here on."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
