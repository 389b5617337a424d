"""Makes the tiny models in `models/`, and what an independent implementation computes with them.

Run in an environment of its own; the test suite needs none of this:

    python3 -m venv fixtures-env
    fixtures-env/bin/pip install torch==2.13.0 transformers==5.24.0 numpy safetensors
    fixtures-env/bin/python tests/data/make_fixtures.py [NAME ...]

Each model is a Hugging Face directory as `transformers` writes it, its weights drawn from a seed and stored in float16.
`expected.npz` holds, for input i, computed in float32 with eager attention and without a cache:

    ids_i (T,)          the input
    rows_i (R,)         which positions' logits were kept
    logits_i (R, V)     those logits
    greedy_i (32,)      the ids that follow greedily
    window_i ()         max_model_len to load the model with; 0: what the model was made for

Weights are scaled so that every part matters: norms far from one, biases far from zero, attention and router far from
uniform. A seed is taken only if the best two logits of every greedy step lie MIN_MARGIN apart.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
MIN_MARGIN = 2e-3
NUM_GREEDY = 32
LONG = 600  # spans three tiles of the attention kernel

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB = len(CONTROLS) + 256


@dataclass(frozen=True)
class Fixture:
    """family: the prefix of the transformers classes. inputs: (length, max_model_len) of each."""

    family: str
    config: dict[str, Any]
    inputs: tuple[tuple[int, int], ...] = ((1, 0), (45, 0), (LONG, 0))


def base(**changes: Any) -> dict[str, Any]:
    """Two layers, grouped-query attention, a tied head."""
    return {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    } | changes


def rope(rope_type: str, rope_theta: float = 10_000.0, **parameters: Any) -> dict[str, Any]:
    return {"rope_type": rope_type, "rope_theta": rope_theta, **parameters}


MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "head_dim": 12}

FIXTURES = {
    "llama": Fixture("Llama", base()),
    "llama-multi-head-untied": Fixture(
        "Llama",
        base(hidden_size=42, num_attention_heads=3, num_key_value_heads=3, tie_word_embeddings=False),
    ),
    "llama-head-dim": Fixture("Llama", base(num_attention_heads=5, num_key_value_heads=1, hidden_size=40, head_dim=6)),
    "llama-bias": Fixture("Llama", base(attention_bias=True, mlp_bias=True)),
    "llama-linear": Fixture("Llama", base(rope_parameters=rope("linear", factor=4.0))),
    "llama-llama3": Fixture(
        "Llama",
        base(
            head_dim=16,
            rope_parameters=rope(
                "llama3",
                500_000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=128,
            ),
        ),
    ),
    "llama-dynamic": Fixture(
        "Llama",
        base(max_position_embeddings=384, rope_parameters=rope("dynamic", factor=4.0)),
        inputs=((1, 0), (45, 0), (350, 0)),
    ),
    "llama-yarn": Fixture(
        "Llama",
        base(
            head_dim=16,
            rope_parameters=rope(
                "yarn", factor=8.0, original_max_position_embeddings=128, beta_fast=16.0, beta_slow=2.0
            ),
        ),
    ),
    "mistral": Fixture("Mistral", base(sliding_window=37)),
    "qwen2": Fixture("Qwen2", base(max_window_layers=1, use_sliding_window=True, sliding_window=50)),
    "qwen2-yarn": Fixture(
        "Qwen2",
        base(
            num_attention_heads=7,
            num_key_value_heads=1,
            hidden_size=42,
            tie_word_embeddings=False,
            rope_parameters=rope(
                "yarn",
                1_000_000.0,
                factor=4.0,
                original_max_position_embeddings=256,
                truncate=False,
                mscale=1.5,
                mscale_all_dim=0.5,
            ),
        ),
    ),
    "qwen3": Fixture("Qwen3", base(head_dim=14, num_attention_heads=6, rope_parameters=rope("default", 1_000_000.0))),
    "qwen3-bias": Fixture("Qwen3", base(head_dim=10, attention_bias=True)),
    "qwen3_moe": Fixture("Qwen3Moe", base(norm_topk_prob=True, tie_word_embeddings=False, **MOE)),
    "qwen3_moe-some-dense": Fixture(
        "Qwen3Moe", base(norm_topk_prob=False, mlp_only_layers=[1], num_hidden_layers=3, **MOE)
    ),
    "qwen3_vl": Fixture(
        "Qwen3VL",
        {
            "text_config": base(
                head_dim=16,
                rope_parameters=rope("default", 5_000_000.0, mrope_section=[4, 2, 2], mrope_interleaved=True),
            ),
            "vision_config": {
                "depth": 1,
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_heads": 2,
                "patch_size": 2,
                "out_hidden_size": 32,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0],
            },
            "image_token_id": 3,
            "video_token_id": 4,
            "vision_start_token_id": 5,
            "vision_end_token_id": 6,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3_text": Fixture(
        "Gemma3",
        base(
            num_hidden_layers=3,
            head_dim=12,
            sliding_window=29,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            query_pre_attn_scalar=10,
            rope_parameters={
                "sliding_attention": rope("default", 10_000.0),
                "full_attention": rope("linear", 1_000_000.0, factor=8.0),
            },
        ),
    ),
    "gemma3": Fixture(
        "Gemma3",
        {
            "text_config": base(
                head_dim=8,
                sliding_window=31,
                layer_types=["full_attention", "sliding_attention"],
                query_pre_attn_scalar=5,
            ),
            "vision_config": {
                "model_type": "siglip_vision_model",
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 4,
                "patch_size": 2,
            },
            "mm_tokens_per_image": 1,
            "image_token_index": 1,
        },
    ),
    "smollm3": Fixture("SmolLM3", base(num_hidden_layers=3, no_rope_layers=[1, 0, 1])),
    "phi3": Fixture("Phi3", base(sliding_window=61, tie_word_embeddings=False)),
    "phi3-longrope": Fixture(
        "Phi3",
        base(
            num_attention_heads=2,
            num_key_value_heads=1,
            original_max_position_embeddings=128,
            rope_parameters=rope(
                "longrope",
                partial_rotary_factor=0.75,
                short_factor=[1.0, 1.1, 1.3, 1.2, 1.6, 2.0],
                long_factor=[1.0, 1.5, 2.5, 6.0, 7.0, 7.5],
            ),
        ),
        inputs=((1, 128), (90, 128), (LONG, 0)),
    ),
}


def build(fixture: Fixture, seed: int) -> Any:
    """A model whose weights have been drawn anew, rounded to float16 and put back into float32."""
    has_images = "vision_config" in fixture.config
    config_class = "Gemma3TextConfig" if fixture.family == "Gemma3" and not has_images else f"{fixture.family}Config"
    model_class = f"{fixture.family}For{'ConditionalGeneration' if has_images else 'CausalLM'}"
    config = getattr(transformers, config_class)(**fixture.config)
    model = getattr(transformers, model_class)._from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(scaled(name, drawn, fixture.family).half().float())
    return model


def scaled(name: str, drawn: torch.Tensor, family: str) -> torch.Tensor:
    if "embed_tokens" in name:
        return drawn / (12 if family == "Gemma3" else 3)  # Gemma multiplies it by the root of hidden_size
    if name in (
        "model.norm.weight",
        "model.language_model.norm.weight",
    ):  # of both signs: a tied head would repeat its input otherwise
        return drawn - float(family == "Gemma3")
    if name.endswith("norm.weight"):
        return 0.4 * drawn + (0 if family == "Gemma3" else 1)
    if drawn.ndim == 1:
        return 0.5 * drawn
    gain = 4.0 if name.endswith("mlp.gate.weight") else 1.6  # the router; everything else
    return gain * drawn / drawn.shape[-1] ** 0.5


@torch.no_grad()
def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    """(T, V)"""
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def expected(model: Any, fixture: Fixture) -> tuple[dict[str, np.ndarray], float]:
    """What goes into expected.npz, and the smallest margin."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    margin = float("inf")
    for index, (length, window) in enumerate(fixture.inputs):
        ids = rng.integers(len(CONTROLS), VOCAB, length).tolist()
        rows = sorted({0, length // 3, length // 2, length - 2, length - 1} & set(range(length)))
        arrays[f"ids_{index}"] = np.array(ids, np.int32)
        arrays[f"rows_{index}"] = np.array(rows, np.int32)
        arrays[f"logits_{index}"] = logits_of(model, ids)[rows].numpy()
        arrays[f"window_{index}"] = np.array(window, np.int32)
        greedy: list[int] = []
        for _ in range(NUM_GREEDY):
            best = logits_of(model, ids + greedy)[-1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            greedy.append(int(best.indices[0]))
        arrays[f"greedy_{index}"] = np.array(greedy, np.int32)
    return arrays, margin


def byte_alphabet() -> list[str]:
    """The character that byte-level BPE writes for each byte, in the order of the characters."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return sorted(chr(code) for code in [*shown, *(256 + index for index in range(len(hidden)))])


def write_tokenizer(path: Path) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokens = [*CONTROLS, *byte_alphabet()]
    content = {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": text, **flags} for index, text in enumerate(CONTROLS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "unk_token": None, "vocab": {t: i for i, t in enumerate(tokens)}, "merges": []},
    }
    (path / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    named = {"bos_token": CONTROLS[0], "eos_token": CONTROLS[2], "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(named, indent=1) + "\n")


def write(name: str, fixture: Fixture) -> None:
    path = HERE / "models" / name
    shutil.rmtree(path, ignore_errors=True)
    for seed in range(200):
        model = build(fixture, seed)
        arrays, margin = expected(model, fixture)
        if margin > MIN_MARGIN:
            break
    else:
        raise SystemExit(f"{name}: no seed keeps the best logits apart")
    model.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    weights = load_file(path / "model.safetensors")
    save_file({key: weight.half() for key, weight in weights.items()}, path / "model.safetensors", {"format": "pt"})
    write_tokenizer(path)
    np.savez_compressed(path / "expected.npz", **arrays)
    total = sum(file.stat().st_size for file in path.iterdir())
    spread = float(arrays["logits_1"].std())
    print(f"{name}: seed {seed}, margin {margin:.4f}, logits' deviation {spread:.2f}, {total / 1000:.0f} kB")


def main() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    for name in sys.argv[1:] or FIXTURES:
        write(name, FIXTURES[name])


if __name__ == "__main__":
    main()
