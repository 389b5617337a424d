"""No GGUF header, however wrong, costs more than a second or 50 MB, and each is refused with the field named."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from inference.errors import ModelFileError
from inference.formats.model_file import open_model_file
from tests.examples import examples
from tests.inference import tiny_models as tiny
from tests.inference.tiny_models import ARRAY, F32, I32, STRING, U32, U64, Gguf, string
from tests.patience import soon_done

NORM = "output_norm.weight"
EMBEDDING = "token_embd.weight"


def refused(path: Path) -> ModelFileError:
    """The error that opening the file ends in, after little time and memory."""
    tracemalloc.start()
    try:
        with soon_done(), pytest.raises(ModelFileError) as caught:
            open_model_file(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 << 20
    return caught.value


def nested_arrays(depth: int) -> bytes:
    return b"".join(struct.pack("<IQ", ARRAY, 1) for _ in range(depth)) + struct.pack("<IQI", U32, 1, 7)


def put(key: str, kind: int, raw: bytes) -> Callable[[Gguf], None]:
    def damage(made: Gguf) -> None:
        made.metadata[key] = (kind, raw)

    return damage


def set_value(key: str, kind: int, payload: object) -> Callable[[Gguf], None]:
    return lambda made: made.set(key, kind, payload)


def set_field(**fields: object) -> Callable[[Gguf], None]:
    def damage(made: Gguf) -> None:
        for name, payload in fields.items():
            setattr(made, name, payload)

    return damage


def tensor(name: str, dims: tuple[int, ...], kind: int = 0) -> Callable[[Gguf], None]:
    def damage(made: Gguf) -> None:
        made.tensors[name] = (dims, kind, made.tensors[name][2])

    return damage


def token(index: int, text: str, kind: int) -> Callable[[Gguf], None]:
    def damage(made: Gguf) -> None:
        tokens = list(tiny.TOKENS)
        tokens[index] = text
        kinds = [3] * len(tiny.CONTROLS) + [1] * (len(tokens) - len(tiny.CONTROLS))
        kinds[index] = kind
        made.set_array("tokenizer.ggml.tokens", STRING, tokens)
        made.set_array("tokenizer.ggml.token_type", I32, kinds)

    return damage


def one_token_less(made: Gguf) -> None:
    made.set_array("tokenizer.ggml.tokens", STRING, tiny.TOKENS[:-1])
    made.set_array("tokenizer.ggml.token_type", I32, [1] * (len(tiny.TOKENS) - 1))


CORPUS: dict[str, tuple[Callable[[Gguf], None], str]] = {
    "magic": (set_field(magic=b"GGML"), "magic"),
    "version 1": (set_field(version=1), "version"),
    "version 4": (set_field(version=4), "version"),
    "big-endian": (set_field(version=3 << 24), "version"),
    "tensor count 2^62": (set_field(num_tensors=1 << 62), "tensor_count"),
    "kv count 2^62": (set_field(num_keys=1 << 62), "kv_count"),
    "string length 2^63": (put("general.name", STRING, struct.pack("<Q", 1 << 63)), "general.name"),
    "string not UTF-8": (put("general.name", STRING, string(b"\xff\xfe")), "general.name"),
    "array length 2^40": (put("x", ARRAY, struct.pack("<IQ", U32, 1 << 40)), "x"),
    "array of strings, length 2^40": (put("x", ARRAY, struct.pack("<IQ", STRING, 1 << 40)), "x"),
    "array nesting 65": (put("x", ARRAY, nested_arrays(65)), "x"),
    "array of unknown type": (put("x", ARRAY, struct.pack("<IQ", 99, 1)), "x"),
    "unknown value type": (put("x", 99, b""), "x"),
    "0 dimensions": (set_field(num_dims={NORM: 0}), NORM),
    "5 dimensions": (set_field(num_dims={NORM: 5}), NORM),
    "2^31 dimensions": (set_field(num_dims={NORM: 1 << 31}), NORM),
    "a dimension of 0": (tensor(NORM, (0,)), NORM),
    "product of dimensions wraps": (tensor(EMBEDDING, (1 << 32, 1 << 32)), EMBEDDING),
    "offset not aligned": (set_field(offsets={NORM: 33}), NORM),
    "offset beyond the end": (set_field(offsets={NORM: 1 << 40}), NORM),
    "offset that wraps": (set_field(offsets={NORM: (1 << 64) - 32}), NORM),
    "overlapping": (set_field(offsets={NORM: 0}), NORM),
    "alignment 0": (set_value("general.alignment", U32, 0), "general.alignment"),
    "alignment 3": (set_value("general.alignment", U32, 3), "general.alignment"),
    "alignment 2^31": (set_value("general.alignment", U32, 1 << 31), "general.alignment"),
    "alignment is text": (set_value("general.alignment", STRING, "32"), "general.alignment"),
    "unknown tensor type": (tensor(NORM, (tiny.HIDDEN,), 250), NORM),
    "row is no whole block": (tensor(NORM, (31,), 2), NORM),
    "block_count 2^31": (set_value("llama.block_count", U32, 1 << 31), "num_hidden_layers"),
    "block_count 513": (set_value("llama.block_count", U32, 513), "num_hidden_layers"),
    "block_count is text": (set_value("llama.block_count", STRING, "2"), "llama.block_count"),
    "head_count 0": (set_value("llama.attention.head_count", U32, 0), "llama.attention.head_count"),
    "head_count_kv 0": (set_value("llama.attention.head_count_kv", U32, 0), "num_key_value_heads"),
    "head_count_kv does not divide": (set_value("llama.attention.head_count_kv", U32, 3), "num_attention_heads"),
    "rope base 0": (set_value("llama.rope.freq_base", F32, 0.0), "rope_theta"),
    "rope base NaN": (set_value("llama.rope.freq_base", F32, float("nan")), "rope_theta"),
    "epsilon NaN": (set_value("llama.attention.layer_norm_rms_epsilon", F32, float("nan")), "rms_norm_eps"),
    "vocabulary is not the embedding": (one_token_less, EMBEDDING),
    "byte token <0x-1>": (token(9, "<0x-1>", 6), "tokenizer.ggml.tokens"),
    "duplicate token": (token(9, tiny.TOKENS[10], 1), "tokenizer.ggml.tokens"),
    "unknown token type": (token(9, "x y", 77), "tokenizer.ggml.token_type"),
    "EOS beyond the vocabulary": (set_value("tokenizer.ggml.eos_token_id", U32, 9999), "tokenizer.ggml.eos_token_id"),
    "EOS huge": (set_value("tokenizer.ggml.eos_token_id", U64, 1 << 63), "tokenizer.ggml.eos_token_id"),
}


@pytest.mark.parametrize("name", CORPUS)
def test_a_hostile_header_is_refused_quickly_with_its_field(tmp_path: Path, name: str) -> None:
    damage, field = CORPUS[name]
    made = tiny.tiny_gguf()
    damage(made)
    assert refused(made.write(tmp_path / "m.gguf")).field == field


def test_the_49_bytes_that_hang_a_reader_are_refused(tmp_path: Path) -> None:
    raw = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("a") + struct.pack("<IIQ", ARRAY, U32, 1 << 40)
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    assert len(raw) == 49
    assert refused(path).field == "a"


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    made = tiny.tiny_gguf()
    raw = made.bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(raw.replace(b"blk.1.attn_norm.weight", b"blk.0.attn_norm.weight"))
    assert refused(path).field == "blk.0.attn_norm.weight"


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    made = tiny.tiny_gguf()
    raw = made.bytes()
    path = tmp_path / "m.gguf"
    for size in [*range(1, 200), *range(200, len(raw), 4096), len(raw) - 1]:
        path.write_bytes(raw[:size])
        assert refused(path).field


def test_a_truncated_tensor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny.tiny_gguf().bytes()[:-1])
    error = refused(path)
    assert error.field == NORM
    assert "truncated" in str(error)


RAW = tiny.tiny_gguf().bytes()
HEADER_BITS = 8 * len(tiny.tiny_gguf().header())


@seed(20260816)
@settings(
    max_examples=examples(100),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(bits=st.lists(st.integers(0, HEADER_BITS - 1), min_size=20, max_size=20))
def test_a_flipped_bit_of_the_header_is_refused_or_harmless(tmp_path: Path, bits: list[int]) -> None:
    path = tmp_path / "m.gguf"
    for bit in bits:  # each by itself: 2,000 in all
        raw = bytearray(RAW)
        raw[bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)
        with soon_done(), suppress(ModelFileError), np.errstate(all="ignore"):
            model = open_model_file(path)
            for name in model.tensor_names():
                model.tensor(name)
