"""GGUF files come out as Hugging Face's names, row order and float32; what can not be run is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.architectures import GGUF_ARCHITECTURES, expected_shapes
from inference.formats.model_file import open_model_file
from tests.inference import tiny_models as tiny
from tests.inference.tiny_models import BOOL, F32, STRING, U32, Gguf

WRITTEN = [GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")]


def dequantised_types() -> list[GGMLQuantizationType]:
    found = []
    for kind, (_, block_bytes) in GGML_QUANT_SIZES.items():
        try:
            dequantize(np.zeros((1, block_bytes), np.uint8), kind)
        except NotImplementedError:
            continue
        found.append(kind)
    return found


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.name)
def test_every_written_type_comes_back_as_the_weights_that_it_holds(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    weights = tiny.weights(np.random.default_rng(1))
    model = open_model_file(tiny.tiny_gguf(kind=kind, tensors=weights).write(tmp_path / "m.gguf"))
    assert set(model.tensor_names()) == set(weights)
    for name, weight in weights.items():
        stored = kind if weight.ndim == 2 else GGMLQuantizationType.F32
        # a row is quantised by itself, so that the converter's order of rows does not matter here
        expected = dequantize(quantize(weight, stored), stored).reshape(weight.shape)
        loaded = model.tensor(name)
        assert loaded.dtype == np.float32
        assert loaded.flags.c_contiguous
        np.testing.assert_array_equal(loaded, expected)


@pytest.mark.parametrize("kind", dequantised_types(), ids=lambda kind: kind.name)
def test_every_type_that_the_package_dequantises_is_read(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    rng = np.random.default_rng(2)
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    width = 256
    made = tiny.tiny_gguf()
    made.set("llama.feed_forward_length", U32, width)
    raw = rng.integers(0, 256, (tiny.HIDDEN, width // block_size * block_bytes), dtype=np.uint8)
    for layer in range(tiny.LAYERS):
        for part in ("gate", "up"):
            zeros = np.zeros((width, tiny.HIDDEN), np.float32)
            made.tensors[f"blk.{layer}.ffn_{part}.weight"] = ((tiny.HIDDEN, width), 0, zeros.tobytes())
        made.tensors[f"blk.{layer}.ffn_down.weight"] = ((width, tiny.HIDDEN), int(kind), raw.tobytes())
    model = open_model_file(made.write(tmp_path / "m.gguf"))
    with np.errstate(all="ignore"):  # random scales overflow
        loaded, expected = model.tensor("model.layers.1.mlp.down_proj.weight"), dequantize(raw, kind)
    np.testing.assert_array_equal(loaded.view(np.uint32), expected.view(np.uint32))


def test_the_config_is_read_from_the_metadata(tmp_path: Path) -> None:
    model = open_model_file(tiny.tiny_gguf().write(tmp_path / "m.gguf"))
    config = model.config
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (64, 96, 2)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 16)
    assert (config.max_position_embeddings, config.rope_theta) == (128, 10_000.0)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert (config.vocab_size, config.bos_token_id, config.eos_token_ids) == (len(tiny.TOKENS), 1, (2,))
    assert config.tie_word_embeddings
    assert (model.name, model.architecture) == ("m", "llama")
    assert not model.has_tensor("lm_head.weight")


def test_an_output_matrix_of_its_own_unties_the_embedding(tmp_path: Path) -> None:
    made = tiny.tiny_gguf()
    output = np.random.default_rng(3).standard_normal((len(tiny.TOKENS), tiny.HIDDEN)).astype(np.float32)
    made.tensors["output.weight"] = (output.shape[::-1], 0, output.tobytes())
    model = open_model_file(made.write(tmp_path / "m.gguf"))
    assert not model.config.tie_word_embeddings
    np.testing.assert_array_equal(model.tensor("lm_head.weight"), output)


def test_every_end_token_that_the_file_names_is_an_end_token(tmp_path: Path) -> None:
    made = tiny.tiny_gguf()
    made.set("tokenizer.ggml.eot_token_id", U32, 0)
    assert open_model_file(made.write(tmp_path / "m.gguf")).config.eos_token_ids == (2, 0)


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    made = tiny.tiny_gguf()
    first = open_model_file(made.write(tmp_path / "a.gguf")).digest
    assert open_model_file(made.write(tmp_path / "b.gguf")).digest == first
    made.set("general.name", STRING, "other")
    assert open_model_file(made.write(tmp_path / "c.gguf")).digest != first


def test_a_tensor_that_does_not_exist_is_named(tmp_path: Path) -> None:
    model = open_model_file(tiny.tiny_gguf().write(tmp_path / "m.gguf"))
    with pytest.raises(ModelFileError) as caught:
        model.tensor("model.layers.9.mlp.up_proj.weight")
    assert caught.value.field == "model.layers.9.mlp.up_proj.weight"


def without_tensor(made: Gguf) -> None:
    del made.tensors["blk.1.ffn_up.weight"]


def misshapen(made: Gguf) -> None:
    made.tensors["blk.1.ffn_up.weight"] = ((64, 64), 0, np.zeros((64, 64), np.float32).tobytes())


@pytest.mark.parametrize("damage", [without_tensor, misshapen])
def test_a_missing_or_misshapen_tensor_is_named_when_the_file_is_opened(tmp_path: Path, damage: Any) -> None:
    made = tiny.tiny_gguf()
    damage(made)
    with pytest.raises(ModelFileError) as caught:
        open_model_file(made.write(tmp_path / "m.gguf"))
    assert caught.value.field == "blk.1.ffn_up.weight"


@pytest.mark.parametrize(
    ("key", "kind", "payload"),
    [
        ("general.architecture", STRING, "mamba"),
        ("llama.rope.scaling.type", STRING, "proportional"),
        ("llama.rope.scaling.factor", F32, 4.0),
        ("llama.rope.scaling.yarn_ext_factor", F32, 0.5),
        ("llama.rope.scaling.attn_factor", F32, 1.2),
        ("llama.rope.scaling.alpha", F32, 1000.0),
        ("llama.final_logit_softcapping", F32, 30.0),
        ("llama.rope.scale_linear", F32, 0.5),
        ("llama.expert_count", U32, 8),
        ("llama.attention.sliding_window", U32, 4096),
        ("llama.rope.dimension_count", U32, 8),
        ("llama.attention.value_length", U32, 32),
        ("llama.attention.causal", BOOL, False),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(tmp_path: Path, key: str, kind: int, payload: Any) -> None:
    made = tiny.tiny_gguf()
    made.set(key, kind, payload)
    with pytest.raises(UnsupportedModelError) as caught:
        open_model_file(made.write(tmp_path / "m.gguf"))
    assert caught.value.field == key


def test_an_unknown_architecture_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    made = tiny.tiny_gguf()
    made.set("general.architecture", STRING, "mamba")
    with pytest.raises(
        UnsupportedModelError, match=r"'mamba'.*known: gemma3, llama, phi3, qwen2, qwen3, qwen3moe"
    ) as caught:
        open_model_file(made.write(tmp_path / "m.gguf"))
    assert caught.value.known == tuple(GGUF_ARCHITECTURES)


@pytest.mark.parametrize("name", ["blk.0.attn_norm.bias", "rope_factors.weight", "blk.0.ffn_gate_exps.weight"])
def test_a_tensor_that_llama_does_not_have_is_refused_not_ignored(tmp_path: Path, name: str) -> None:
    made = tiny.tiny_gguf()
    made.tensors[name] = ((64,), 0, np.zeros(64, np.float32).tobytes())
    with pytest.raises(UnsupportedModelError) as caught:
        open_model_file(made.write(tmp_path / "m.gguf"))
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("only", "missing"), [("blk.0.attn_q.bias", "blk.0.attn_k.bias"), ("blk.0.ffn_gate.bias", "blk.0.ffn_up.bias")]
)
def test_some_biases_without_the_others_are_refused(tmp_path: Path, only: str, missing: str) -> None:
    made = tiny.tiny_gguf()
    size = tiny.FFN if "ffn" in only else tiny.HIDDEN
    made.tensors[only] = ((size,), 0, np.zeros(size, np.float32).tobytes())
    with pytest.raises(ModelFileError) as caught:
        open_model_file(made.write(tmp_path / "m.gguf"))
    assert caught.value.field == missing


@pytest.mark.parametrize("factors", [np.zeros(8), np.ones(7), np.ones((8, 1)), np.full(8, np.nan)], ids=len)
def test_rotary_factors_that_make_no_sense_are_refused(tmp_path: Path, factors: np.ndarray) -> None:
    made = tiny.tiny_gguf()
    made.tensors["rope_freqs.weight"] = (factors.shape[::-1], 0, factors.astype(np.float32).tobytes())
    with pytest.raises(ModelFileError):
        open_model_file(made.write(tmp_path / "m.gguf"))


def test_a_type_without_a_dequantiser_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    made = tiny.tiny_gguf()
    name = "blk.0.ffn_up.weight"
    dims, _, _ = made.tensors[name]
    made.tensors[name] = (dims, int(GGMLQuantizationType.I8), np.zeros(dims[::-1], np.int8).tobytes())
    with pytest.raises(UnsupportedModelError, match="I8") as caught:
        open_model_file(made.write(tmp_path / "m.gguf"))
    assert caught.value.field == name
    assert "Q4_1" in caught.value.known


@pytest.mark.parametrize("path", ["nothing.gguf", "empty.gguf", "directory"])
def test_what_is_no_model_is_said_to_be_none(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "directory").mkdir()
    with pytest.raises(ModelFileError):
        open_model_file(tmp_path / path)


@pytest.mark.model
def test_the_default_model_is_read_whole(model_path: Path) -> None:
    model = open_model_file(model_path)
    assert model.config.num_hidden_layers == 30
    assert model.config.rope_theta == 100_000.0
    assert model.digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert {name: model.tensor(name).shape for name in model.tensor_names()} == expected_shapes(model.config)
