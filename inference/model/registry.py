"""Architecture name -> the class that runs it."""

from __future__ import annotations

import math
from collections.abc import Callable

from inference.errors import UnsupportedModelError
from inference.formats.architectures import expected_shapes
from inference.formats.base import ModelFile
from inference.model.architecture import Architecture
from inference.model.base import Model, RunKernels, run_here
from inference.model.decoder import WEIGHT_BYTES, NumpyDecoder
from inference.model.gemma3_text import Gemma3TextArchitecture
from inference.model.llama import LlamaArchitecture
from inference.model.mistral import MistralArchitecture
from inference.model.phi3 import Phi3Architecture
from inference.model.qwen2 import Qwen2Architecture
from inference.model.qwen3 import Qwen3Architecture
from inference.model.qwen3_moe import Qwen3MoeArchitecture
from inference.model.qwen3_vl import Qwen3VLArchitecture
from inference.model.smollm3 import SmolLM3Architecture

ProgressFn = Callable[[float], None]  # called with 0.0 .. 1.0

_ARCHITECTURES: dict[str, type[Architecture]] = {
    "gemma3": Gemma3TextArchitecture,  # its text side
    "gemma3_text": Gemma3TextArchitecture,
    "llama": LlamaArchitecture,
    "mistral": MistralArchitecture,
    "phi3": Phi3Architecture,
    "qwen2": Qwen2Architecture,
    "qwen3": Qwen3Architecture,
    "qwen3_moe": Qwen3MoeArchitecture,
    "qwen3_vl": Qwen3VLArchitecture,
    "smollm3": SmolLM3Architecture,
}


def load_model(
    model_file: ModelFile,
    *,
    num_threads: int = 0,
    max_model_len: int = 0,
    on_progress: ProgressFn | None = None,
    run_kernels: RunKernels = run_here,
) -> Model:
    """Reads the weights and returns a model ready to run. What uses the kernels goes through run_kernels.

    num_threads 0 means one per core. max_model_len is the window it will be run with, which some models choose their
    rotary frequencies by; 0: what it was made for. Raises UnsupportedModelError, with the known architectures, for one
    that is not here, and ModelFileError for a tensor that cannot be read.
    """
    architecture = _ARCHITECTURES.get(model_file.architecture)
    if architecture is None:
        raise UnsupportedModelError(
            model_file.path,
            f"architecture {model_file.architecture!r}",
            field="architecture",
            known=tuple(sorted(_ARCHITECTURES)),
        )
    return NumpyDecoder(
        model_file,
        architecture(model_file.config),
        num_threads=num_threads,
        max_model_len=max_model_len,
        on_progress=on_progress or (lambda fraction: None),
        run_kernels=run_kernels,
    )


def estimate_weight_bytes(model_file: ModelFile) -> int:
    """Memory that the weights will take once they are loaded. Looks at the config only."""
    return WEIGHT_BYTES * sum(math.prod(shape) for shape in expected_shapes(model_file.config).values())
