"""A sentence encoder that knows exactly what a test says: real files of a real BERT whose weights mix nothing.

Words of one group mean the same, those of different groups have nothing in common, and others mean nothing at all: a
word's vector goes through layers of zeros, so what comes out is the mean of the words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from inference.embedding.bert import BertConfig, tensor_shapes

_SPECIAL = ("[UNK]", "[CLS]", "[SEP]")
_MAX_TOKENS = 64


def write_encoder(path: Path, *groups: Sequence[str]) -> Path:
    """At most seven groups of lower-case words."""
    vocab = [*_SPECIAL, *(word for group in groups for word in group)]
    config = BertConfig(len(vocab), 16, 1, 1, 4, _MAX_TOKENS)
    tensors = {
        name: np.full(shape, name.endswith("LayerNorm.weight"), np.float32)
        for name, shape in tensor_shapes(config).items()
    }
    words = tensors["embeddings.word_embeddings.weight"]
    for number, group in enumerate(groups):
        for word in group:  # one up and one down: LayerNorm leaves their direction as it is
            words[vocab.index(word), 2 * number : 2 * number + 2] = 1, -1
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "model.safetensors")
    fields = {name: getattr(config, name) for name in BertConfig.__dataclass_fields__}
    (path / "config.json").write_text(json.dumps({"model_type": "bert", **fields}))
    (path / "tokenizer.json").write_text(json.dumps(_tokenizer(vocab)))
    return path


def _tokenizer(vocab: Sequence[str]) -> dict[str, object]:
    ends = [{"SpecialToken": {"id": name, "type_id": 0}} for name in _SPECIAL[1:]]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [ends[0], {"Sequence": {"id": "A", "type_id": 0}}, ends[1]],
            "pair": [ends[0], {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {
                name: {"id": name, "ids": [vocab.index(name)], "tokens": [name]} for name in _SPECIAL[1:]
            },
        },
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: index for index, word in enumerate(vocab)},
            "unk_token": "[UNK]",
        },
    }
