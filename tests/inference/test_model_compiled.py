"""The compiled decoder: the oracle's bits for every family, and the same ones however a position is computed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.config import EngineConfig
from inference.engine.opened_model import open_model
from inference.errors import KernelsUnavailable, UnsupportedModelError
from inference.formats.model_file import open_model_file
from inference.inspection import inspect_model
from inference.kernels.jit.compile_ahead import CompilingFailed, compile_ahead
from inference.kernels.jit.cpu import available_tiers
from inference.kernels.jit.storage import IntegerStorage
from inference.model.compiled import CompiledDecoder
from inference.model.registry import choose_kernels, estimate_kv_bytes, estimate_weight_bytes, load_model
from tests.conftest import ROOT
from tests.examples import examples
from tests.inference import tiny_models as tiny
from tests.inference.q15_model import oracle_logits
from tests.inference.random_model import RandomModelFile, make_batch, small_config
from tests.inference.row_invariance import BLOCK_SIZE, FIXTURES, check, logits_in_company, whole_logits

BY_NAME = {path.name: path for path in FIXTURES}
TIERS = tuple(tier.name for tier in available_tiers())
CASES = json.loads((Path(__file__).parents[1] / "data" / "smollm2-greedy.json").read_text())["cases"]
SHAPES = {
    "a head wider than a vector": small_config(heads=4, kv_heads=2, head_dim=40),
    "a head of ten": small_config(heads=5, kv_heads=5, head_dim=10, hidden=72),
    "many heads for one kv head": small_config(heads=20, kv_heads=1, head_dim=10, hidden=200),
    "seven heads a group": small_config(heads=14, kv_heads=2, head_dim=16),
    "widths that fill no vector": small_config(heads=3, kv_heads=3, head_dim=8, hidden=40, intermediate=50),
    "an untied head": small_config(is_tied=False),
    "a large head": small_config(heads=2, kv_heads=1, head_dim=256),
}


@cache
def load(name: str, num_threads: int = 2, tier: str = "auto") -> CompiledDecoder:
    model_file = RandomModelFile(SHAPES[name]) if name in SHAPES else open_model_file(BY_NAME[name])
    model = load_model(model_file, kernels=tier, num_threads=num_threads)
    assert isinstance(model, CompiledDecoder)
    return model


@pytest.fixture(scope="module")
def smollm2(model_path: Path) -> CompiledDecoder:
    model = load_model(open_model_file(model_path), num_threads=2)
    assert isinstance(model, CompiledDecoder)
    return model


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_a_pass_of_every_family_gives_the_bits_of_the_oracle(path: Path) -> None:
    model_file = open_model_file(path)
    with np.load(path / "expected.npz") as expected:
        ids, window = expected["ids_2"][:290], int(expected["window_2"])
    model = load_model(model_file, num_threads=2, max_model_len=window)
    np.testing.assert_array_equal(whole_logits(model, ids), oracle_logits(model_file, ids, window))


@pytest.mark.parametrize("name", SHAPES)
def test_a_pass_of_any_shape_gives_the_bits_of_the_oracle(name: str) -> None:
    ids = np.random.default_rng(0).integers(0, 96, 270)
    np.testing.assert_array_equal(whole_logits(load(name), ids), oracle_logits(RandomModelFile(SHAPES[name]), ids))


@pytest.mark.model
def test_the_default_model_gives_the_bits_of_the_oracle(smollm2: CompiledDecoder, model_path: Path) -> None:
    ids = np.array(CASES[0]["prompt_ids"][:9])
    np.testing.assert_array_equal(whole_logits(smollm2, ids), oracle_logits(open_model_file(model_path), ids))


@given(
    name=st.sampled_from([*sorted(BY_NAME), *sorted(SHAPES)]),
    length=st.integers(1, 600),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(80), deadline=None)
def test_split_company_and_blocks_do_not_change_the_bits(name: str, length: int, sizes: list[int], seed: int) -> None:
    check(load(name), length, [max(size, length // 60) for size in sizes], seed)


@pytest.mark.model
@pytest.mark.parametrize(
    "sizes", [[7, 1, 200, 3], *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ([512], [64], [1]))], ids=str
)
def test_chunks_and_company_do_not_change_the_bits_of_the_default_model(
    smollm2: CompiledDecoder, sizes: list[int]
) -> None:
    rng = np.random.default_rng(len(sizes))
    tokens = rng.integers(0, smollm2.config.vocab_size, 600 if min(sizes) > 1 else 290)
    expected = whole_logits(smollm2, tokens)
    found = logits_in_company(smollm2, tokens, sizes, rng, max_strangers=2)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.model
def test_a_prefix_taken_from_other_blocks_does_not_change_the_bits_wherever_it_ends(smollm2: CompiledDecoder) -> None:
    """Cold against a hit: the first rows were computed by another sequence, and copied inside the last block."""
    tokens = np.random.default_rng(0).integers(0, smollm2.config.vocab_size, 300)
    num_blocks = -(-len(tokens) // BLOCK_SIZE)
    kv = smollm2.new_kv(2 * num_blocks, BLOCK_SIZE)
    donor, own = np.arange(num_blocks), np.arange(num_blocks, 2 * num_blocks)
    expected = smollm2.forward(make_batch([(tokens, 0, donor)], BLOCK_SIZE, [299]), kv)
    for split in (1, 15, 16, 17, 100, 255, 256, 257, 288, 299):
        whole, rest = divmod(split, BLOCK_SIZE)
        table = np.concatenate((donor[:whole], own[whole:])).astype(np.int32)
        if rest:
            kv.copy_rows(int(donor[whole]), int(own[whole]), rest)
        found = smollm2.forward(make_batch([(tokens[split:], split, table)], BLOCK_SIZE, [299 - split]), kv)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["gemma3_text", "llama", "qwen3_moe"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_number_of_threads_does_not_change_the_bits(name: str, num_threads: int) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 400)
    other = load(name, num_threads)
    np.testing.assert_array_equal(whole_logits(other, tokens), whole_logits(load(name), tokens))
    assert other.fingerprint == load(name).fingerprint


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("tier", TIERS)
def test_tiers_differ_in_their_names_only(name: str, tier: str) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 90)
    other = load(name, 2, tier)
    assert other.kernel_tier == tier
    np.testing.assert_array_equal(whole_logits(other, tokens), whole_logits(load(name), tokens))
    assert other.fingerprint == load(name).fingerprint


def test_only_the_wanted_rows_come_back_in_the_order_asked_for_and_belong_to_the_caller() -> None:
    model, tokens, table = load("an untied head"), np.arange(50), np.arange(4)
    kv = model.new_kv(4, BLOCK_SIZE)
    everything = model.forward(make_batch([(tokens, 0, table)], BLOCK_SIZE), kv)
    kept = everything.copy()
    some = model.forward(make_batch([(tokens, 0, table)], BLOCK_SIZE, [49, 3, 3, 20]), kv)
    np.testing.assert_array_equal(some, everything[[49, 3, 3, 20]])
    np.testing.assert_array_equal(everything, kept)
    assert model.forward(make_batch([(tokens, 0, table)], BLOCK_SIZE, []), kv).shape == (0, 96)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "gemma3_text", "a head of ten"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_what_is_not_wanted_leaves_the_last_layer_early_and_changes_no_bit(name: str, num_threads: int) -> None:
    """Sequences of 300, 5, 1 and 20 tokens, the second one after 280 others; any of their rows are wanted."""
    model, rng = load(name, num_threads), np.random.default_rng(4)
    vocab = model.config.vocab_size
    tables = np.split(rng.permutation(4 * 20), 4)
    before = make_batch([(rng.integers(vocab, size=280), 0, tables[1])], 16)
    lengths, firsts = (300, 5, 1, 20), (0, 280, 0, 0)
    parts = [(rng.integers(vocab, size=n), at, table) for n, at, table in zip(lengths, firsts, tables, strict=True)]

    def run(wanted: list[int] | None) -> tuple[np.ndarray, bytes, bytes]:
        kv = model.new_kv(4 * 20, 16)
        assert isinstance(kv, IntegerStorage)
        model.forward(before, kv)
        logits = model.forward(make_batch(parts, 16, wanted), kv)
        return logits, kv.k.tobytes(), kv.v.tobytes()

    whole, keys, values = run(None)
    some = np.flatnonzero(rng.random(len(whole)) < 0.3).tolist()
    choices = ([], [325], [0], [299, 304, 305, 325], [301, 302, 303, 304, 306], list(range(325)), some, [304, 2, 2])
    for wanted in choices:
        logits, *kv = run(wanted)
        assert np.array_equal(logits, whole[wanted]), wanted
        assert kv == [keys, values], wanted


@pytest.mark.parametrize("sizes", [[300], [7, 1, 90], [1]], ids=str)
def test_what_breaks_down_is_seen_in_the_logits_of_all_rows_that_attend_to_it_and_of_no_others(
    sizes: list[int],
) -> None:
    """However the rows were computed: in tiles of many rows, of few, or one by one."""
    files = RandomModelFile(SHAPES["an untied head"]), RandomModelFile(SHAPES["an untied head"])
    files[1].tensor("model.embed_tokens.weight")[7] = np.nan
    ids = np.random.default_rng(0).integers(8, 96, 300)
    ids[262] = 7
    clean, broken = (load_model(model_file, num_threads=2) for model_file in files)
    found = logits_in_company(broken, ids, sizes, np.random.default_rng(1), max_strangers=0)
    assert np.isnan(found[262:]).all()
    np.testing.assert_array_equal(found[:262], whole_logits(clean, ids[:262]))


def row_that_overflows(token: int) -> RandomModelFile:
    """A model of one layer in which every score of that token's queries is minus infinity, and no number is NaN.

    Of a head's last component, which is not rotated, all keys are large and only that token has a query.
    """
    config = replace(SHAPES["an untied head"], num_hidden_layers=1, attention_bias=True, partial_rotary_factor=0.5)
    model_file = RandomModelFile(config)
    embedding = model_file.tensor("model.embed_tokens.weight")
    embedding[:, 0] = 0
    embedding[token, 0] = 5
    queries, keys, bias = (
        model_file.tensor(f"model.layers.0.self_attn.{name}").reshape(-1, config.head_dim, columns)
        for name, columns in (
            ("q_proj.weight", config.hidden_size),
            ("k_proj.weight", config.hidden_size),
            ("k_proj.bias", 1),
        )
    )
    for weights in (queries, keys):
        weights[:, -1] = 0
    queries[:, -1, 0] = -1e37 * np.sign(model_file.tensor("model.layers.0.input_layernorm.weight")[0])
    bias[:, -1] = 60_000
    return model_file


@pytest.mark.parametrize("sizes", [[300], [7, 1, 90], [1]], ids=str)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_whose_scores_all_overflow_breaks_down_instead_of_saying_what_lies_in_memory(
    sizes: list[int], num_threads: int
) -> None:
    model_file = row_that_overflows(7)
    ids = np.random.default_rng(0).integers(8, 96, 290)
    ids[[5, 256, 280]] = 7
    with np.errstate(over="ignore", invalid="ignore"):
        expected = oracle_logits(model_file, ids)
    np.testing.assert_array_equal(np.isnan(expected).all(axis=1), ids == 7)
    model = load_model(model_file, num_threads=num_threads)
    whole_logits(model, ids[:5])  # leaves numbers behind
    found = logits_in_company(model, ids, sizes, np.random.default_rng(1), max_strangers=0)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kernels", ["auto", "numpy"])
@pytest.mark.parametrize("is_normalised", [False, True])
@pytest.mark.parametrize("expert", [0, 1, 4])
def test_an_expert_whose_score_is_not_a_number_is_not_merely_passed_over(
    expert: int, is_normalised: bool, kernels: str
) -> None:
    sparse = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = replace(small_config(), model_type="qwen3_moe", norm_topk_prob=is_normalised, **sparse)
    model_file = RandomModelFile(config)
    model_file.architecture = "qwen3_moe"
    model = load_model(model_file, kernels=kernels, num_threads=1)
    assert np.isfinite(whole_logits(model, np.arange(9))).all()
    model_file.tensor("model.layers.1.mlp.gate.weight")[expert, 7] = np.nan
    broken = load_model(model_file, kernels=kernels, num_threads=1)
    assert np.isnan(whole_logits(broken, np.arange(9))).all()


def test_kernels_can_be_asked_for_by_name() -> None:
    assert choose_kernels("auto") == TIERS[0]
    assert choose_kernels("numpy") == "numpy"
    with pytest.raises(KernelsUnavailable, match=r"'sse9'.*generic, numpy") as caught:
        choose_kernels("sse9")
    assert caught.value.available == (*TIERS, "numpy")


def test_without_numba_numpy_runs_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "numba" else found(name))
    model = load_model(open_model_file(BY_NAME["llama"]), num_threads=1)
    assert model.kernel_tier == "numpy"
    assert "Numba is not installed" in caplog.text
    with pytest.raises(KernelsUnavailable, match="Numba is not installed"):
        choose_kernels("generic")


@pytest.mark.parametrize("name", ["qwen3_moe", "gemma3", "phi3"])
@pytest.mark.parametrize("kernels", ["auto", "numpy"])
def test_estimates_are_what_loading_takes(name: str, kernels: str) -> None:
    model_file = open_model_file(BY_NAME[name])
    model = load_model(model_file, kernels=kernels, num_threads=1)
    assert 0.9 < estimate_weight_bytes(model_file, kernels) / model.weight_bytes < 1.1
    assert estimate_kv_bytes(model_file.config, kernels) == model.new_kv(1, BLOCK_SIZE).bytes_per_token


def test_a_width_that_the_kernels_cannot_hold_is_refused_with_the_tensor_before_loading(tmp_path: Path) -> None:
    """No model that is published has an odd one."""
    width = tiny.FFN + 1
    made = np.random.default_rng(0)
    weights = tiny.weights(made)
    for name in weights:
        if ".mlp." in name:
            shape = (tiny.HIDDEN, width) if "down" in name else (width, tiny.HIDDEN)
            weights[name] = made.standard_normal(shape, np.float32)
    path = tiny.write_directory(tmp_path, weights, config=tiny.tiny_config() | {"intermediate_size": width})
    with pytest.raises(UnsupportedModelError, match=f"a matrix of {width} columns") as caught:
        open_model(path, EngineConfig())
    assert caught.value.field == "model.layers.0.mlp.down_proj.weight"
    assert f"a matrix of {width} columns" in inspect_model(path).problem
    assert inspect_model(path, kernels="numpy").can_run
    assert open_model(path, EngineConfig(kernels="numpy")).weight_bytes > 0


def test_models_come_and_go_while_their_threads_are_late() -> None:
    """A thread that comes to a pass when it is over, and its model gone, finds memory that is still there."""
    model_file, tokens = open_model_file(BY_NAME["qwen3_moe"]), np.arange(5)
    expected = whole_logits(load("qwen3_moe"), tokens)
    for _ in range(30):
        model = load_model(model_file, num_threads=6)  # more than there are cores: some always come late
        np.testing.assert_array_equal(whole_logits(model, tokens), expected)
        del model


FIRST_AND_SECOND_START = """
import logging
import sys
from pathlib import Path

