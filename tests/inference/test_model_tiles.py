"""The amx tier in whole passes: the bits of the other tiers for every family, in any company, on any thread.

Where the CPU has no tiles they are emulated (tile_emulation.py), which is slow, so passes are short here.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.formats.model_file import ModelFile, open_model_file
from inference.kernels.jit.cpu import available_tiers
from inference.kernels.quantized import IntegerForm
from inference.model import compiled
from inference.model.compiled import CompiledDecoder
from inference.model.registry import load_model
from tests.conftest import ROOT
from tests.examples import examples
from tests.inference.q15_model import oracle_logits
from tests.inference.random_model import RandomModelFile, RoundedModelFile, small_config
from tests.inference.row_invariance import FIXTURES, check, logits_in_company, whole_logits
from tests.inference.tile_emulation import amx_tier, can_emulate, is_real, num_emulated

pytestmark = pytest.mark.skipif(not can_emulate(), reason="AMX belongs to x86-64")
PLAIN = next(tier.name for tier in available_tiers() if not tier.has_tiles)
QUICK = ("gemma3", "llama", "qwen3_moe")
FAMILIES = [pytest.param(path, id=path.name, marks=() if path.name in QUICK else pytest.mark.slow) for path in FIXTURES]


def open_fixture(name: str) -> ModelFile:
    return RoundedModelFile(open_model_file(next(path for path in FIXTURES if path.name == name)))


def load(model_file: ModelFile, num_threads: int = 2, *, has_tiles: bool = True) -> CompiledDecoder:
    """A decoder of the amx tier, or of the best one without tiles."""
    with pytest.MonkeyPatch.context() as patch:
        if has_tiles:
            patch.setattr(compiled, "choose_tier", lambda _: amx_tier()[0])
            patch.setattr(compiled, "LinearKernels", lambda tier, folder: _linear(tier, target=amx_tier()[1]))
        model = load_model(model_file, kernels=PLAIN, num_threads=num_threads)
    assert isinstance(model, CompiledDecoder)
    assert model.kernel_tier == ("amx" if has_tiles else PLAIN)
    return model


_linear = cache(compiled.LinearKernels)


@pytest.mark.parametrize("path", FAMILIES)
def test_a_pass_of_every_family_has_the_bits_of_other_tiers(path: Path) -> None:
    model_file, before = open_fixture(path.name), num_emulated()
    tokens = np.random.default_rng(0).integers(0, model_file.config.vocab_size, 75)
    tiled = load(model_file)
    found = whole_logits(tiled, tokens)
    np.testing.assert_array_equal(found, whole_logits(load(model_file, has_tiles=False), tokens))
    np.testing.assert_array_equal(found, oracle_logits(model_file, tokens))
    assert tiled.kernel_tier == "amx"
    has_integers = any(isinstance(form, IntegerForm) for form in tiled._forms)
    assert is_real() or has_integers == (num_emulated() > before)


@cache
def many_experts() -> CompiledDecoder:
    """Of 96 tokens an expert gets about 24: some segments are multiplied by tiles, others are too short."""
    return load(open_fixture("qwen3_moe"))


@cache
def wide() -> CompiledDecoder:
    config = small_config(heads=4, kv_heads=2, head_dim=32, hidden=224, intermediate=352)
    return load(RoundedModelFile(RandomModelFile(config)))


@given(
    experts=st.booleans(),
    length=st.integers(16, 80),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(8), deadline=None)
def test_split_company_and_blocks_do_not_change_the_bits(
    experts: bool, length: int, sizes: list[int], seed: int
) -> None:
    check(many_experts() if experts else wide(), length, [max(size, length // 6) for size in sizes], seed)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_number_of_threads_does_not_change_the_bits(num_threads: int) -> None:
    model_file = open_fixture("llama")
    tokens = np.random.default_rng(0).integers(0, 256, 90)
    other, own = load(model_file, num_threads), load(model_file)
    np.testing.assert_array_equal(whole_logits(other, tokens), whole_logits(own, tokens))
    assert other.fingerprint == load(model_file, has_tiles=False).fingerprint


@pytest.mark.slow
@pytest.mark.model
def test_the_default_model_has_the_bits_of_other_tiers(model_path: Path) -> None:
    model_file, rng = open_model_file(model_path), np.random.default_rng(1)
    tokens = rng.integers(0, model_file.config.vocab_size, 20)
    expected = whole_logits(load(model_file, has_tiles=False), tokens)
    tiled = load(model_file)
    np.testing.assert_array_equal(whole_logits(tiled, tokens), expected)
    np.testing.assert_array_equal(logits_in_company(tiled, tokens, [16, 1], rng, max_strangers=0), expected)


def test_a_register_that_nobody_has_configured_ends_the_process_as_on_a_cpu_with_tiles() -> None:
    """Else the emulation would hide a thread that forgets it."""
    program = (
        "import ctypes\n"
        "from llvmlite import ir\n"
        "from inference.kernels.jit.compiler import MachineCode\n"
        "from inference.kernels.jit.ir import I8, VOID, Emitter\n"
        "from tests.inference.tile_emulation import amx_tier\n"
        "tier, target = amx_tier()\n"
        "def build():\n"
        "    module = ir.Module(name='zero')\n"
        "    e = Emitter(module, tier, 'zero', (), public=True)\n"
        "    e.call('llvm.x86.tilezero', VOID, ir.Constant(I8, 0))\n"
        "    e.finish()\n"
        "    return module\n"
        "code = MachineCode(build, ('zero',), target)\n"
        "print('ready', flush=True)\n"
        "ctypes.CFUNCTYPE(None)(code.addresses['zero'])()\n"
    )
    child = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (child.stdout, child.returncode) == ("ready\n", -4)
