"""LLVM IR -> machine code in this process. Knows nothing about what the code does."""

from __future__ import annotations

import itertools

import llvmlite.binding as llvm
from llvmlite import ir

from inference.kernels.jit.cpu import Target

_numbers = itertools.count()


class MachineCode:
    """The public functions of a module, compiled for a target. Their addresses are good as long as this lives."""

    def __init__(self, module: ir.Module, target: Target) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
            cpu=target.cpu, features=target.features, opt=3, jit=True
        )
        module.triple = llvm.get_process_triple()
        module.data_layout = str(self._machine.target_data)
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        self._optimise(parsed)
        self.assembly = self._machine.emit_assembly(parsed)
        self._jit = llvm.create_lljit_compiler(self._machine)
        names = [function.name for function in module.functions if not function.is_declaration and not function.linkage]
        builder = llvm.JITLibraryBuilder().add_ir(str(parsed)).add_current_process()
        for name in names:
            builder = builder.export_symbol(name)
        self._library = builder.link(self._jit, f"kernels{next(_numbers)}")
        self.addresses = {name: int(self._library[name]) for name in names}

    def _optimise(self, parsed: llvm.ModuleRef) -> None:
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.slp_vectorization = options.loop_vectorization = options.loop_unrolling = False
        builder = llvm.create_pass_builder(self._machine, options)
        builder.getModulePassManager().run(parsed, builder)
