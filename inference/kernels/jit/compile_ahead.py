"""Compile kernels in a process of its own, whose memory goes with it; ours then reads machine code from the folder.

LLVM and Numba keep a good part of what compiling took for as long as their process lives: more than the weights of a
small model. Run as a program, this file is the child. Knows nothing about models.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path

from inference.errors import InferenceError
from inference.kernels.jit.cpu import choose_tier, host
from inference.kernels.jit.forward import compile_parts, compile_pass
from inference.kernels.jit.kernel_cache import compile_entries, folder_of, keep_compiled, source_times
from inference.kernels.jit.linear import LinearKernels
from inference.kernels.quantized import FloatForm, Form, IntegerForm

PASS_SHARE = 0.8  # of the progress; the rest goes to the products

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

    on_progress gets 0 .. 1. Cost: a quarter of a minute or more the first time, then half a second for each form that
    is new. Raises CompilingFailed.
    """
    request = {"root": str(root), "tier": tier, "forms": [asdict(form) for form in forms]}
    command = [sys.executable, "-P", "-c", _BOOT, str(_ROOT)]
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(  # noqa: S603  our own interpreter and module
            command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:  # no interpreter there, no process or memory left
        raise CompilingFailed(None, str(error)) from error
    with process as child:  # however long it takes: nobody knows how slow the machine is
        assert child.stdin is not None
        assert child.stdout is not None
        said = ""
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended before it had read: its words and its status tell
                child.stdin.write(json.dumps(request))
                child.stdin.close()
            for line in child.stdout:
                word, _, fraction = line.partition(" ")
                if word == "progress":
                    on_progress(float(fraction))
                else:
                    said = line.strip()[:200]  # the last line of a traceback says what was wrong
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise CompilingFailed(child.returncode, said)


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
