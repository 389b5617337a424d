"""What the kernels become on a 64-bit ARM: `python -m tests.inference.aarch64_assembly` prints JSON, text by name.

LLVM emits for other machines than its own, which needs options of the whole process: hence a program of its own.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types

from inference.kernels.jit import elementwise
from inference.kernels.jit.compiler import OPTIONS, optimised
from inference.kernels.jit.cpu import TIERS, Tier
from inference.kernels.jit.linear_kernel import emit_linear
from inference.kernels.jit.linear_rows import emit_quantise
from inference.kernels.quantized import FloatForm, Form, IntegerForm

TRIPLE = "aarch64-unknown-linux-gnu"
CPU = "neoverse-n1"
FORMS: dict[str, Form] = {"u4": IntegerForm("u4", 32, "f16", has_minimum=True), "f16": FloatForm("f16")}
# What a back end may fuse looks so; ours say nowhere that they may be.
FUSIBLE = """
define float @fusible(float %a, float %b, float %c) {
  %product = fmul contract float %a, %b
  %sum = fadd contract float %product, %c
  ret float %sum
}
"""


def machine() -> llvm.TargetMachine:
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=CPU, features="", opt=3, jit=True)


def product(tier: Tier, form: Form) -> str:
    module = ir.Module(name="linear")
    emit_linear(module, tier, form, "linear")
    return str(machine().emit_assembly(optimised(module, machine())))


def quantising(tier: Tier) -> str:
    module = ir.Module(name="rows")
    emit_quantise(module, tier, "quantise")
    return str(machine().emit_assembly(optimised(module, machine())))


def assembly(text: str) -> str:
    """Of LLVM code that was made for this machine, without what says so."""
    for named in (r'^target (triple|datalayout) = ".*"$', r'"target-(cpu|features)"="[^"]*"'):
        text = re.sub(named, "", text, flags=re.MULTILINE)
    parsed = llvm.parse_assembly(f'target triple = "{TRIPLE}"\n{text}')
    return str(machine().emit_assembly(parsed))


def numba_kernel() -> str:
    """Numba's code of a gated activation, whose exp is a polynomial."""
    kernel: Any = elementwise.activate
    signature = (types.int64,) * 5
    kernel.compile(signature)
    return assembly(kernel.inspect_llvm(signature))


def main() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    if not llvm.get_process_triple().startswith("aarch64"):  # where it is set
        llvm.set_option("", OPTIONS["aarch64"])
    tier = next(tier for tier in TIERS if tier.name == "neon")
    found = {name: product(tier, form) for name, form in FORMS.items()}
    found |= {"quantise": quantising(tier), "numba": numba_kernel(), "fusible": assembly(FUSIBLE)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
