"""Compile kernels in a process of its own, whose memory goes with it; ours then reads machine code from the folder.

LLVM and Numba keep a good part of what compiling took for as long as their process lives: more than the weights of a
small model. Run as a program, this file is the child. Knows nothing about models.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

from inference.errors import InferenceError
from inference.kernels.jit import storage  # noqa: F401  what Python calls of it is compiled here, too
from inference.kernels.jit.cpu import choose_tier, host
from inference.kernels.jit.forward import compile_parts, compile_pass
from inference.kernels.jit.kernel_cache import compile_entries, folder_of, keep_compiled, source_times
from inference.kernels.jit.linear import LinearKernels
from inference.kernels.quantized import FloatForm, Form, IntegerForm

PASS_SHARE = 0.8  # of the progress; the rest goes to the products
SILENCE_S = 0.2  # one step of the child takes seconds, and who waits for it may want to give up meanwhile

# -P keeps the working folder out of the child's imports; the environment, which numba and BLAS look at, is ours.
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from inference.kernels.jit.compile_ahead import main; main()"
_ROOT = Path(__file__).resolve().parents[3]


class CompilingFailed(InferenceError):
    """The child that compiles kernels has ended early, or could not be started; then status is None."""

    def __init__(self, status: int | None, said: str) -> None:
        self.status = status
        what = "cannot be started" if status is None else f"ended with status {status}"
        super().__init__(f"the process that compiles them {what}: {said or 'it said nothing'}")


def is_compiled(root: Path, tier: str, forms: Collection[Form]) -> bool:
    """Whether all that a model of these forms runs lies in the folder, for this CPU and this text."""
    linear = LinearKernels(choose_tier(tier), folder=folder_of(root))
    return _mark(root).is_file() and all(linear.is_kept(form) for form in (None, *forms))


def compile_ahead(root: Path, tier: str, forms: Collection[Form], on_progress: Callable[[float], None]) -> None:
    """Fills the folder below root, which can be written, with the pass and the products of these forms.

    on_progress gets 0 .. 1, several times a second even when nothing is new: what it raises ends the child. Cost: a
    quarter of a minute or more the first time, then half a second for each form that is new. Raises CompilingFailed.
    """
    request = {"root": str(root), "tier": tier, "forms": [asdict(form) for form in forms]}
    command = [sys.executable, "-P", "-c", _BOOT, str(_ROOT)]
    pipe = subprocess.PIPE
    try:
        # A session of its own: Ctrl-C in a terminal is for us. A child that it ended would seem to have failed.
        process = subprocess.Popen(  # noqa: S603  our own interpreter and module
            command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:  # no interpreter there, no process or memory left
        raise CompilingFailed(None, str(error)) from error
    with process as child:  # however long it takes: nobody knows how slow the machine is
        assert child.stdin is not None
        assert child.stdout is not None
        done, said = 0.0, ""
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended before it had read: its words and its status tell
                child.stdin.write(json.dumps(request).encode())
                child.stdin.close()
            for line in _lines(child.stdout):
                word, _, fraction = line.partition(" ")
                if word == "progress":
                    done = float(fraction)
                elif line:
                    said = line.strip()[:200]  # the last line of a traceback says what was wrong
                on_progress(done)
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise CompilingFailed(child.returncode, said)


def _lines(stream: IO[bytes]) -> Iterator[str]:
    """What the child says, and an empty line for every SILENCE_S without a word."""
    poll, rest = select.poll(), b""
    poll.register(stream, select.POLLIN)
    while True:
        if not poll.poll(1000 * SILENCE_S):
            yield ""
            continue
        data = os.read(stream.fileno(), 4096)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
    if rest:
        yield rest.decode(errors="replace")


def main() -> None:
    """In the child: the request from standard input, progress to standard output."""
    request = json.load(sys.stdin)
    root = Path(request["root"])
    problem = keep_compiled(root)
    if problem:
        raise SystemExit(problem)
    if not _mark(root).is_file():
        for fraction in compile_parts():
            _report(PASS_SHARE * fraction)
        compile_pass()
        compile_entries()
        _mark(root).touch()
    linear = LinearKernels(choose_tier(request["tier"]), folder=folder_of(root))
    forms = [None, *map(_form, request["forms"])]
    for index, form in enumerate(forms):
        linear.code(form)
        _report(PASS_SHARE + (1 - PASS_SHARE) * (index + 1) / len(forms))


def _report(fraction: float) -> None:
    sys.stdout.write(f"progress {fraction:.4f}\n")
    sys.stdout.flush()  # when the parent is gone this raises, which ends us


def _form(fields: dict[str, object]) -> Form:
    return FloatForm(**fields) if "floats" in fields else IntegerForm(**fields)  # type: ignore[arg-type]


def _mark(root: Path) -> Path:
    """A file that is there when the whole pass is kept. Numba looks at the CPU and at the times of the source, too."""
    key = f"{host()} {source_times()}"
    return folder_of(root) / f"pass-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
