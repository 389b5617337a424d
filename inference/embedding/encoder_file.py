"""A folder with a sentence encoder, as `sentence-transformers` writes it, checked before any weight is read."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

from inference.embedding.bert import BertConfig, tensor_shapes
from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.architectures import check_shapes
from inference.formats.file_bytes import FileBytes, digest_files
from inference.formats.json_files import build, parse_json, read_json, read_text
from inference.formats.numbers import FLOAT_TYPES, as_f32
from inference.formats.safetensors_dir import MAX_TOKENIZER_BYTES, read_shards
from inference.types import F32

ARCHITECTURES = ("bert",)
_PREFIX = "bert."  # before all names, where the encoder was stored with a head
_HEADS = ("pooler.", "cls.")  # of no use here: of the hidden states the mean is taken
_VERSION = b"1"  # of the computation: another one makes other vectors, which must not be compared with these
_MODULES = ("Transformer", "Pooling", "Normalize")


class EncoderFile:
    """Opened by reading the JSON files and the headers. fingerprint: 32 hex digits of all that decides a vector.

    max_tokens: of a text, [CLS] and [SEP] included; the rest of a longer one is not looked at.
    Raises ModelFileError for what is missing or damaged, UnsupportedModelError for what would be computed otherwise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        raw = read_json(path / "config.json")
        self.config = _read_config(path / "config.json", raw)
        _check_modules(path)
        self.max_tokens = _max_tokens(path, self.config)
        self.tokenizer_json = read_text(path / "tokenizer.json", MAX_TOKENIZER_BYTES)
        parse_json(path / "tokenizer.json", self.tokenizer_json)
        self._shards, self._tensors = read_shards(path)
        is_prefixed = f"{_PREFIX}embeddings.word_embeddings.weight" in self._tensors
        self._prefix = _PREFIX if is_prefixed else ""
        self._check_tensors()

    def _check_tensors(self) -> None:
        expected = {self._prefix + name: shape for name, shape in tensor_shapes(self.config).items()}
        skipped = (*_HEADS, *(self._prefix + head for head in _HEADS))
        ignored = {name for name in self._tensors if name.startswith(skipped)}
        ignored.add(f"{self._prefix}embeddings.position_ids")  # 0, 1, 2, ...
        check_shapes(self.path, expected, {name: at.shape for name, (_, at) in self._tensors.items()}, ignored)
        for name in expected:
            dtype = self._tensors[name][1].dtype
            if dtype not in FLOAT_TYPES:
                raise UnsupportedModelError(self.path, f"dtype {dtype} is not supported", field=name, known=FLOAT_TYPES)

    def tensor(self, name: str) -> F32:
        """The tensor as float32. Raises ModelFileError when its file was cut short meanwhile."""
        file, stored = self._tensors[self._prefix + name]
        return as_f32(self._shards[file].read(stored.offset, stored.nbytes), stored.dtype).reshape(stored.shape)

    @cached_property
    def fingerprint(self) -> str:
        """Reads all files once."""
        files = digest_files(
            (FileBytes(self.path / "config.json"), *(file for _, file in sorted(self._shards.items())))
        )
        parts = (_VERSION, files.encode(), str(self.max_tokens).encode(), self.tokenizer_json.encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _read_config(path: Path, raw: dict[str, Any]) -> BertConfig:
    kind = raw.get("model_type")
    if kind not in ARCHITECTURES:
        problem = f"architecture {str(kind)[:60]!r} is no sentence encoder that can be run"
        raise UnsupportedModelError(path, problem, field="model_type", known=ARCHITECTURES)
    for name, legal in (("hidden_act", "gelu"), ("position_embedding_type", "absolute"), ("is_decoder", False)):
        if raw.get(name, legal) != legal:
            raise UnsupportedModelError(
                path, f"{str(raw[name])[:40]!r} is not supported", field=name, known=(str(legal),)
            )
    names = BertConfig.__dataclass_fields__
    missing = [name for name in names if name not in raw and name not in ("type_vocab_size", "layer_norm_eps")]
    if missing:
        raise ModelFileError(path, "the field is missing", field=missing[0])
    return build(path, BertConfig, **{name: raw[name] for name in names if name in raw})


def _check_modules(path: Path) -> None:
    """What stands behind the encoder: the mean, and nothing that changes its direction. Without a word: the mean."""
    modules = path / "modules.json"
    if modules.exists():
        # A list, which parse_json takes inside an object only.
        listed = parse_json(modules, f'{{"modules": {read_text(modules)}}}')["modules"]
        if not isinstance(listed, list) or not listed or not all(isinstance(module, dict) for module in listed):
            raise ModelFileError(modules, "not a list of JSON objects")
        for kind in (str(module.get("type")) for module in listed):
            if kind.rsplit(".", 1)[-1] not in _MODULES:
                raise UnsupportedModelError(modules, f"module {kind[:80]!r} is not supported", known=_MODULES)
    pooling = path / "1_Pooling" / "config.json"
    if pooling.exists():
        raw = read_json(pooling)
        modes = {name for name, value in raw.items() if name.startswith("pooling_mode_") and value is True}
        if modes - {"pooling_mode_mean_tokens"} or raw.get("pooling_mode_mean_tokens") is not True:
            problem = f"pooling by {', '.join(sorted(modes)) or 'nothing'} is not supported"
            raise UnsupportedModelError(pooling, problem, known=("pooling_mode_mean_tokens",))


def _max_tokens(path: Path, config: BertConfig) -> int:
    stated = path / "sentence_bert_config.json"
    limit = read_json(stated).get("max_seq_length") if stated.exists() else None
    if limit is None:
        return config.max_position_embeddings
    if not isinstance(limit, int) or isinstance(limit, bool) or not 3 <= limit <= config.max_position_embeddings:
        problem = f"{str(limit)[:40]!r}; legal are whole numbers from 3 to {config.max_position_embeddings}"
        raise ModelFileError(stated, problem, field="max_seq_length")
    return limit
