"""A GGUF file as a ModelFile: names, row order and types become those of Hugging Face, in float32."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.architectures import ARCHITECTURES, check_shapes, expected_shapes
from inference.formats.base import ModelFile
from inference.formats.file_bytes import digest_files
from inference.formats.gguf_config import FACTOR_TENSORS, read_config
from inference.formats.gguf_header import TensorInfo
from inference.formats.gguf_matrix import read_matrix
from inference.formats.gguf_metadata import Metadata, read_tokenizer_spec
from inference.formats.gguf_names import place_of, stored_shapes
from inference.formats.gguf_parts import PlacedTensor, read_parts
from inference.kernels.quantized import WeightMatrix
from inference.types import F32, I64

MAX_FACTORS = 4096
SLAB_BYTES = 1 << 20  # dequantised at a time: the package's temporaries take several times what they make


class GgufFile(ModelFile):
    """Opened by walking the headers once; weights are converted at each tensor() call, nothing is kept.

    A split file is opened by any of its parts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        parts = read_parts(path)
        self._files = parts.files
        self._tensors = parts.tensors
        metadata = Metadata(path, parts.metadata)
        self.tokenizer_spec = read_tokenizer_spec(metadata)
        self.config = read_config(
            metadata,
            vocab_size=self.tokenizer_spec.vocab_size,
            tensor_names=self._tensors.keys(),
            eos_token_ids=self.tokenizer_spec.eos_token_ids,
            rope_factors={name: self._factors(name) for name in FACTOR_TENSORS if name in self._tensors},
        )
        self.architecture = self.config.model_type
        self.name = parts.stem  # general.name is often the name of a training run
        self.chat_template = metadata.get("tokenizer.chat_template", str, "") or None
        self._shapes = expected_shapes(self.config)
        self._check_tensors()

    def _check_tensors(self) -> None:
        found = {name: placed.info for name, placed in self._tensors.items()}
        expected = stored_shapes(self.config)
        check_shapes(self.path, expected, {name: info.shape for name, info in found.items()}, ignored=FACTOR_TENSORS)
        for kind in {info.type for info in found.values()}:
            if not is_dequantised(kind):
                known = tuple(other.name for other in GGMLQuantizationType if is_dequantised(other))
                first = next(info.name for info in found.values() if info.type == kind)
                problem = f"tensor type {kind.name} is not supported"
                raise UnsupportedModelError(self.path, problem, field=first, known=known)

    @cached_property
    def digest(self) -> str:
        return self._files[0].digest() if len(self._files) == 1 else digest_files(self._files)

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def stored_types(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for placed in self._tensors.values():
            found[placed.info.type.name] += prod(placed.info.shape)
        return found

    def has_tensor(self, name: str) -> bool:
        return name in self._shapes

    def tensor(self, name: str) -> F32:
        if name not in self._shapes:
            raise ModelFileError(self.path, "there is no such tensor", field=name)
        weight = self._dequantised(self._placed(name))
        order = self._row_order(name)
        if order is not None:
            return weight[order]
        offset = ARCHITECTURES[self.architecture].gguf_norm_offset
        if offset and name.endswith("norm.weight"):
            return weight - np.float32(offset)
        return weight

    def matrix(self, name: str) -> WeightMatrix:
        if name not in self._shapes:
            raise ModelFileError(self.path, "there is no such tensor", field=name)
        return read_matrix(self._placed(name), self._row_order(name))

    def _placed(self, name: str) -> PlacedTensor:
        place, expert = place_of(self.config, name)
        placed = self._tensors[place]
        return placed if expert is None else _part(placed, expert)

    def _row_order(self, name: str) -> I64 | None:
        """For each row of q or k where in the file it stands; None: in its place.

        llama.cpp rotates neighbouring pairs (0, 1), (2, 3), ...; Hugging Face rotates (0, D/2), (1, D/2 + 1), ... . The
        converter interleaves the two halves of every head so that the first computes what the second meant.
        """
        if not ARCHITECTURES[self.architecture].is_interleaved:
            return None
        heads = {"q": self.config.num_attention_heads, "k": self.config.num_key_value_heads}
        for part, num_heads in heads.items():
            if name.endswith((f"self_attn.{part}_proj.weight", f"self_attn.{part}_proj.bias")):
                rows = np.arange(self._shapes[name][0])
                return rows.reshape(num_heads, len(rows) // num_heads // 2, 2).swapaxes(1, 2).reshape(-1)
        return None

    def _factors(self, name: str) -> tuple[float, ...]:
        """The numbers of a small vector. Raises ModelFileError when it is none."""
        placed = self._tensors[name]
        info = placed.info
        if len(info.shape) != 1 or info.shape[0] > MAX_FACTORS or info.type != GGMLQuantizationType.F32:
            problem = f"{info.type.name} {info.shape}, a vector of F32 is expected"
            raise ModelFileError(self.path, problem, field=name)
        return tuple(self._dequantised(placed).tolist())

    def _dequantised(self, placed: PlacedTensor) -> F32:
        info = placed.info
        if info.type == GGMLQuantizationType.F32:
            return placed.file.read(info.offset, info.nbytes).view("<f4").reshape(info.shape)
        return _dequantised_rows(placed)


def _part(placed: PlacedTensor, index: int) -> PlacedTensor:
    """One of the tensors that lie along the first axis of another."""
    info = placed.info
    nbytes = info.nbytes // info.shape[0]
    return PlacedTensor(
        TensorInfo(info.name, info.shape[1:], info.type, info.offset + index * nbytes, nbytes), placed.file
    )


def _dequantised_rows(placed: PlacedTensor) -> F32:
    """All rows, some at a time."""
    info = placed.info
    block_size, block_bytes = GGML_QUANT_SIZES[info.type]
    row_bytes = info.shape[-1] // block_size * block_bytes
    num_rows = info.nbytes // row_bytes
    out = np.empty((num_rows, info.shape[-1]), np.float32)
    step = max(SLAB_BYTES // row_bytes, 1)
    for start in range(0, num_rows, step):
        end = min(start + step, num_rows)
        raw = placed.file.read(info.offset + start * row_bytes, (end - start) * row_bytes)
        out[start:end] = dequantize(raw.reshape(end - start, row_bytes), info.type)
    return out.reshape(info.shape)


def is_dequantised(kind: GGMLQuantizationType) -> bool:
    """Whether the gguf package can turn this type into float32. It keeps no public list, so it is asked."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
