"""The fastest tier that a CPU grants is chosen; one that it lacks is refused by name; code is kept and found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.errors import KernelsUnavailable
from inference.kernels.jit import compiler, cpu
from inference.kernels.jit.cpu import TIERS, available_tiers, choose_tier, host
from inference.kernels.jit.linear import LinearKernels
from inference.kernels.jit.linear_check import check
from inference.kernels.quantized import FloatForm

AVX2 = {"avx2": True, "f16c": True, "sse2": True}
AVX512 = AVX2 | dict.fromkeys(("avx512f", "avx512bw", "avx512vl", "avx512dq"), True)
AMX = AVX512 | {"amx-tile": True, "amx-bf16": True}
FORM = FloatForm("f32")


@pytest.mark.parametrize(
    ("features", "names"),
    [
        (AMX, ["amx", "avx512", "avx2", "generic"]),
        (AMX | {"amx-bf16": False}, ["avx512", "avx2", "generic"]),
        (AVX512, ["avx512", "avx2", "generic"]),
        (AVX512 | {"avx512bw": False}, ["avx2", "generic"]),  # the first CPUs with AVX-512 have no words
        (AVX2, ["avx2", "generic"]),
        ({"sse2": True}, ["generic"]),
        ({"neon": True, "fp-armv8": True}, ["neon", "generic"]),
        ({}, ["generic"]),
    ],
)
def test_a_cpu_grants_the_tiers_whose_features_it_has(features: dict[str, bool], names: list[str]) -> None:
    assert [tier.name for tier in available_tiers(features)] == names
    assert choose_tier("auto", features).name == names[0]
    for name in names:
        assert choose_tier(name, features).name == name


def test_a_tier_that_the_cpu_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(KernelsUnavailable, match=r"avx512.*avx2, generic"):
        choose_tier("avx512", AVX2)
    with pytest.raises(KernelsUnavailable, match="sse9"):
        choose_tier("sse9")


def test_tiles_that_the_system_does_not_grant_are_no_tier_of_this_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux gives a process its tile registers only when it asks, and not always."""
    monkeypatch.setattr(cpu.llvm, "get_host_cpu_features", lambda: AMX)
    monkeypatch.setattr(cpu, "can_use_tiles", lambda: False)
    assert [tier.name for tier in available_tiers()] == ["avx512", "avx2", "generic"]
    monkeypatch.setattr(cpu, "can_use_tiles", lambda: True)
    assert choose_tier("auto").name == "amx"


def test_a_cpu_without_tiles_does_not_grant_them() -> None:
    """And asking for them does no harm."""
    has_tiles = cpu.llvm.get_host_cpu_features().get("amx-tile", False)
    assert cpu.can_use_tiles() is has_tiles or has_tiles


def test_this_cpu_has_at_least_plain_vectors() -> None:
    assert available_tiers()[-1] == TIERS[-1]
    assert host().cpu


def test_kept_code_is_used_instead_of_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LinearKernels(choose_tier(), folder=tmp_path).quantise()
    check(LinearKernels(choose_tier(), folder=tmp_path), FORM)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    monkeypatch.setattr(compiler, "optimised", None)
    check(LinearKernels(choose_tier(), folder=tmp_path), FORM)
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize("damage", [b"", b"nothing", None])
def test_damaged_code_is_made_anew(tmp_path: Path, damage: bytes | None) -> None:
    LinearKernels(choose_tier(), folder=tmp_path).product(FORM)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?" if damage is None else damage)
    check(LinearKernels(choose_tier(), folder=tmp_path), FORM)
    assert path.read_bytes() == whole


def test_code_for_another_tier_or_cpu_or_form_is_another_file(tmp_path: Path) -> None:
    for tier in available_tiers():
        LinearKernels(tier, folder=tmp_path).product(FORM)
        LinearKernels(tier, folder=tmp_path).product(FloatForm("bf16"))
    assert len(list(tmp_path.iterdir())) == 2 * len(available_tiers())