from inference.formats.model_file import open_model_file
from inference.model.registry import load_model

logging.basicConfig(level=logging.INFO, format="%(message)s")
seen = []
model_file = open_model_file(Path(sys.argv[1]))
sys.executable = sys.argv[3]
load_model(model_file, kernel_cache=sys.argv[2], num_threads=1, on_progress=seen.append)
assert seen == sorted(seen) and seen[-1] == 1.0, seen
print(sum(fraction < 0.8 for fraction in seen))
"""


def start(folder: Path, compiler: str = sys.executable) -> tuple[str, int]:
    """What a process says that loads a model with compiled kernels in that folder, and how many steps it reports before
    four fifths. compiler: the interpreter of the process that compiles."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_AND_SECOND_START, str(BY_NAME["llama"]), str(folder), compiler],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stderr, int(done.stdout)


@pytest.mark.slow
def test_the_first_start_says_that_it_compiles_and_the_second_does_not_have_to(tmp_path: Path) -> None:
    said, num_steps = start(tmp_path / "kernels")
    assert "compiling the kernels" in said
    assert num_steps >= 7
    (tmp_path / "kernels" / "of another version").mkdir()
    said, _ = start(tmp_path / "kernels")
    assert "compiling" not in said
    assert "are not kept" not in said


@pytest.mark.slow
def test_where_no_process_can_be_had_the_kernels_are_compiled_here(tmp_path: Path) -> None:
    said, num_steps = start(tmp_path / "kernels", compiler="/bin/false")
    assert "compiled here, which takes more memory: the process that compiles them ended with status 1" in said
    assert num_steps >= 7


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (None, "cannot be started: .*No such file"),
        ("kill -9 $$", "ended with status -9: it said nothing"),
        ("echo progress 0.5; echo no memory; exit 3", "ended with status 3: no memory"),
    ],
)
def test_a_process_that_compiles_nothing_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, said: str
) -> None:
    """The model is then loaded with kernels that are compiled here, as the test above shows."""
    interpreter = tmp_path / "python"
    if program is not None:
        interpreter.write_text(f"#!/bin/sh\n{program}\n")
        interpreter.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(CompilingFailed, match=said):
        compile_ahead(tmp_path, "numpy", (), lambda fraction: None)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_said_and_the_model_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said, _ = start(tmp_path / "file")
    assert f"{tmp_path / 'file'}" in said
    assert "are not kept, every start takes longer" in said


def test_blocks_that_the_pool_cannot_have_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ValueError, match="block_size is 24, kernels other than numpy need a multiple of 16"):
        open_model(BY_NAME["llama"], EngineConfig(block_size=24))
    assert open_model(BY_NAME["llama"], EngineConfig(block_size=24, kernels="numpy")).pool_bytes > 0
