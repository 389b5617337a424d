"""The decorators of compiled functions, and the folder that keeps what they compiled.

Numba's own cache looks at the file of a function only, not at what it calls. So the folder is named by a digest of all
files of this room and the compiler's version: another text never meets old machine code.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
from numba import cfunc, njit, types
from numba.core import config
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

UNUSED_S = 7 * 86_400  # after so long without a start, what a version has compiled is removed

_folders: list[Path] = []  # the last one keeps what is compiled
_entries: list[Any] = []  # dispatchers of what is kept; filled while modules are imported


def kernel(function: F) -> F:
    """Compiles at the first call and runs without the GIL. Floats follow IEEE; an index is not checked."""
    return cast(F, njit(nogil=True, error_model="numpy")(function))


def entry(function: F) -> F:
    """A kernel that Python calls, with integers; its code, with that of all that it calls, is kept.

    Of this room only: what says that all is compiled names the files of all entries (source_times), so with one from
    elsewhere this process would take nothing for compiled and start a child at every load.
    """
    assert Path(function.__code__.co_filename).parent == Path(__file__).parent, "an entry of another room"
    dispatcher = njit(nogil=True, error_model="numpy")(function)
    _entries.append(dispatcher)
    return cast(F, dispatcher)


def compiled_function(signature: Any, function: Callable[..., Any]) -> Any:
    """A function of C, compiled now or taken from the folder that keep_compiled() has set."""
    if not _folders:
        return cfunc(signature)(function)
    return _kept_in(_folders[-1], lambda: cfunc(signature, cache=True)(function))


def instruction(emit: Callable[..., Any]) -> Callable[..., Any]:
    """A function that kernels call and LLVM code stands for; see numba.extending.intrinsic. Python cannot call it."""
    return cast(Callable[..., Any], intrinsic(emit))


def _source_digest() -> str:
    """Names the text of the kernels and the compiler, hex."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


DIGEST = _source_digest()  # of the text that is imported now; files may change under a running process


def default_root() -> Path:
    """Beside the source, where Python keeps what it compiles."""
    return Path(__file__).parent / "__pycache__" / "kernels"


def folder_of(root: Path) -> Path:
    """Where this version of the kernels keeps its code below root."""
    return root / DIGEST


def source_times() -> list[tuple[str, int, int]]:
    """Place, time and size of the files that hold entries: Numba compiles anew when one was moved or touched."""
    paths = sorted({Path(dispatcher.py_func.__code__.co_filename) for dispatcher in _entries})
    return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths]


def keep_compiled(root: Path) -> str:
    """Keeps compiled kernels in a folder below root from now on. Returns why that is impossible, "" if it is not."""
    folder = folder_of(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        for other in root.iterdir():  # of other versions of this program; one may be running, or come back
            if other != folder and other.is_dir() and time.time() - other.stat().st_mtime > UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return f"{folder} can not be written ({error.strerror})"
    for dispatcher in _entries:
        _kept_in(folder, dispatcher.enable_caching)
    _folders.append(folder)
    return ""


def compile_entries() -> None:
    """Compiles what Python calls, so that it is kept before the first call; all arguments are integers."""
    for dispatcher in _entries:
        dispatcher.compile((types.int64,) * dispatcher.py_func.__code__.co_argcount)


def _kept_in(folder: Path, make: Callable[[], T]) -> T:
    """make(), during which Numba makes its caches in that folder."""
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)  # type: ignore[attr-defined]
    try:
        return make()
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]
