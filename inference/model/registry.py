"""Architecture name -> the class that runs it."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable

from inference.config import ModelConfig
from inference.errors import KernelsUnavailable, UnsupportedModelError
from inference.formats.architectures import expected_shapes
from inference.formats.base import ModelFile
from inference.kernels.kv_storage import KEY_GROUP, bytes_per_token
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

logger = logging.getLogger(__name__)

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
    kernels: str = "auto",
    kernel_cache: str = "",
    num_threads: int = 0,
    max_model_len: int = 0,
    on_progress: ProgressFn | None = None,
    run_kernels: RunKernels = run_here,
) -> Model:
    """Reads the weights and returns a model ready to run. What uses the kernels goes through run_kernels.

    kernels and kernel_cache as in EngineConfig. num_threads 0 means one per core. max_model_len is the window it will
    be run with, which some models choose their rotary frequencies by; 0: what it was made for. Raises
    UnsupportedModelError, with the known architectures, for one that is not here, ModelFileError for a tensor that
    cannot be read, and KernelsUnavailable.
    """
    kind = _ARCHITECTURES.get(model_file.architecture)
    if kind is None:
        raise UnsupportedModelError(
            model_file.path,
            f"architecture {model_file.architecture!r}",
            field="architecture",
            known=tuple(sorted(_ARCHITECTURES)),
        )
    architecture, report = kind(model_file.config), on_progress or (lambda fraction: None)
    tier = choose_kernels(kernels)
    if tier == "numpy":
        return NumpyDecoder(
            model_file,
            architecture,
            num_threads=num_threads,
            max_model_len=max_model_len,
            on_progress=report,
            run_kernels=run_kernels,
        )
    from inference.model.compiled import CompiledDecoder  # imports Numba, which may be missing

    return CompiledDecoder(
        model_file,
        architecture,
        tier=tier,
        kernel_cache=kernel_cache,
        num_threads=num_threads,
        max_model_len=max_model_len,
        on_progress=report,
    )


def choose_kernels(kernels: str) -> str:
    """The tier that runs when `kernels` is asked for, as in EngineConfig. Raises KernelsUnavailable."""
    if kernels == "numpy":
        return "numpy"
    problem = _problem_with_compiling()
    if not problem:
        from inference.kernels.jit.cpu import choose_tier  # imports llvmlite, which may be missing

        return choose_tier(kernels).name
    if kernels != "auto":
        raise KernelsUnavailable(kernels, ("numpy",), problem)
    logger.warning("the kernels are NumPy's, which are slow: %s", problem)
    return "numpy"


def _problem_with_compiling() -> str:
    """Why there are no compiled kernels here, "" if there are."""
    return "Numba is not installed" if importlib.util.find_spec("numba") is None else ""


def check_block_size(kernels: str, block_size: int) -> None:
    """Raises ValueError when the pool of those kernels cannot have such blocks."""
    if choose_kernels(kernels) != "numpy" and block_size % KEY_GROUP:
        raise ValueError(f"block_size is {block_size}, kernels other than numpy need a multiple of {KEY_GROUP}")


def estimate_weight_bytes(model_file: ModelFile, kernels: str = "auto") -> int:
    """Memory that the weights will take once they are loaded. Looks at the headers only.

    Raises UnsupportedModelError for a matrix that those kernels cannot hold.
    """
    shapes = expected_shapes(model_file.config)
    if choose_kernels(kernels) == "numpy":
        return WEIGHT_BYTES * sum(math.prod(shape) for shape in shapes.values())
    from inference.kernels.jit.packing import packed_bytes

    num_bytes = 0
    for name in (name for name, shape in shapes.items() if len(shape) == 2):
        try:
            num_bytes += packed_bytes(model_file.matrix(name))
        except ValueError as error:
            problem = f"{error}; the numpy kernels take any"
            raise UnsupportedModelError(model_file.path, problem, field=name) from error
    return num_bytes


def estimate_kv_bytes(config: ModelConfig, kernels: str = "auto") -> int:
    """Memory that one token takes in the KV pool."""
    shape = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
    if choose_kernels(kernels) == "numpy":
        return bytes_per_token(*shape)
    from inference.kernels.jit.storage import integer_bytes_per_token

    return integer_bytes_per_token(*shape)
