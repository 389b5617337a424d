"""The Llama forward pass: right, and bit-identical for a position however it is computed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import UnsupportedModelError
from inference.formats.architectures import KNOWN_ARCHITECTURES
from inference.kernels.kv_storage import KVStorage
from inference.model.base import Model
from inference.model.decoder import NumpyDecoder
from inference.model.registry import load_model
from tests.examples import examples
from tests.inference.random_model import RandomModelFile, float64_logits, make_batch, small_config
from tests.inference.row_invariance import BLOCK_SIZE, check, whole_logits

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = {
    "grouped": small_config(),
    "odd": small_config(heads=9, kv_heads=3, hidden=72),
    "multi-head": small_config(heads=3, kv_heads=3, head_dim=8, hidden=40),
    "one kv head": small_config(heads=20, kv_heads=1, head_dim=10, hidden=200),
    "untied": small_config(is_tied=False),
    "rows that threads split unevenly": small_config(heads=5, kv_heads=1, head_dim=64, hidden=328, intermediate=1000),
}


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {
        name: load_model(RandomModelFile(config), kernels="numpy", num_threads=2) for name, config in CONFIGS.items()
    }


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("length", [1, 30, 300])
def test_agrees_with_float64(models: dict[str, Model], name: str, length: int) -> None:
    tokens = np.random.default_rng(length).integers(0, 96, length)
    expected = float64_logits(RandomModelFile(CONFIGS[name]), tokens)
    np.testing.assert_allclose(whole_logits(models[name], tokens), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 64, 512])
def test_chunks_of_any_size_give_the_same_bits(models: dict[str, Model], size: int) -> None:
    check(models["odd"], 600 if size > 3 else 270, [size], seed=size)


@given(
    name=st.sampled_from(sorted(CONFIGS)),
    length=st.integers(1, 330),
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(40), deadline=None)
def test_split_company_and_blocks_do_not_change_the_bits(
    models: dict[str, Model], name: str, length: int, sizes: list[int], seed: int
) -> None:
    check(models[name], length, [max(size, length // 40) for size in sizes], seed)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_number_of_threads_does_not_change_the_bits(models: dict[str, Model], name: str, num_threads: int) -> None:
    other = load_model(RandomModelFile(CONFIGS[name]), kernels="numpy", num_threads=num_threads)
    tokens = np.random.default_rng(0).integers(0, 96, 400)
    np.testing.assert_array_equal(whole_logits(other, tokens), whole_logits(models[name], tokens))
    assert other.fingerprint == models[name].fingerprint


@pytest.mark.parametrize(
    ("core", "cpu_flag"),
    [
        ("Haswell", "avx2"),
        *(
            pytest.param(core, cpu_flag, marks=pytest.mark.slow)
            for core, cpu_flag in (("SkylakeX", "avx512f"), ("Sandybridge", "avx"), ("Prescott", "sse3"))
        ),
    ],
)
def test_holds_under_every_blas_kernel(core: str, cpu_flag: str) -> None:
    """OpenBLAS picks its kernels at import, so each needs a process of its own."""
    cpu_info = Path("/proc/cpuinfo")
    flags = cpu_info.read_text().split() if cpu_info.exists() else []
    if cpu_flag not in flags and not (cpu_flag == "sse3" and "pni" in flags):
        pytest.skip(f"this CPU has no {cpu_flag}")
    subprocess.run(
        [sys.executable, "-m", "tests.inference.row_invariance"],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_CORETYPE": core},
        check=True,
        timeout=120,
    )


def test_only_the_wanted_rows_come_back_in_the_order_asked_for(models: dict[str, Model]) -> None:
    model, tokens = models["untied"], np.random.default_rng(0).integers(0, 96, 50)
    table = np.arange(4, dtype=np.int32)
    kv = model.new_kv(4, BLOCK_SIZE)
    everything = model.forward(make_batch([(tokens, 0, table)], BLOCK_SIZE), kv)
    some = model.forward(make_batch([(tokens, 0, table)], BLOCK_SIZE, [49, 3, 20]), kv)
    np.testing.assert_array_equal(some, everything[[49, 3, 20]])
    assert model.forward(make_batch([(tokens, 0, table)], BLOCK_SIZE, []), kv).shape == (0, 96)


def test_logits_belong_to_the_caller(models: dict[str, Model]) -> None:
    model, table = models["grouped"], np.arange(1, dtype=np.int32)
    kv = model.new_kv(1, BLOCK_SIZE)
    first = model.forward(make_batch([(np.array([5, 6]), 0, table)], BLOCK_SIZE), kv)
    kept = first.copy()
    model.forward(make_batch([(np.array([7, 8]), 0, table)], BLOCK_SIZE), kv)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("num_tokens", [1, 40])
def test_a_failed_step_leaves_the_model_usable(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, num_tokens: int
) -> None:
    model, tokens = models["grouped"], np.arange(num_tokens)
    expected = whole_logits(model, tokens)

    def refuse(*_: object) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(KVStorage, "write", refuse)
        for _ in range(5):  # more often than there are workers
            with pytest.raises(MemoryError):
                whole_logits(model, tokens)
    np.testing.assert_array_equal(whole_logits(model, tokens), expected)


def test_the_fingerprint_changes_with_what_kv_depends_on(models: dict[str, Model]) -> None:
    fingerprints = [model.fingerprint for model in models.values()]
    assert len(set(fingerprints)) == len(fingerprints)
    again = load_model(RandomModelFile(CONFIGS["grouped"]), kernels="numpy", num_threads=2)
    assert again.fingerprint == models["grouped"].fingerprint


def test_parameters_are_counted_once(models: dict[str, Model]) -> None:
    tied, untied = models["grouped"], models["untied"]
    assert untied.num_parameters - tied.num_parameters == 96 * 64
    assert tied.num_parameters == sum(RandomModelFile(CONFIGS["grouped"]).tensor(n).size for n in _names("grouped"))


def _names(name: str) -> tuple[str, ...]:
    return RandomModelFile(CONFIGS[name]).tensor_names()


@pytest.mark.parametrize("name", CONFIGS)
def test_long_prompts_take_wide_calls_whatever_the_shape(models: dict[str, Model], name: str) -> None:
    """Correct without them too, but a prompt would take many times as long."""
    model = models[name]
    assert isinstance(model, NumpyDecoder)
    assert model.max_call_width >= 200


def test_loading_reports_its_progress() -> None:
    seen: list[float] = []
    load_model(RandomModelFile(small_config()), kernels="numpy", num_threads=1, on_progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    model_file = RandomModelFile(small_config())
    model_file.architecture = "mamba"
    with pytest.raises(UnsupportedModelError, match=r"'mamba'; known: .*llama, mistral") as caught:
        load_model(model_file)
    assert caught.value.known == KNOWN_ARCHITECTURES
