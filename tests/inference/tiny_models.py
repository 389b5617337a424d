"""Tiny model files made on the spot: a Llama of a few thousand weights, as GGUF and as a Hugging Face directory.

The GGUF bytes are written here rather than by a library, so that a test can make any one of them wrong.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers.pre_tokenizers import ByteLevel

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 16, 2
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = sorted(ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld"]
TOKENS = [*CONTROLS, *BYTES, *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def array(kind: int, items: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def value(kind: int, payload: Any) -> bytes:
    formats = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}
    return string(payload) if kind == STRING else struct.pack(formats[kind], payload)


@dataclass
class Gguf:
    """The parts of a GGUF file; bytes() puts them together, true or false as they are."""

    metadata: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]] = field(default_factory=dict)  # dims fastest first
    magic: bytes = b"GGUF"
    version: int = 3
    num_tensors: int | None = None
    num_keys: int | None = None
    offsets: dict[str, int] = field(default_factory=dict)
    num_dims: dict[str, int] = field(default_factory=dict)

    def set(self, key: str, kind: int, payload: Any) -> None:
        self.metadata[key] = (kind, value(kind, payload))

    def set_array(self, key: str, kind: int, items: list[Any]) -> None:
        self.metadata[key] = (ARRAY, array(kind, [value(kind, item) for item in items]))

    def header(self) -> bytes:
        return self._parts()[0]

    def bytes(self) -> bytes:
        header, data = self._parts()
        return header + b"\0" * (-len(header) % 32) + data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path

    def _parts(self) -> tuple[bytes, bytes]:
        data = b""
        infos = b""
        for name, (dims, kind, raw) in self.tensors.items():
            offset = self.offsets.get(name, len(data))
            infos += string(name) + struct.pack("<I", self.num_dims.get(name, len(dims)))
            infos += b"".join(struct.pack("<Q", dim) for dim in dims) + struct.pack("<IQ", kind, offset)
            data += raw + b"\0" * (-len(raw) % 32)
        keys = b"".join(string(key) + struct.pack("<I", kind) + raw for key, (kind, raw) in self.metadata.items())
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.metadata) if self.num_keys is None else self.num_keys
        return self.magic + struct.pack("<IQQ", self.version, num_tensors, num_keys) + keys + infos, data


def weights(rng: np.random.Generator, *, vocab_size: int = len(TOKENS)) -> dict[str, NDArray[np.float32]]:
    """Under Hugging Face's names; tied embeddings."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab_size, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (HIDDEN,),
            prefix + "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            prefix + "post_attention_layernorm.weight": (HIDDEN,),
            prefix + "mlp.gate_proj.weight": (FFN, HIDDEN),
            prefix + "mlp.up_proj.weight": (FFN, HIDDEN),
            prefix + "mlp.down_proj.weight": (HIDDEN, FFN),
        }
    shapes["model.norm.weight"] = (HIDDEN,)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in fixed:
        return fixed[name]
    parts = name.split(".")
    return f"blk.{parts[2]}.{GGUF_PARTS[parts[-2]]}.weight"


def permute(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """As llama.cpp's converter stores q and k (LlamaModel.permute)."""
    half = len(weight) // num_heads // 2
    return weight.reshape(num_heads, 2, half, -1).swapaxes(1, 2).reshape(weight.shape)


def tiny_gguf(
    *, kind: GGMLQuantizationType = GGMLQuantizationType.F32, tensors: dict[str, NDArray[np.float32]] | None = None
) -> Gguf:
    """A sound file. Matrices have the type `kind`, vectors F32."""
    made = Gguf()
    for key, size in {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "rope.dimension_count": HEAD_DIM,
    }.items():
        made.set(f"llama.{key}", U32, size)
    made.set("general.architecture", STRING, "llama")
    made.set("general.name", STRING, "tiny")
    made.set("llama.attention.layer_norm_rms_epsilon", F32, 1e-5)
    made.set("llama.rope.freq_base", F32, 10_000.0)
    made.set("tokenizer.ggml.model", STRING, "gpt2")
    made.set("tokenizer.ggml.pre", STRING, "gpt-2")
    made.set_array("tokenizer.ggml.tokens", STRING, TOKENS)
    made.set_array("tokenizer.ggml.token_type", I32, [3] * len(CONTROLS) + [1] * (len(TOKENS) - len(CONTROLS)))
    made.set_array("tokenizer.ggml.merges", STRING, MERGES)
    made.set("tokenizer.ggml.bos_token_id", U32, 1)
    made.set("tokenizer.ggml.eos_token_id", U32, 2)
    made.set("tokenizer.chat_template", STRING, TEMPLATE)
    for name, weight in (tensors or weights(np.random.default_rng(0))).items():
        stored = weight
        if "q_proj" in name or "k_proj" in name:
            stored = permute(weight, HEADS if "q_proj" in name else KV_HEADS)
        as_kind = kind if weight.ndim == 2 else GGMLQuantizationType.F32
        made.tensors[gguf_name(name)] = (weight.shape[::-1], int(as_kind), quantize(stored, as_kind).tobytes())
    return made


def tiny_config() -> dict[str, Any]:
    """config.json of the same model."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": len(TOKENS),
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def tiny_tokenizer_json() -> dict[str, Any]:
    """tokenizer.json of the same model."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in enumerate(CONTROLS)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "unk_token": None,
            "vocab": {token: i for i, token in enumerate(TOKENS)},
            "merges": MERGES,
        },
    }


def write_directory(
    path: Path,
    tensors: dict[str, NDArray[Any]],
    *,
    config: dict[str, Any] | None = None,
    num_shards: int = 1,
) -> Path:
    """A Hugging Face directory; with several shards, and their index."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(tiny_config() if config is None else config))
    (path / "tokenizer.json").write_text(json.dumps(tiny_tokenizer_json()))
    tokenizer_config = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    if num_shards == 1:
        save_file(tensors, path / "model.safetensors")
        return path
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[shard::num_shards]}
        save_file(part, path / file)
        weight_map |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path
