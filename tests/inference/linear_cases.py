"""What the compiled products are tried on: every form, every tier that runs here, and CPUs that this one contains."""

from __future__ import annotations

from functools import cache

import pytest
from _pytest.mark.structures import ParameterSet

from inference.formats.gguf_integers import KINDS
from inference.kernels.jit.cpu import TIERS, Target, available_tiers, host
from inference.kernels.jit.linear import LinearKernels
from inference.kernels.quantized import FLOATS, FloatForm, Form, IntegerForm
from tests.inference.tile_emulation import amx_tier, can_emulate

Case = tuple[str, Target, Form]

FORMS: tuple[Form, ...] = (
    *dict.fromkeys(kind.form for kind in KINDS.values()),
    *(FloatForm(floats) for floats in FLOATS),
)
# One of each kind of codes, groups, scales and minimums; compiling them all for all targets takes a minute.
Q4_1 = IntegerForm("u4", 32, "f16", has_minimum=True)
COMMON = (
    Q4_1,
    IntegerForm("s8", 32, "f16", has_minimum=False),
    IntegerForm("s4", 16, "f32", has_minimum=False),
    FloatForm("bf16"),
    FloatForm("f16"),
)
# Code that knows nothing of AVX-512, or of anything newer than SSE2; this CPU runs it as an older one would.
BY_NAME = {tier.name: tier for tier in TIERS}
OLDER = {"avx2": Target("haswell", ""), "generic": Target("x86-64", "")}


def targets() -> list[tuple[str, Target]]:
    """The tiers of this CPU, compiled for itself and for older ones that it contains; amx as the last of its own. The
    code of `neon` is plain: it runs wherever float16 is converted, so that its bits are seen without an ARM."""
    own = own_tiers()
    names = [name for name, _ in own]
    older = OLDER if "avx2" in names else {}
    others = [*older, *(["neon"] if older else [])]
    return [(name, older.get(name, target)) for name, target in own] + [(name, host()) for name in others]


def own_tiers() -> list[tuple[str, Target]]:
    """Those of this CPU, with tiles that are emulated if it has none."""
    own = [(tier.name, host()) for tier in available_tiers() if not tier.has_tiles]
    return [*own, ("amx", amx_tier()[1])] if can_emulate() else own


TARGETS = targets()
NUM_OWN = len(own_tiers())  # of them


def cases() -> list[ParameterSet]:
    """Every form on every target; what the quick tests leave out is marked slow."""
    found = []
    for index, (tier, target) in enumerate(TARGETS):
        for form in FORMS:
            is_quick = form in (COMMON if index < NUM_OWN else (Q4_1,) if tier == "neon" else ())
            marks = () if is_quick else (pytest.mark.slow,)
            found.append(pytest.param(tier, target, form, id=f"{tier}-{target.cpu}-{name_of(form)}", marks=marks))
    return found


def name_of(form: Form) -> str:
    if isinstance(form, FloatForm):
        return form.floats
    return f"{form.codes}/{form.group} {form.scale}{' min' * form.has_minimum}"


@cache
def kernels(tier: str, target: Target) -> LinearKernels:
    """Compiled once for all tests."""
    return LinearKernels(amx_tier()[0] if tier == "amx" else BY_NAME[tier], target)
