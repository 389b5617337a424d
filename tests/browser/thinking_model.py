"""A model that thinks and then answers, always the same, and has one name for everything: each token has one successor.

Its layers are zeros, so a token's row of the embedding reaches the head unchanged, and the head points at what follows.
What precedes the reply is a line break, which the reply itself therefore does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from inference.tokenizer.vocabulary import byte_alphabet

CONTROLS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
HIDDEN = 1024
TEMPLATE = """\
{%- for m in messages %}
  {%- set content = m.content.split('</think>')[-1] if m.role == 'assistant' else m.content %}
  {{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def write_thinking_model(folder: Path, *, thought: list[str], answer: list[str], title: Sequence[str] = ()) -> Path:
    """The pieces become tokens: no two may be the same, and none a single character. title: what follows a star."""
    pieces = [*thought, *answer, *title]
    assert len(set(pieces)) == len(pieces), "a piece has one successor"
    char_of = {byte: char for char, byte in byte_alphabet().items()}
    written = {piece: "".join(char_of[byte] for byte in piece.encode()) for piece in pieces}
    vocab = {text: number for number, text in enumerate([*byte_alphabet(), *written.values()])}
    controls = {text: len(vocab) + number for number, text in enumerate(CONTROLS)}
    ids = vocab | controls | {piece: vocab[text] for piece, text in written.items()} | {"\n": vocab[char_of[ord("\n")]]}
    chains = (["\n", "<think>", *thought, "</think>", *answer, "<|im_end|>"], ["*", *title, "<|im_end|>"])
    folder.mkdir()
    _write_weights(folder, [[ids[text] for text in chain] for chain in chains], len(vocab) + len(controls))
    _write_tokenizer(folder, vocab, controls)
    return folder


def _write_weights(folder: Path, chains: list[list[int]], vocab_size: int) -> None:
    assert vocab_size <= HIDDEN
    embedding = np.eye(vocab_size, HIDDEN, dtype=np.float32)
    head = np.zeros((vocab_size, HIDDEN), np.float32)
    for chain in chains:
        head[chain[1:], chain[:-1]] = 1.0
    config: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": 2048,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": chains[0][-1],
    }
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    tensors["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        shapes = {
            "self_attn.q_proj": (1024, HIDDEN),
            "self_attn.k_proj": (256, HIDDEN),
            "self_attn.v_proj": (256, HIDDEN),
            "self_attn.o_proj": (HIDDEN, 1024),
            "mlp.gate_proj": (2048, HIDDEN),
            "mlp.up_proj": (2048, HIDDEN),
            "mlp.down_proj": (HIDDEN, 2048),
        }
        tensors |= {f"{name}.{part}.weight": np.zeros(shape, np.float32) for part, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def _write_tokenizer(folder: Path, vocab: dict[str, int], controls: dict[str, int]) -> None:
    added = [
        {"id": number, "content": text, "special": text.startswith("<|"), "single_word": False}
        | dict.fromkeys(("lstrip", "rstrip", "normalized"), False)
        for text, number in controls.items()
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    description = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(description))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}))
