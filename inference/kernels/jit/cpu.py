"""Which tiers of kernels this CPU grants, and which one runs. Tiers differ in speed only, never in a bit."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from inference.errors import KernelsUnavailable

SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18  # Linux, x86-64: arch_prctl(2)


@dataclass(frozen=True, slots=True)
class Tier:
    """What kernels are written for.

    lanes: 32-bit numbers in a vector; num_registers: for such vectors; needs: features by LLVM's names; adds: pairs of
    16-bit products are summed by this intrinsic, or by plain vector code if it is "" (Emitter.add_products); has_tiles:
    many tokens are multiplied by AMX (linear_tiles).
    """

    name: str
    lanes: int
    num_registers: int
    needs: tuple[str, ...] = ()
    adds: str = ""
    has_tiles: bool = False


AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "f16c")
TILES = ("amx-tile", "amx-bf16")
TIERS = (
    Tier("amx", 16, 32, (*AVX512, *TILES), "llvm.x86.avx512.pmaddw.d.512", has_tiles=True),
    Tier("avx512", 16, 32, AVX512, "llvm.x86.avx512.pmaddw.d.512"),
    Tier("avx2", 8, 16, ("avx2", "f16c"), "llvm.x86.avx2.pmadd.wd"),
    Tier("neon", 8, 16, ("neon",)),  # a vector is two registers: what widens 16-bit numbers makes two of one
    Tier("generic", 4, 16, adds="llvm.x86.sse2.pmadd.wd" if llvm.get_process_triple().startswith("x86_64") else ""),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU as LLVM knows it. features: "+avx2,-avx512f,...", as a target machine takes them."""

    cpu: str
    features: str


@cache
def host() -> Target:
    """The CPU that this process runs on, with what its kernel grants."""
    return Target(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


@cache
def can_use_tiles() -> bool:
    """Asks the system for the tile registers of AMX, once for all threads of the process; whether it grants them.

    Linux keeps them from a process that has not asked, and from one with a thread whose stack for signals is too small.
    """
    if sys.platform != "linux" or not llvm.get_process_triple().startswith("x86_64"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) == 0


def available_tiers(features: Mapping[str, bool] | None = None) -> tuple[Tier, ...]:
    """Tiers of a CPU with these features (None: this one, with what the system grants), fastest first."""
    has = _host_features() if features is None else features
    found = (tier for tier in TIERS if all(has.get(name, False) for name in tier.needs))
    return tuple(tier for tier in found if not tier.has_tiles or features is not None or can_use_tiles())


def _host_features() -> Mapping[str, bool]:
    """What LLVM finds out about this CPU; NEON is part of every 64-bit ARM, also where LLVM finds out nothing."""
    found = dict(llvm.get_host_cpu_features())
    return found | {"neon": True} if llvm.get_process_triple().startswith(("aarch64", "arm64")) else found


def choose_tier(wanted: str = "auto", features: Mapping[str, bool] | None = None) -> Tier:
    """The tier of that name, or the fastest. Raises KernelsUnavailable."""
    tiers = available_tiers(features)
    if wanted == "auto":
        return tiers[0]
    for tier in tiers:
        if tier.name == wanted:
            return tier
    raise KernelsUnavailable(wanted, (*(tier.name for tier in tiers), "numpy"))
