"""Sentence vectors are those of an independent implementation (tests/data/make_encoder_fixtures.py), and what would be
computed otherwise, or is damaged, is refused by name."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from inference.embedding import products
from inference.embedding.bert import BertConfig
from inference.embedding.encoder_file import EncoderFile
from inference.embedding.gelu import erf, gelu
from inference.embedding.sentence_encoder import SentenceEncoder
from inference.errors import ModelFileError, UnsupportedModelError

BERT = Path(__file__).resolve().parents[1] / "data" / "encoders" / "bert"
TEXTS: list[str] = json.loads((BERT / "texts.json").read_text())


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder(BERT)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BERT, tmp_path / "bert"))


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(path: Path, *, prefix: str = "", **changes: Any) -> None:
    """Of the tensors that a name ends with."""
    tensors = load_file(path / "model.safetensors")
    for ending, make in changes.items():
        name = next(name for name in tensors if name.endswith(ending.replace("__", ".")))
        found = make(tensors.pop(name))
        if found is not None:
            tensors[name] = found
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, path / "model.safetensors")


def test_vectors_are_those_of_the_reference(encoder: SentenceEncoder) -> None:
    with np.load(BERT / "expected.npz") as expected:
        found = encoder.encode(TEXTS)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected["vectors"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert (found @ found.T).min() < 0.9  # texts differ by far more than the tolerance


@pytest.mark.parametrize("name", ["1", "2"])
def test_every_layer_and_the_positions_matter(copy: Path, name: str, encoder: SentenceEncoder) -> None:
    change_tensors(copy, **{f"layer.{name}.intermediate.dense.bias": lambda tensor: tensor * 0})
    assert np.abs(SentenceEncoder(copy).encode(TEXTS[:1]) - encoder.encode(TEXTS[:1])).max() > 1e-3
    assert np.abs(np.diff(encoder.encode(["my cat", "cat my"]), axis=0)).max() > 1e-3


def test_a_vector_does_not_depend_on_its_neighbours(encoder: SentenceEncoder) -> None:
    together = encoder.encode(TEXTS)
    for text, row in zip(TEXTS, together, strict=True):
        assert np.array_equal(encoder.encode([text])[0], row)


def test_the_end_of_a_long_text_is_not_looked_at(encoder: SentenceEncoder) -> None:
    long = "my cat is called " * 20
    assert np.array_equal(*encoder.encode([long, long + "what pets"]))
    head = encoder.encode(["my cat is", "my cat is called"])
    short = encoder.encode(["my cat is called Mitzi"], max_tokens=5)  # [CLS] and [SEP] are two of them
    assert np.array_equal(short[0], head[0])
    assert not np.array_equal(*head)


def test_any_text_has_a_vector(encoder: SentenceEncoder) -> None:
    found = encoder.encode(["", "\0", "\ud800", " \n", "\U0010ffff", "x" * 100_000])
    assert np.isfinite(found).all()
    assert encoder.encode([]).shape == (0, encoder.num_dims)


def test_the_fingerprint_is_that_of_all_that_decides(copy: Path, encoder: SentenceEncoder) -> None:
    assert SentenceEncoder(copy).fingerprint == encoder.fingerprint
    seen = {encoder.fingerprint}
    change(copy / "sentence_bert_config.json", max_seq_length=20)
    seen.add(EncoderFile(copy).fingerprint)
    change_tensors(copy, **{"word_embeddings.weight": lambda tensor: tensor + 1})
    seen.add(EncoderFile(copy).fingerprint)
    change(copy / "tokenizer.json", version="1.1")
    seen.add(EncoderFile(copy).fingerprint)
    assert len(seen) == 4


def test_names_with_a_prefix_and_tensors_of_heads_are_taken(copy: Path, encoder: SentenceEncoder) -> None:
    change_tensors(copy, prefix="bert.")
    assert np.array_equal(SentenceEncoder(copy).encode(TEXTS), encoder.encode(TEXTS))


def test_without_a_word_about_pooling_it_is_the_mean(copy: Path, encoder: SentenceEncoder) -> None:
    shutil.rmtree(copy / "1_Pooling")
    (copy / "modules.json").unlink()
    (copy / "sentence_bert_config.json").unlink()
    assert np.array_equal(SentenceEncoder(copy).encode(TEXTS[:1]), encoder.encode(TEXTS[:1]))
    assert EncoderFile(copy).max_tokens == 40


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "roberta"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"hidden_act": "gelu_new"}, "hidden_act"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
    ],
)
def test_another_architecture_is_refused_by_name(copy: Path, changes: dict[str, Any], field: str) -> None:
    change(copy / "config.json", **changes)
    with pytest.raises(UnsupportedModelError, match="known: ") as caught:
        EncoderFile(copy)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", 33),
        ("hidden_size", -32),
        ("num_hidden_layers", True),
        ("vocab_size", "119"),
        ("max_position_embeddings", 1 << 40),
        ("layer_norm_eps", "0"),
    ],
)
def test_a_config_out_of_range_is_refused(copy: Path, name: str, value: Any) -> None:
    change(copy / "config.json", **{name: value})
    with pytest.raises(ModelFileError, match=name):
        EncoderFile(copy)


def test_a_config_without_a_size_is_refused(copy: Path) -> None:
    raw = json.loads((copy / "config.json").read_text())
    del raw["intermediate_size"]
    (copy / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelFileError, match="intermediate_size"):
        EncoderFile(copy)


def test_other_pooling_and_further_modules_are_refused(copy: Path) -> None:
    pooling = copy / "1_Pooling" / "config.json"
    change(pooling, pooling_mode_cls_token=True)
    with pytest.raises(UnsupportedModelError, match="pooling_mode_cls_token"):
        EncoderFile(copy)
    change(pooling, pooling_mode_cls_token=False, pooling_mode_mean_tokens=False)
    with pytest.raises(UnsupportedModelError, match="nothing"):
        EncoderFile(copy)
    change(pooling, pooling_mode_mean_tokens=True)
    EncoderFile(copy)
    (copy / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense"}]')
    with pytest.raises(UnsupportedModelError, match="Dense"):
        EncoderFile(copy)
    for text in ("7", "{}", "[3]", "["):
        (copy / "modules.json").write_text(text)
        with pytest.raises(ModelFileError):
            EncoderFile(copy)


@pytest.mark.parametrize("limit", [2, 41, "20", True])
def test_a_length_that_the_model_has_no_places_for_is_refused(copy: Path, limit: Any) -> None:
    change(copy / "sentence_bert_config.json", max_seq_length=limit)
    with pytest.raises(ModelFileError, match="max_seq_length"):
        EncoderFile(copy)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda tensor: None, "missing"),
        (lambda tensor: tensor[:-1], "shape"),
        (lambda tensor: tensor.astype(np.int32), "I32"),
    ],
)
def test_a_missing_or_misshapen_tensor_is_named(copy: Path, make: Any, problem: str) -> None:
    change_tensors(copy, **{"layer.1.output.dense.bias": make})
    with pytest.raises(ModelFileError, match=problem) as caught:
        EncoderFile(copy)
    assert caught.value.field == "encoder.layer.1.output.dense.bias"


def test_a_tensor_that_would_be_left_out_is_refused(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    save_file({**tensors, "encoder.layer.3.gate": np.ones(3, np.float32)}, copy / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"encoder\.layer\.3\.gate"):
        EncoderFile(copy)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"])
def test_damaged_and_missing_files_are_refused(copy: Path, name: str) -> None:
    raw = (copy / name).read_bytes()
    (copy / name).write_bytes(raw[: len(raw) // 2])
    with pytest.raises(ModelFileError):
        SentenceEncoder(copy)
    (copy / name).unlink()
    if not name.startswith("1_"):
        with pytest.raises(ModelFileError):
            SentenceEncoder(copy)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": {"type": "None"}}, "cannot be read"),
        ({"post_processor": None}, "no tokens"),
        ({"model": {"type": "WordPiece", "vocab": {"[UNK]": 1, "x": 999}, "unk_token": "[UNK]"}}, "999"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(copy: Path, changes: dict[str, Any], problem: str) -> None:
    base = json.loads((copy / "tokenizer.json").read_text())["model"]
    if "model" in changes:
        changes = {"model": {**base, **changes["model"]}}
    change(copy / "tokenizer.json", **changes)
    with pytest.raises(ModelFileError, match=problem):
        SentenceEncoder(copy)


def test_a_config_is_checked_by_itself() -> None:
    with pytest.raises(ValueError, match=r"^hidden_size 10 is no multiple of 4"):
        BertConfig(100, 10, 1, 4, 20, 30)


# --- the arithmetic ---------------------------------------------------------------------------------------------------


def test_erf_keeps_to_its_bound() -> None:
    x = np.concatenate([np.linspace(-6, 6, 20_001), [-1e30, 1e30, 0.0]]).astype(np.float32)
    with np.errstate(all="raise", under="ignore"):
        found = erf(x)
    true = np.array([math.erf(value) for value in x.tolist()])
    assert np.abs(found - true).max() <= 5e-7
    exact = [value * 0.5 * (1 + math.erf(value / 2**0.5)) for value in x[:-3].tolist()]
    np.testing.assert_allclose(gelu(x[:-3]), exact, rtol=0, atol=3e-6)


@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 70))
def test_a_product_in_pieces_is_the_product(num_rows: int, num_in: int, num_out: int) -> None:
    rng = np.random.default_rng(num_rows)
    x, weight, bias = (
        rng.standard_normal(shape, np.float32) for shape in ((num_rows, num_in), (num_out, num_in), num_out)
    )
    np.testing.assert_allclose(products.Linear(weight, bias)(x), x @ weight.T + bias, rtol=1e-4, atol=1e-4)


def test_no_piece_is_large_enough_to_be_split_among_threads() -> None:
    for num_in, num_out in ((384, 1536), (1536, 384), (1024, 4096), (32, 50)):
        linear = products.Linear(np.zeros((num_out, num_in), np.float32), np.zeros(num_out, np.float32))
        pieces = linear._weight
        assert products.ROWS * pieces.shape[-2] * pieces.shape[-1] <= 1 << 18
        assert pieces.size == num_in * num_out
