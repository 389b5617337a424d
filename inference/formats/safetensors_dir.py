"""A Hugging Face directory as a ModelFile: config.json, *.safetensors (sharded or not), tokenizer.json."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.architectures import ARCHITECTURES, check_shapes, expected_shapes, stored_name
from inference.formats.base import ModelFile, TokenizerSpec
from inference.formats.file_bytes import FileBytes, digest_files
from inference.formats.fp8_scales import SCALE_SUFFIX, read_block_size, scale_names
from inference.formats.hf_config import read_config
from inference.formats.json_files import read_json, read_text
from inference.formats.numbers import FLOAT_TYPES, as_f32, scale_blocks
from inference.formats.safetensors_header import StoredTensor, read_header
from inference.formats.safetensors_matrix import BlockScales, read_matrix
from inference.kernels.quantized import WeightMatrix
from inference.notes import Note, NoteCode
from inference.types import F32

MAX_TOKENIZER_BYTES = 64 << 20
INDEX_NAME = "model.safetensors.index.json"
NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class SafetensorsDir(ModelFile):
    """Opened by reading the JSON files and the headers of all shards; weights stay on disk until tensor() is called."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        raw = read_json(path / "config.json")
        generation = read_json(path / "generation_config.json") if (path / "generation_config.json").exists() else {}
        self.config = read_config(path / "config.json", raw, generation)
        self.architecture = self.config.model_type
        tokenizer = read_json(path / "tokenizer_config.json") if (path / "tokenizer_config.json").exists() else {}
        self.chat_template = _chat_template(path, tokenizer)
        self.tokenizer_spec = TokenizerSpec(
            source=path / "tokenizer.json",
            vocab_size=self.config.vocab_size,
            tokenizer_json=read_text(path / "tokenizer.json", MAX_TOKENIZER_BYTES),
            named_tokens=_named_tokens(path / "tokenizer_config.json", tokenizer),
            eos_token_ids=self.config.eos_token_ids,
        )
        self._shapes = expected_shapes(self.config)
        self._shards, self._tensors = read_shards(path)
        self._block_size = read_block_size(path / "config.json", raw)
        self._check_tensors()

    def _check_tensors(self) -> None:
        ignored = {name for name in self._tensors if name.endswith(".rotary_emb.inv_freq")}  # computed from rope_theta
        if self.config.tie_word_embeddings:
            ignored.add("lm_head.weight")  # some files store the tied matrix twice
        ignored |= scale_names(
            self.path, {name: at for name, (_, at) in self._tensors.items()}, self._block_size
        ).keys()
        prefixes = ARCHITECTURES[self.architecture].skipped_prefixes
        skipped = {name for name in self._tensors if name.startswith(prefixes)}
        if skipped:
            names = ", ".join(f"{prefix}*" for prefix in prefixes)
            self.notes = (Note(NoteCode.TENSORS_SKIPPED, {"num": len(skipped), "names": names}),)
        expected = {stored_name(self.config, name): shape for name, shape in self._shapes.items()}
        found = {name: at.shape for name, (_, at) in self._tensors.items()}
        check_shapes(self.path, expected, found, ignored | skipped)
        for name in expected:
            dtype = self._tensors[name][1].dtype
            if dtype not in FLOAT_TYPES:
                raise UnsupportedModelError(self.path, f"dtype {dtype} is not supported", field=name, known=FLOAT_TYPES)

    @cached_property
    def digest(self) -> str:
        return digest_files((FileBytes(self.path / "config.json"), *(file for _, file in sorted(self._shards.items()))))

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def stored_types(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for name in self._shapes:
            _, stored = self._tensors[stored_name(self.config, name)]
            found[stored.dtype] += prod(stored.shape)
        return found

    def has_tensor(self, name: str) -> bool:
        return name in self._shapes

    def tensor(self, name: str) -> F32:
        if name not in self._shapes:
            raise ModelFileError(self.path, "there is no such tensor", field=name)
        name = stored_name(self.config, name)
        weight = self._stored(name)
        if self._block_size is not None and name + SCALE_SUFFIX in self._tensors:
            scale_blocks(weight, self._stored(name + SCALE_SUFFIX), self._block_size)
        return weight

    def matrix(self, name: str) -> WeightMatrix:
        if name not in self._shapes:
            raise ModelFileError(self.path, "there is no such tensor", field=name)
        name = stored_name(self.config, name)
        file, stored = self._tensors[name]
        scales = None
        if self._block_size is not None and name + SCALE_SUFFIX in self._tensors:
            scales = BlockScales(self._stored(name + SCALE_SUFFIX), *self._block_size)
        return read_matrix(self._shards[file], stored, scales)

    def _stored(self, name: str) -> F32:
        """The tensor as it stands in its file."""
        file, stored = self._tensors[name]
        return as_f32(self._shards[file].read(stored.offset, stored.nbytes), stored.dtype).reshape(stored.shape)


def _named_tokens(path: Path, tokenizer: dict[str, Any]) -> dict[str, str]:
    named = {}
    for name in NAMED_TOKENS:
        value = tokenizer.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if text is not None and not isinstance(text, str):
            raise ModelFileError(path, f"{str(text)[:40]!r}, a string is expected", field=name)
        if text:
            named[name] = text
    return named


def _chat_template(path: Path, tokenizer: dict[str, Any]) -> str | None:
    """chat_template.jinja, else the one in tokenizer_config.json; of several named ones, "default"."""
    if (path / "chat_template.jinja").exists():
        return read_text(path / "chat_template.jinja")
    found = tokenizer.get("chat_template")
    if isinstance(found, list):
        found = next(
            (item.get("template") for item in found if isinstance(item, dict) and item.get("name") == "default"), None
        )
    if found is not None and not isinstance(found, str):
        raise ModelFileError(path / "tokenizer_config.json", "a string is expected", field="chat_template")
    return found or None


def read_shards(path: Path) -> tuple[dict[Path, FileBytes], dict[str, tuple[Path, StoredTensor]]]:
    """Open every shard and check its header; tensor name -> the file that holds it."""
    index = path / INDEX_NAME
    weight_map: dict[str, str] = {}
    if index.exists():
        found = read_json(index).get("weight_map")
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
            raise ModelFileError(index, "an object of tensor name to file name is expected", field="weight_map")
        weight_map = found
        files = sorted({_inside(index, path, name) for name in weight_map.values()})
    else:
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise ModelFileError(path, "the directory holds no *.safetensors file")
    shards = {file: FileBytes(file) for file in files}
    tensors: dict[str, tuple[Path, StoredTensor]] = {}
    for file, data in shards.items():
        for name, stored in read_header(data).items():
            if name in tensors:
                raise ModelFileError(file, f"the tensor is also in {tensors[name][0].name}", field=name)
            tensors[name] = (file, stored)
    for name, file_name in weight_map.items():
        if name not in tensors or tensors[name][0].name != file_name:
            raise ModelFileError(index, f"the tensor is not in {file_name}, where the index puts it", field=name)
    return shards, tensors


def _inside(index: Path, path: Path, name: str) -> Path:
    if not name or Path(name).name != name or not name.endswith(".safetensors"):
        raise ModelFileError(index, f"{name[:80]!r} is not the name of a file beside it", field="weight_map")
    return path / name
