"""LLVM IR -> machine code in this process. Knows nothing about what the code does."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import llvmlite.binding as llvm
from llvmlite import ir

from inference.kernels.jit.cpu import Target

DIGEST_BYTES = 32

_numbers = itertools.count()

# What would need more registers than there are: on x86 chains of integer additions taken for trees, on ARM loads moved
# up. Of the 915 instructions of the loop over many tokens 174 then wait on the stack; without they are 721, and none.
OPTIONS = {
    "x86_64": "-x86-machine-combiner=false",
    "i686": "-x86-machine-combiner=false",
    "aarch64": "-enable-misched=false",
    "arm64": "-enable-misched=false",
}
_option = OPTIONS.get(llvm.get_process_triple().partition("-")[0])
if _option:
    llvm.set_option("", _option)


class MachineCode:
    """Functions of a module, compiled for a target. Their addresses are good as long as this lives.

    kept: a file for the object code, read instead of building and compiling if it is there, and written otherwise. Its
    name must tell apart all that the code depends on. A damaged file is written anew. None: nothing is kept.
    """

    def __init__(
        self, build: Callable[[], ir.Module], names: Sequence[str], target: Target, kept: Path | None = None
    ) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._build = build
        self._machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
            cpu=target.cpu, features=target.features, opt=3, jit=True
        )
        code = _read(kept) if kept is not None else None
        if code is None:
            code = bytes(self._machine.emit_object(optimised(self._build(), self._machine)))
            if kept is not None:
                _write(kept, code)
        library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for name in names:
            library = library.export_symbol(name)
        self._jit = llvm.create_lljit_compiler(self._machine)
        self._library = library.link(self._jit, f"kernels{next(_numbers)}")
        self.addresses = {name: int(self._library[name]) for name in names}

    def assembly(self) -> str:
        """For people."""
        return str(self._machine.emit_assembly(optimised(self._build(), self._machine)))


def optimised(module: ir.Module, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """The module as it goes to the back end of a machine, which may be of another kind than this one."""
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    # Loops are written as they shall be. LLVM's usual passes would unroll and vectorise them once more, move what
    # waits in memory into registers that are not there, and turn chains of additions into trees.
    passes = llvm.create_new_module_pass_manager()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(parsed, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return parsed


def _read(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    data = path.read_bytes()
    digest, code = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(hashlib.sha256(code).digest() + code)
    partial.replace(path)
