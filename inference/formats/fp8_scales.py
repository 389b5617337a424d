"""FP8 checkpoints whose weights carry scales: which blocks share one, and under which name it lies beside the weight.

The kind that Qwen and DeepSeek publish: {"quant_method": "fp8", "weight_block_size": [128, 128]} in config.json, and
beside "x.weight" (R, C) a "x.weight_scale_inv" with one factor a block. The name says inverse; it is multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.numbers import F8_TYPES
from inference.formats.safetensors_header import StoredTensor

SCALE_SUFFIX = "_scale_inv"
SCALE_TYPES = ("F32", "F16", "BF16")


def read_block_size(path: Path, raw: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and columns of a block, as config.json states them; None when nothing is quantised.

    Raises UnsupportedModelError for every other way of quantising: the weights would be something else than they say.
    """
    quantization = raw.get("quantization_config")
    if quantization is None:
        return None
    if not isinstance(quantization, dict) or quantization.get("quant_method") != "fp8":
        raise UnsupportedModelError(
            path, f"{str(quantization)[:60]!r} is not supported", field="quantization_config", known=("fp8",)
        )
    size = quantization.get("weight_block_size")
    if not isinstance(size, list) or len(size) != 2 or not all(type(n) is int and 1 <= n <= 1 << 16 for n in size):
        problem = f"weight_block_size {str(size)[:60]}, only FP8 with one scale a block is supported"
        raise UnsupportedModelError(path, problem, field="quantization_config")
    return size[0], size[1]


def scale_names(
    path: Path, tensors: Mapping[str, StoredTensor], block: tuple[int, int] | None
) -> dict[str, tuple[int, int]]:
    """Name of every scale that belongs to a weight -> its shape. Raises ModelFileError for one missing or misshapen."""
    if block is None:
        return {}
    expected = {}
    for name, weight in tensors.items():
        if weight.dtype not in F8_TYPES or len(weight.shape) != 2:
            continue
        rows, columns = (-(-size // step) for size, step in zip(weight.shape, block, strict=True))
        scale = tensors.get(name + SCALE_SUFFIX)
        if scale is None:
            raise ModelFileError(path, f"{weight.dtype} without its scale {name + SCALE_SUFFIX!r}", field=name)
        if scale.shape != (rows, columns) or scale.dtype not in SCALE_TYPES:
            problem = f"{scale.dtype} {scale.shape}, expected is {' or '.join(SCALE_TYPES)} {(rows, columns)}"
            raise ModelFileError(path, problem, field=scale.name)
        expected[scale.name] = (rows, columns)
    return expected
