"""Makes the tiny sentence encoder in `encoders/`, and what an independent implementation computes with it.

Run in the environment that make_fixtures.py describes. `expected.npz` holds vectors (N, D) f32 of the texts in
`texts.json`, computed by `transformers` in float32 with eager attention, all of them as one padded batch under a mask:
the mean over the tokens that are there, then length 1. Weights are drawn so that every part matters, and stored in
float16.
"""

from __future__ import annotations

import json
import shutil
import string
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

PATH = Path(__file__).parent / "encoders" / "bert"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = ["cat", "pet", "my", "is", "called", "##s", "##ing", "what", "猫", "我", "的"]
MAX_TOKENS = 21  # less than the model has places for
TEXTS = [
    "My cat is called Mitzi",
    "what pets",
    "",
    "CAFÉ, calling?!",
    "我的猫 cat",
    "☃ " * 3,
    "a much longer text than the encoder looks at, so the rest of it is cut off " * 3,
    "x",
]


def write_tokenizer() -> Tokenizer:
    letters = string.ascii_lowercase + string.digits
    tokens = [*SPECIAL, *letters, *("##" + letter for letter in letters), *string.punctuation, *WORDS]
    ends = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content = {
        "version": "1.0",
        # Both as real files have them; neither is what the encoder is to do.
        "truncation": {"max_length": 7, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": [{"id": index, "content": text, **flags} for index, text in enumerate(SPECIAL)],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [ends[0], {"Sequence": {"id": "A", "type_id": 0}}, ends[1]],
            "pair": [
                ends[0],
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
                ends[1],
            ],
            "special_tokens": {
                name: {"id": name, "ids": [SPECIAL.index(name)], "tokens": [name]} for name in SPECIAL[2:]
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: index for index, token in enumerate(tokens)},
        },
    }
    (PATH / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    tokenizer = Tokenizer.from_file(str(PATH / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()
    return tokenizer


def build() -> transformers.BertModel:
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + 2 * 36 + len(string.punctuation) + len(WORDS),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=50,
        max_position_embeddings=40,
        layer_norm_eps=1e-5,
    )
    model = transformers.BertModel._from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if name.endswith("LayerNorm.weight"):
                drawn = 1 + 0.4 * drawn
            elif drawn.ndim == 1:
                drawn = 0.5 * drawn
            elif "embeddings" not in name:
                drawn = 1.6 * drawn / drawn.shape[-1] ** 0.5
            parameter.copy_(drawn.half().float())
    return model


@torch.no_grad()
def vectors_of(model: transformers.BertModel, tokenizer: Tokenizer) -> np.ndarray:
    encoded = tokenizer.encode_batch(TEXTS)
    ids = torch.tensor([each.ids for each in encoded])
    mask = torch.tensor([each.attention_mask for each in encoded])
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(mean).numpy()


def main() -> None:
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    shutil.rmtree(PATH, ignore_errors=True)
    model = build()
    model.save_pretrained(PATH)
    weights = load_file(PATH / "model.safetensors")
    save_file({key: weight.half() for key, weight in weights.items()}, PATH / "model.safetensors", {"format": "pt"})
    vectors = vectors_of(model, write_tokenizer())
    pooling = PATH / "1_Pooling"
    pooling.mkdir()
    modes = {"cls_token": False, "mean_tokens": True, "max_tokens": False}
    (pooling / "config.json").write_text(
        json.dumps({f"pooling_mode_{name}": value for name, value in modes.items()}) + "\n"
    )
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": i, "name": str(i), "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)
    ]
    (PATH / "modules.json").write_text(json.dumps(modules, indent=1) + "\n")
    (PATH / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": MAX_TOKENS}) + "\n")
    (PATH / "texts.json").write_text(json.dumps(TEXTS, ensure_ascii=False, indent=1) + "\n")
    np.savez_compressed(PATH / "expected.npz", vectors=vectors)
    print(np.round(vectors @ vectors.T, 2), sum(file.stat().st_size for file in PATH.glob("**/*") if file.is_file()))


if __name__ == "__main__":
    main()
